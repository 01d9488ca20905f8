#include "clients/cli/shell/port_owner.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_INODES = 16, LISTEN_STATE = 0x0a, ADDRESS_BYTES = 256 };

/* Collects the inodes of sockets that listen on the port, from a /proc/net/tcp table (proc(5)).
 * Fields: sl local:port remote:port state tx:rx timer:when retransmits uid timeout inode. */
static size_t add_inodes(const char *path, unsigned port, unsigned long *inodes, size_t n)
{
    char line[512];
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file) && n < MAX_INODES) {
        char *save = NULL, *fields[10] = {0};
        size_t n_fields = 0;
        for (char *word = strtok_r(line, " \n", &save); word && n_fields < 10;
             word = strtok_r(NULL, " \n", &save))
            fields[n_fields++] = word;
        const char *colon = n_fields == 10 ? strrchr(fields[1], ':') : NULL;
        if (colon && strtoul(colon + 1, NULL, 16) == port &&
            strtoul(fields[3], NULL, 16) == LISTEN_STATE)
            inodes[n++] = strtoul(fields[9], NULL, 10);
    }
    if (file)
        fclose(file);
    return n;
}

static bool has_socket(const char *pid, const unsigned long *inodes, size_t n_inodes)
{
    char path[300], link[64], want[64];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *fds = opendir(path);
    if (!fds)
        return false; /* a process of another user */
    for (const struct dirent *fd; !found && (fd = readdir(fds)) != NULL;) {
        ssize_t n = readlinkat(dirfd(fds), fd->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        for (size_t i = 0; i < n_inodes && !found; i++) {
            snprintf(want, sizeof(want), "socket:[%lu]", inodes[i]);
            found = strcmp(link, want) == 0;
        }
    }
    closedir(fds);
    return found;
}

static void read_name(const char *pid, char out[PORT_OWNER_NAME])
{
    char path[300], program[1100];
    snprintf(path, sizeof(path), "/proc/%s/exe", pid);
    ssize_t n = readlink(path, program, sizeof(program) - 1);
    program[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(program, '/');
    snprintf(out, PORT_OWNER_NAME, "%.63s", slash ? slash + 1 : "a program");
}

long port_owner(unsigned port, char out_name[PORT_OWNER_NAME])
{
    unsigned long inodes[MAX_INODES];
    size_t n_inodes = add_inodes("/proc/net/tcp", port, inodes, 0);
    n_inodes = add_inodes("/proc/net/tcp6", port, inodes, n_inodes);
    long pid = 0;
    DIR *proc = n_inodes ? opendir("/proc") : NULL;
    if (!proc)
        return 0;
    for (const struct dirent *entry; !pid && (entry = readdir(proc)) != NULL;)
        if (isdigit((unsigned char)entry->d_name[0]) &&
            has_socket(entry->d_name, inodes, n_inodes)) {
            pid = strtol(entry->d_name, NULL, 10);
            read_name(entry->d_name, out_name);
        }
    closedir(proc);
    return pid;
}

/* Parses an address, like "127.0.0.1:8001" or "[::1]:8001". False for other forms. */
static bool parse_address(const char *text, struct sockaddr_storage *out, socklen_t *out_n,
                          unsigned *out_port)
{
    char host[ADDRESS_BYTES];
    const char *colon = strrchr(text, ':');
    char *end;
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (!n || n >= sizeof(host))
        return false;
    unsigned long port = strtoul(colon + 1, &end, 10);
    bool six = text[0] == '[' && text[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(six ? n - 2 : n), six ? text + 1 : text);
    *out = (struct sockaddr_storage){0};
    struct sockaddr_in *in = (struct sockaddr_in *)out;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    if (*end || end == colon + 1 || port > 65535)
        return false;
    *out_port = (unsigned)port;
    out->ss_family = six ? AF_INET6 : AF_INET;
    *(six ? &in6->sin6_port : &in->sin_port) = htons((uint16_t)port);
    *out_n = six ? sizeof(*in6) : sizeof(*in);
    if (!six && strcmp(host, "localhost") == 0)
        snprintf(host, sizeof(host), "127.0.0.1");
    return inet_pton(out->ss_family, host, six ? (void *)&in6->sin6_addr : (void *)&in->sin_addr) ==
           1;
}

/* Returns 0 if the port is free, else the errno. Sets SO_REUSEADDR like a server. */
static int try_port(const struct sockaddr_storage *address, socklen_t n)
{
    int one = 1;
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    int err_no =
        bind(fd, (const struct sockaddr *)address, n) == 0 && listen(fd, 1) == 0 ? 0 : errno;
    close(fd);
    return err_no;
}

bool port_owner_probe(const char *text, unsigned *out_port, int *out_errno)
{
    struct sockaddr_storage address;
    socklen_t n;
    if (!parse_address(text, &address, &n, out_port))
        return false;
    *out_errno = try_port(&address, n);
    return true;
}
