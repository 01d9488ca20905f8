#include "proto/rpc/server/listen.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <netdb.h>

#include "base/error.h"
#include "proto/rpc/core/unix_path.h"
#include "proto/rpc/guard/peer.h"

enum { MAX_UNIX_PATH = 107, MAX_HOST = 256 };

/* Checks that a socket can be created in the folder of `path`. */
static int check_folder(const char *path, struct error *err)
{
    char folder[MAX_UNIX_PATH + 1];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return 0;
    slash[slash == folder ? 1 : 0] = '\0';
    return access(folder, W_OK | X_OK) == 0 ? 0
                                            : error_errno(err, errno, "socket folder %s", folder);
}

int rpc_listen_check_unix(const char *path, struct error *err)
{
    size_t n_path = strlen(path);
    if (n_path >= 1 && n_path <= MAX_UNIX_PATH)
        return rpc_unix_path_check(path, err);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "a socket's path must have 1 to %d bytes; this path has %zu", MAX_UNIX_PATH,
                     n_path);
}

int rpc_listen_claim_unix(const char *path, struct error *err)
{
    struct stat info;
    if (rpc_listen_check_unix(path, err) != 0)
        return err->status;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? check_folder(path, err)
                               : error_errno(err, errno, "socket %s", path);
    if (!S_ISSOCK(info.st_mode))
        return error_set(err, STATUS_FAILED_PRECONDITION, "%s exists and is not a socket", path);
    int err_no = rpc_peer_connect(path);
    if (err_no == ENOENT)
        return 0;
    if (err_no != ECONNREFUSED) {
        error_set(err, STATUS_ALREADY_EXISTS, "socket %s is in use by a running process", path);
        return error_reason(err, REASON_ADDRESS_IN_USE);
    }
    if (unlink(path) != 0 && errno != ENOENT)
        return error_errno(err, errno, "cannot remove the stale socket %s", path);
    return 0;
}

/* Returns the i-th word (from 0) of a line, terminated in place; NULL: fewer words. */
static char *word_at(char *line, size_t i)
{
    for (;; i--) {
        line += strspn(line, " \n");
        size_t n = strcspn(line, " \n");
        if (n == 0)
            return NULL;
        if (i > 0) {
            line += n;
            continue;
        }
        line[n] = '\0';
        return line;
    }
}

/* Returns the inode of the socket that listens on a port, from /proc/net/tcp or tcp6; 0: none. A
 * row is "0: 0100007F:1F41 00000000:0000 0A 0:0 0:0 0 uid timeout inode ..."; state 0A is
 * LISTEN. */
static unsigned long listening_inode(const char *table, unsigned port)
{
    enum { WORD_LOCAL = 1, WORD_STATE = 3, WORD_INODE = 9 };
    char line[512];
    unsigned long inode = 0;
    FILE *file = fopen(table, "re");
    if (file == NULL)
        return 0;
    while (inode == 0 && fgets(line, sizeof(line), file) != NULL) {
        /* From right to left, because each word is terminated in place. */
        const char *number = word_at(line, WORD_INODE);
        const char *state = number != NULL ? word_at(line, WORD_STATE) : NULL;
        const char *local = state != NULL ? word_at(line, WORD_LOCAL) : NULL;
        const char *colon = local != NULL ? strrchr(local, ':') : NULL;
        if (colon != NULL && strcmp(state, "0A") == 0 && strtoul(colon + 1, NULL, 16) == port)
            inode = strtoul(number, NULL, 10);
    }
    fclose(file);
    return inode;
}

static bool process_has_socket(const char *pid, const char *wanted)
{
    char path[300], link[64];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link) - 1);
        if (n <= 0)
            continue;
        link[n] = '\0';
        found = strcmp(link, wanted) == 0;
    }
    closedir(dir);
    return found;
}

