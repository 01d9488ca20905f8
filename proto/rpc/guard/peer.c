#include "proto/rpc/guard/peer.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/rpc/guard/guard.h"

enum { PREFIX_BYTES = 64 };

/* "/sluice-peer/HEX/", the prefix of our names. Empty if no random number was available: then no
 * peer is identified. */
static char prefix[PREFIX_BYTES];
static pthread_once_t drawn = PTHREAD_ONCE_INIT;

static void draw(void)
{
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random))
        snprintf(prefix, sizeof(prefix), "/sluice-peer/%016" PRIx64 "%016" PRIx64 "/", random[0],
                 random[1]);
}

static const char *our_prefix(void)
{
    pthread_once(&drawn, draw);
    return prefix;
}

int rpc_guard_getpeername(int fd, struct sockaddr *address, socklen_t *n_address)
{
    socklen_t n_room = n_address != NULL ? *n_address : 0;
    struct ucred ids;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t n_ids = sizeof(ids);
    int rc = (int)syscall(SYS_getpeername, fd, address, n_address);
    if (rc != 0 || n_room < sizeof(sa_family_t) || address->sa_family != AF_UNIX ||
        our_prefix()[0] == '\0' || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &ids, &n_ids) != 0)
        return rc;
    snprintf(name.sun_path, sizeof(name.sun_path), "%s%" PRIu32 "/%" PRIu32 "/%" PRId32,
             our_prefix(), (uint32_t)ids.uid, (uint32_t)ids.gid, (int32_t)ids.pid);
    socklen_t n_name =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name.sun_path) + 1);
    memcpy(address, &name, n_room < n_name ? n_room : n_name);
    *n_address = n_name;
    return 0;
}

/* Reads a decimal number at *at, and moves *at to the byte after `end`. */
static bool number(const char **at, char end, unsigned long *out)
{
    char *stop;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out = strtoul(*at, &stop, 10);
    if (errno != 0 || *stop != end || *out > UINT32_MAX)
        return false;
    *at = stop + (end != '\0');
    return true;
}

bool rpc_peer_parse(const char *peer, struct rpc_peer_ids *out_ids)
{
    static const char scheme[] = "unix:";
    unsigned long uid, gid, pid;
    size_t n_scheme = sizeof(scheme) - 1, n_prefix = strlen(our_prefix());
    if (n_prefix == 0 || strncmp(peer, scheme, n_scheme) != 0 ||
        strncmp(peer + n_scheme, our_prefix(), n_prefix) != 0)
        return false;
    const char *at = peer + n_scheme + n_prefix;
    if (!number(&at, '/', &uid) || !number(&at, '/', &gid) || !number(&at, '\0', &pid))
        return false;
    *out_ids = (struct rpc_peer_ids){(uint32_t)uid, (uint32_t)gid, (int32_t)pid};
    return true;
}

int rpc_peer_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int err_no = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
    close(fd);
    return err_no;
}

bool rpc_peer_answers(const char *path)
{
    int err_no = rpc_peer_connect(path);
    return err_no == 0 || err_no == EAGAIN; /* its queue is full */
}
