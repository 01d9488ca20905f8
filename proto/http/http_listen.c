#include "proto/http/http_listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <netdb.h>

#include "base/error.h"
#include "proto/rpc/server/listen.h"

enum { BACKLOG = 1024 };

static const char unix_prefix[] = "unix:";

static int fail(int fd, struct error *err, const char *address)
{
    int err_no = errno;
    if (fd >= 0)
        close(fd);
    return error_errno(err, err_no, "cannot listen on %s", address);
}

static int listen_unix(const char *path, enum rpc_share share, int *out_fd, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[sizeof(address.sun_path)];
    bool beside = share == RPC_SHARE_BESIDE;
    if ((beside ? rpc_share_name(path, name, sizeof(name), err)
                : rpc_listen_claim_unix(path, err)) != 0)
        return err->status;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", beside ? name : path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* The mode is set before any client can connect. */
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(fd, BACKLOG) != 0)
        return fail(fd, err, path);
    if (beside && rpc_share_move(name, path, err) != 0) {
        close(fd);
        return err->status;
    }
    *out_fd = fd;
    return 0;
}

static int open_first(const struct addrinfo *infos, const char *address, int *out_fd,
                      struct error *err)
{
    int fd = -1, one = 1;
    errno = EADDRNOTAVAIL;
    for (const struct addrinfo *info = infos; info; info = info->ai_next) {
        fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
            *out_fd = fd;
            return 0;
        }
        int err_no = errno;
        close(fd);
        errno = err_no;
    }
    return fail(-1, err, address);
}

static uint16_t bound_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t n = sizeof(address);
    memset(&address, 0, sizeof(address));
    if (getsockname(fd, &address.any, &n) != 0)
        return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

static int listen_tcp(const char *address, enum rpc_share share, int *out_fd, uint16_t *out_port,
                      struct error *err)
{
    struct addrinfo *infos = NULL;
    /* Also reports the process that holds the port, and an invalid address. */
    if (rpc_listen_probe_tcp(address, share == RPC_SHARE_BESIDE, err) != 0)
        return err->status;
    if (!rpc_listen_resolve(address, &infos))
        return error_set(err, STATUS_INVALID_ARGUMENT, "the address %s is unknown", address);
    rpc_share_begin(share);
    int rc = open_first(infos, address, out_fd, err);
    rpc_share_end();
    freeaddrinfo(infos);
    if (!rc)
        *out_port = bound_port(*out_fd);
    return rc;
}

int http_listen(const char *address, enum rpc_share share, int *out_fd, uint16_t *out_port,
                struct error *err)
{
    *out_port = 0;
    if (strncmp(address, unix_prefix, sizeof(unix_prefix) - 1) == 0)
        return listen_unix(address + sizeof(unix_prefix) - 1, share, out_fd, err);
    return listen_tcp(address, share, out_fd, out_port, err);
}