/* Returns the pid of the process that listens on a port; 0 if unknown. */
static unsigned long port_holder(unsigned port)
{
    char wanted[64];
    unsigned long holder = 0;
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    if (inode == 0)
        inode = listening_inode("/proc/net/tcp6", port);
    DIR *dir = inode != 0 ? opendir("/proc") : NULL;
    if (dir == NULL)
        return 0;
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    for (struct dirent *entry; holder == 0 && (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            process_has_socket(entry->d_name, wanted))
            holder = strtoul(entry->d_name, NULL, 10);
    closedir(dir);
    return holder;
}

/* Splits "host:port" or "[v6]:port". */
static bool split_address(const char *address, char host[MAX_HOST], const char **out_port)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address || colon[1] == '\0' ||
        (size_t)(colon - address) >= MAX_HOST)
        return false;
    size_t n_host = (size_t)(colon - address);
    bool bracketed = address[0] == '[' && address[n_host - 1] == ']';
    if (!bracketed && memchr(address, ':', n_host) != NULL)
        return false;
    memcpy(host, address + (bracketed ? 1 : 0), n_host - (bracketed ? 2 : 0));
    host[n_host - (bracketed ? 2 : 0)] = '\0';
    char *end = NULL;
    unsigned long port = strtoul(colon + 1, &end, 10);
    *out_port = colon + 1;
    return colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port <= 65535;
}

static int try_bind(const struct addrinfo *info, bool beside)
{
    int one = 1;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (beside)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    /* With `beside` this test must not listen: its socket would get connections of the server that
     * shares the port. */
    int err_no = bind(fd, info->ai_addr, info->ai_addrlen) == 0 && (beside || listen(fd, 1) == 0)
                     ? 0
                     : errno;
    close(fd);
    return err_no;
}

/* Resolves "host:port"; *out_infos is owned. */
static int resolve(const char *address, struct addrinfo **out_infos, const char **out_port,
                   struct error *err)
{
    char host[MAX_HOST];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    if (!split_address(address, host, out_port))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s is not an address of the form HOST:PORT",
                         address);
    int failed = getaddrinfo(host, *out_port, &hints, out_infos);
    if (failed != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "address %s: %s", address,
                         gai_strerror(failed));
    return 0;
}

int rpc_listen_check_tcp(const char *address, struct error *err)
{
    struct addrinfo *infos = NULL;
    const char *port = NULL;
    int rc = resolve(address, &infos, &port, err);
    if (rc == 0)
        freeaddrinfo(infos);
    return rc;
}

bool rpc_listen_resolve(const char *address, struct addrinfo **out_infos)
{
    struct error err;
    const char *port = NULL;
    return resolve(address, out_infos, &port, &err) == 0;
}

int rpc_listen_probe_tcp(const char *address, bool beside, struct error *err)
{
    struct addrinfo *infos = NULL;
    const char *port = NULL;
    int rc = resolve(address, &infos, &port, err);
    if (rc != 0)
        return rc;
    int err_no = 0;
    for (const struct addrinfo *info = infos; info != NULL && err_no == 0; info = info->ai_next)
        err_no = try_bind(info, beside);
    freeaddrinfo(infos);
    if (err_no == 0)
        return 0;
    if (err_no != EADDRINUSE)
        return error_errno(err, err_no, "cannot listen on %s", address);
    unsigned long holder = port_holder((unsigned)strtoul(port, NULL, 10));
    if (holder != 0)
        error_set(err, STATUS_ALREADY_EXISTS, "address %s is in use by process %lu", address,
                  holder);
    else
        error_set(err, STATUS_ALREADY_EXISTS, "address %s is in use", address);
    return error_reason(err, REASON_ADDRESS_IN_USE);
}

static bool is_loopback(const struct addrinfo *info)
{
    if (info->ai_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, info->ai_addr, sizeof(in));
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    if (info->ai_family != AF_INET6)
        return false;
    struct sockaddr_in6 in6;
    memcpy(&in6, info->ai_addr, sizeof(in6));
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) && in6.sin6_addr.s6_addr[12] == 127);
}

bool rpc_listen_is_loopback(const char *address)
{
    char host[MAX_HOST];
    const char *port = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *infos = NULL;
    if (!split_address(address, host, &port) || getaddrinfo(host, port, &hints, &infos) != 0)
        return false;
    bool all = infos != NULL;
    for (const struct addrinfo *info = infos; info != NULL; info = info->ai_next)
        all = all && is_loopback(info);
    freeaddrinfo(infos);
    return all;
}
