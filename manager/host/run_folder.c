#include "manager/host/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"

enum { PATH_BYTES = 4096, EXIT_REPORT_MAX_BYTES = 1 << 20 };
static const char prefix[] = "replica-";

static void make_path(const char *run_dir, const char *replica_id, const char *name,
                      char out_path[PATH_BYTES])
{
    snprintf(out_path, PATH_BYTES, "%s/%s%s%s%s", run_dir, prefix, replica_id, *name ? "/" : "",
             name);
}

int run_folder_prepare(const char *run_dir, const char *replica_id, struct error *err)
{
    static const char *const leftovers[] = {"worker.sock", "metrics.sock", "exit.pb",
                                            "exit.pb.tmp"};
    char path[PATH_BYTES];
    make_path(run_dir, replica_id, "", path);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_errno(err, errno, "run/replica-%s", replica_id);
    for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
        make_path(run_dir, replica_id, leftovers[i], path);
        if (unlink(path) != 0 && errno != ENOENT)
            return error_errno(err, errno, "run/replica-%s/%s", replica_id, leftovers[i]);
    }
    return 0;
}

pb_exit *run_folder_read_exit(const char *run_dir, const char *replica_id)
{
    char path[PATH_BYTES];
    struct stat st;
    ProtobufCMessage *message = NULL;
    struct error err;
    char *bytes = NULL;
    make_path(run_dir, replica_id, "exit.pb", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        st.st_size > EXIT_REPORT_MAX_BYTES || !(bytes = malloc((size_t)st.st_size)) ||
        read(fd, bytes, (size_t)st.st_size) != st.st_size ||
        rpc_message_parse(&sluice__worker__v1__exit_report__descriptor, bytes, (size_t)st.st_size,
                          &message, &err) != 0)
        message = NULL;
    free(bytes);
    close(fd);
    return (pb_exit *)message;
}

/* An older manager left chat_template.jinja. */
void run_folder_remove(const char *run_dir, const char *replica_id)
{
    static const char *const names[] = {"worker.sock",        "metrics.sock", "exit.pb",
                                        "exit.pb.tmp",        "log",          "log.1",
                                        "chat_template.jinja"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        make_path(run_dir, replica_id, names[i], path);
        (void)unlink(path);
    }
    make_path(run_dir, replica_id, "", path);
    (void)rmdir(path);
}

void run_folder_list(const char *run_dir, void (*found)(void *arg, const char *replica_id),
                     void *arg)
{
    DIR *folder = opendir(run_dir);
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (strncmp(entry->d_name, prefix, sizeof(prefix) - 1) == 0)
            found(arg, entry->d_name + sizeof(prefix) - 1);
    if (folder)
        closedir(folder);
}
