#include "proto/rpc/rpc_share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

enum { MAX_BOUND = 16, MAX_OWNED = 8, MAX_UNIX_PATH = 107 };
/* Of the sockets of a shared port: the first process's is 0, and 0 is also where the successor's
 * goes when that one has closed. */
enum { SUCCESSOR = 1 };

static _Thread_local struct {
    enum rpc_share share;
    int fds[MAX_BOUND];
    size_t n;
} bound;

static struct {
    pthread_mutex_t lock;
    struct {
        const char *path;
        ino_t inode;
    } files[MAX_OWNED];
} owned = {.lock = PTHREAD_MUTEX_INITIALIZER};

void rpc_share_begin(enum rpc_share share)
{
    bound.share = share;
    bound.n = 0;
}

static bool listens(int fd)
{
    int on = 0;
    socklen_t n_bytes = sizeof(on);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n_bytes) == 0 && on != 0;
}

/* Where the kernel does not take it, the two share what is new. */
static void take_all(int fd)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SUCCESSOR)};
    struct sock_fprog program = {.len = 1, .filter = code};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program));
}

void rpc_share_end(void)
{
    for (size_t i = 0; bound.share == RPC_SHARE_BESIDE && i < bound.n; i++)
        if (listens(bound.fds[i]))
            take_all(bound.fds[i]);
    bound.share = RPC_SHARE_NONE;
}

/* By its symbol only, as accept4 in rpc_accept.c. */
int bind_instead(int fd, const struct sockaddr *address, socklen_t n_address) __asm__("bind");

int bind_instead(int fd, const struct sockaddr *address, socklen_t n_address)
{
    int one = 1;
    bool shared = bound.share != RPC_SHARE_NONE && address != NULL &&
                  (address->sa_family == AF_INET || address->sa_family == AF_INET6);
    if (shared && bound.share == RPC_SHARE_BESIDE)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    int rc = (int)syscall(SYS_bind, fd, address, n_address);
    if (rc != 0 || !shared)
        return rc;
    if (bound.share == RPC_SHARE_FIRST)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    if (bound.n < MAX_BOUND)
        bound.fds[bound.n++] = fd;
    return 0;
}

int rpc_share_name(const char *path, char *out_name, size_t n_bytes, struct error *err)
{
    const char *slash = strrchr(path, '/');
    int n_folder = slash != NULL ? (int)(slash + 1 - path) : 0;
    int n = snprintf(out_name, n_bytes, "%.*s.%d", n_folder, path, (int)getpid());
    if (n > 0 && n <= MAX_UNIX_PATH && (size_t)n < n_bytes)
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "socket path %s: its folder's name leaves no room for a second one", path);
}

int rpc_share_move(const char *name, const char *path, struct error *err)
{
    if (rename(name, path) == 0)
        return 0;
    int err_no = errno;
    unlink(name);
    return error_errno(err, err_no, "cannot put a socket in the place of %s", path);
}

static ino_t inode_of(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 ? info.st_ino : 0;
}

void rpc_share_own(const char *path)
{
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (owned.files[i].path == NULL) {
            owned.files[i].path = path;
            owned.files[i].inode = inode_of(path);
            break;
        }
    pthread_mutex_unlock(&owned.lock);
}

void rpc_share_forget(const char *path)
{
    unlink(path);
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (owned.files[i].path == path)
            owned.files[i].path = NULL;
    pthread_mutex_unlock(&owned.lock);
}

static bool is_anothers(const char *path)
{
    bool found = false;
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED && !found; i++)
        found = owned.files[i].path != NULL && strcmp(owned.files[i].path, path) == 0 &&
                owned.files[i].inode != inode_of(path);
    pthread_mutex_unlock(&owned.lock);
    return found;
}

int unlink_instead(const char *path) __asm__("unlink");

int unlink_instead(const char *path)
{
    if (is_anothers(path))
        return 0;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
