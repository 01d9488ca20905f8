#include "base/system/path_access.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/shell_word.h"

enum { NAME_BYTES = 48, ACCOUNT_BYTES = 80, MAX_GROUPS = 256 };

/* Finds the account's name in /etc/passwd. Other sources of names would load code into a sandboxed
 * worker. False if the file does not have the number. */
static bool account_name(uid_t uid, char out[NAME_BYTES])
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/etc/passwd", "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        char *password = strchr(line, ':');
        char *number = password ? strchr(password + 1, ':') : NULL;
        if (!number || number[1] < '0' || number[1] > '9' ||
            strtoul(number + 1, NULL, 10) != (unsigned long)uid)
            continue;
        *password = '\0';
        snprintf(out, NAME_BYTES, "%.47s", line);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

static const char *own_account(char out[ACCOUNT_BYTES])
{
    char name[NAME_BYTES];
    if (account_name(geteuid(), name))
        snprintf(out, ACCOUNT_BYTES, "the account %s (uid %ld)", name, (long)geteuid());
    else
        snprintf(out, ACCOUNT_BYTES, "the account with uid %ld", (long)geteuid());
    return out;
}

static const char *owner_of(const struct stat *st, char out[NAME_BYTES])
{
    if (!account_name(st->st_uid, out))
        snprintf(out, NAME_BYTES, "uid %ld", (long)st->st_uid);
    return out;
}

static bool is_in_group(gid_t group)
{
    gid_t groups[MAX_GROUPS];
    int n = getgroups(MAX_GROUPS, groups);
    for (int i = 0; i < n; i++)
        if (groups[i] == group)
            return true;
    return getegid() == group;
}

/* Returns the class of chmod (u, g or o) that the kernel checks for this process, and the class's
 * bits. */
static char class_of(const struct stat *st, unsigned *out_bits)
{
    unsigned mode = st->st_mode & 0777;
    bool is_owner = st->st_uid == geteuid(), in_group = is_in_group(st->st_gid);
    *out_bits = (is_owner ? mode >> 6 : in_group ? mode >> 3 : mode) & 7;
    return is_owner ? 'u' : in_group ? 'g' : 'o';
}

static void add_command(struct path_access *out, bool mends, const char *command, const char *path)
{
    out->mends = mends;
    struct strbuf text = {0};
    strbuf_add_str(&text, command);
    shell_word_add(&text, path);
    snprintf(out->command, sizeof(out->command), "%s", strbuf_str(&text));
    strbuf_fini(&text);
}

/* An act that the process may not do. */
enum barred_act { ENTER_FOLDER, LIST_FOLDER, READ_FILE };

/* Explains how a component bars the process. `fd` is the component, opened with O_PATH; `path` is
 * its spelling. */
static void explain(int fd, const char *path, enum barred_act act, struct path_access *out)
{
    static const char *const acts[] = {"enter the folder", "list the folder", "read the file"};
    char account[ACCOUNT_BYTES], owner[NAME_BYTES], command[16];
    struct stat st = {0};
    unsigned bits, wanted = act == ENTER_FOLDER ? 1 : 4;
    (void)fstat(fd, &st);
    char class = class_of(&st, &bits);
    snprintf(out->text, sizeof(out->text), "%s may not %s %.200s (mode %04o, owner %s)",
             own_account(account), acts[act], path, (unsigned)st.st_mode & 07777,
             owner_of(&st, owner));
    snprintf(command, sizeof(command), "chmod %c+%c ", class, act == ENTER_FOLDER ? 'x' : 'r');
    /* If the mode allows the access, an access list or a security module denies it. */
    bool mends = !(bits & wanted);
    add_command(out, mends, mends ? command : "getfacl ", path);
}

static void explain_link(const char *path, struct path_access *out)
{
    char account[ACCOUNT_BYTES];
    snprintf(out->text, sizeof(out->text),
             "%s may not enter a folder on the way of the symbolic link %.200s",
             own_account(account), path);
    add_command(out, false, "namei -l ", path);
}

/* Opens the next component; -1 if that fails. *out_barred is set if this process is not
 * permitted. */
static int step(int at, const char *here, const char *name, const char *path, bool *out_barred,
                struct path_access *out)
{
    struct stat st;
    int fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        *out_barred = errno == EACCES;
        if (*out_barred)
            explain(at, here, ENTER_FOLDER, out);
        return -1;
    }
    if (fstat(fd, &st) != 0 || !S_ISLNK(st.st_mode))
        return fd;
    close(fd);
    fd = openat(at, name, O_PATH | O_CLOEXEC);
    if (fd < 0) {
        *out_barred = errno == EACCES;
        if (*out_barred)
            explain_link(path, out);
    }
    return fd;
}

/* Returns true if the file or folder at the end of the path cannot be opened for reading. */
static bool is_unreadable(int file_fd, enum barred_act *out_act)
{
    char link[64];
    struct stat st;
    if (fstat(file_fd, &st) != 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return false;
    *out_act = S_ISDIR(st.st_mode) ? LIST_FOLDER : READ_FILE;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file_fd);
    int fd = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EACCES;
}

/* Copies the next component of *at and advances *at; false at the path's end. */
static bool next_name(const char **at, char out[NAME_MAX + 1])
{
    *at += strspn(*at, "/");
    size_t n = strcspn(*at, "/");
    if (n == 0 || n > NAME_MAX)
        return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return true;
}

bool path_access_find(int from_fd, const char *path, struct path_access *out)
{
    char here[PATH_MAX], name[NAME_MAX + 1], next[PATH_MAX];
    bool barred = false;
    const char *at = path;
    *out = (struct path_access){.text = ""};
    snprintf(here, sizeof(here), "%s", *path == '/' ? "/" : ".");
    int fd = openat(from_fd, here, O_PATH | O_CLOEXEC);
    /* The start folder itself cannot be entered, because "." is not found through it. */
    if (fd < 0 && errno == EACCES && from_fd != AT_FDCWD) {
        explain(from_fd, here, ENTER_FOLDER, out);
        return true;
    }
    while (fd >= 0 && next_name(&at, name)) {
        snprintf(next, sizeof(next), "%.*s", (int)(at - path), path);
        int deeper = step(fd, here, name, next, &barred, out);
        close(fd);
        fd = deeper;
        memcpy(here, next, sizeof(here));
    }
    enum barred_act act;
    if (fd >= 0 && is_unreadable(fd, &act)) {
        barred = true;
        explain(fd, here, act, out);
    }
    if (fd >= 0)
        close(fd);
    return barred;
}

int path_access_error(int from_fd, const char *path, const char *what, const char *where,
                      struct error *err)
{
    struct path_access access;
    if (path_access_find(from_fd, path, &access))
        error_set(err, STATUS_PERMISSION_DENIED, "%s: %s; %s: %s%s", what, access.text,
                  access.mends ? "let it in" : "see", access.command, where);
    else
        error_errno(err, EACCES, "%s", what);
    return error_reason(err, REASON_NO_FILE_ACCESS);
}
