#include "proto/rpc/guard/share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/rpc/guard/guard.h"
#include "proto/rpc/guard/peer.h"

enum { MAX_BOUND = 16, MAX_OWNED = 16, MAX_UNIX_PATH = 107 };
/* Index of a socket of a shared port: 0 is the first process's. The successor's is 1, and
 * becomes 0 when the first one closes. */
enum { SUCCESSOR = 1 };
/* Time to accept connections that came to the first process before its successor listened. */
enum { QUEUE_MS = 50 };

/* Part of the name under which another process's socket is kept. */
static const char aside_mark[] = ".was";

static _Thread_local struct {
    enum rpc_share share;
    int fds[MAX_BOUND];
    size_t n;
} bound;

/* Sockets bound for sharing. */
static struct {
    pthread_mutex_t lock;
    int fds[MAX_BOUND];
    size_t n;
} ports = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    pthread_mutex_t lock;
    struct {
        const char *path;
        int fd; /* descriptor of the file, so that its inode number is not reused; or -1 */
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

/* If the kernel refuses the filter, the two processes share new connections. */
static void take_all(int fd)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SUCCESSOR)};
    struct sock_fprog program = {.len = 1, .filter = code};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program));
}

void rpc_share_end(void)
{
    pthread_mutex_lock(&ports.lock);
    for (size_t i = 0; i < bound.n && ports.n < MAX_BOUND; i++)
        ports.fds[ports.n++] = bound.fds[i];
    pthread_mutex_unlock(&ports.lock);
    for (size_t i = 0; bound.share == RPC_SHARE_BESIDE && i < bound.n; i++)
        if (listens(bound.fds[i]))
            take_all(bound.fds[i]);
    bound.share = RPC_SHARE_NONE;
    bound.n = 0;
}

void rpc_share_hand_over(void)
{
    pthread_mutex_lock(&ports.lock);
    for (size_t i = 0; i < ports.n; i++) {
        struct pollfd waiting = {.fd = ports.fds[i], .events = POLLIN};
        for (int k = 0; k < QUEUE_MS && listens(ports.fds[i]) && poll(&waiting, 1, 0) == 1; k++)
            poll(NULL, 0, 1); /* until gRPC has accepted the queued connections */
        if (listens(ports.fds[i]))
            syscall(SYS_shutdown, ports.fds[i], SHUT_RD);
    }
    ports.n = 0;
    pthread_mutex_unlock(&ports.lock);
}

int rpc_guard_bind(int fd, const struct sockaddr *address, socklen_t n_address)
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

/* Files that sockets of this process have replaced. */
static struct {
    pthread_mutex_t lock;
    struct {
        char path[MAX_UNIX_PATH + 1];
        char aside[MAX_UNIX_PATH + 16]; /* empty: a free entry */
    } files[MAX_OWNED];
} moved = {.lock = PTHREAD_MUTEX_INITIALIZER};

int rpc_share_name(const char *path, char *out_name, size_t n_bytes, struct error *err)
{
    const char *slash = strrchr(path, '/');
    int n_folder = slash != NULL ? (int)(slash + 1 - path) : 0;
    int n = snprintf(out_name, n_bytes, "%.*s.%d", n_folder, path, (int)getpid());
    if (n > 0 && n <= MAX_UNIX_PATH && (size_t)n < n_bytes)
        return 0;
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "socket path %s: too long for a temporary name in the same folder; choose a shorter path",
        path);
}

/* True if `path` is the file that is open as `fd`. */
static bool is_file(const char *path, int fd)
{
    struct stat there, ours;
    return fd >= 0 && lstat(path, &there) == 0 && fstat(fd, &ours) == 0 &&
           there.st_ino == ours.st_ino && there.st_dev == ours.st_dev;
}

/* Under the lock of `moved`: keeps the file at `path` under a second name. If that fails (no
 * file, or no hard links), nothing can be restored. */
static void keep_aside(const char *name, const char *path)
{
    for (int i = 0; i < MAX_OWNED; i++) {
        if (moved.files[i].aside[0] != '\0')
            continue;
        snprintf(moved.files[i].path, sizeof(moved.files[i].path), "%s", path);
        snprintf(moved.files[i].aside, sizeof(moved.files[i].aside), "%s%s%d", name, aside_mark, i);
        if (link(path, moved.files[i].aside) != 0)
            moved.files[i].aside[0] = '\0';
        return;
    }
}

/* Under the lock of `moved`: drops the kept file, or restores it. */
static void settle(int i, bool stays)
{
    if (!stays)
        (void)rename(moved.files[i].aside, moved.files[i].path);
    unlink(moved.files[i].aside); /* if both names were the same file, rename did nothing */
    moved.files[i].aside[0] = '\0';
}

int rpc_share_move(const char *name, const char *path, struct error *err)
{
    pthread_mutex_lock(&moved.lock);
    keep_aside(name, path);
    int rc = rename(name, path);
    int err_no = errno;
    pthread_mutex_unlock(&moved.lock);
    if (rc == 0)
        return 0;
    unlink(name);
    return error_errno(err, err_no, "cannot replace the socket %s", path);
}

void rpc_share_own(const char *path)
{
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (owned.files[i].path == NULL) {
            owned.files[i].path = path;
            owned.files[i].fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
            break;
        }
    pthread_mutex_unlock(&owned.lock);
}

static bool is_anothers(const char *path)
{
    bool found = false;
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED && !found; i++)
        found = owned.files[i].path != NULL && strcmp(owned.files[i].path, path) == 0 &&
                !is_file(path, owned.files[i].fd);
    pthread_mutex_unlock(&owned.lock);
    return found;
}

void rpc_share_settle(bool stays)
{
    pthread_mutex_lock(&moved.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (moved.files[i].aside[0] != '\0')
            settle(i, stays || is_anothers(moved.files[i].path));
    pthread_mutex_unlock(&moved.lock);
}

/* Restores the file that was at `path`. True if that happened; if a third process's file is
 * there, nothing is restored. */
static bool restored_other(const char *path)
{
    bool gave = false;
    pthread_mutex_lock(&moved.lock);
    for (int i = 0; i < MAX_OWNED && !gave; i++) {
        if (moved.files[i].aside[0] == '\0' || strcmp(moved.files[i].path, path) != 0)
            continue;
        gave = !is_anothers(path);
        settle(i, !gave);
    }
    pthread_mutex_unlock(&moved.lock);
    return gave;
}

/* Fills the folder of `path`; "" for the working directory. */
static void folder_of(const char *path, char out_folder[MAX_UNIX_PATH + 1])
{
    const char *slash = strrchr(path, '/');
    snprintf(out_folder, MAX_UNIX_PATH + 1, "%.*s", slash != NULL ? (int)(slash + 1 - path) : 0,
             path);
}

/* Finds another name of the file `fd` in the folder of `path`: the name under which a successor
 * keeps it. False if there is none. */
static bool find_aside(const char *path, int fd, char *out_name, size_t n_bytes)
{
    char folder[MAX_UNIX_PATH + 1];
    struct stat ours;
    folder_of(path, folder);
    bool found = false;
    DIR *dir = fstat(fd, &ours) == 0 && ours.st_nlink > 0 ? opendir(*folder ? folder : ".") : NULL;
    for (struct dirent *entry; dir != NULL && !found && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.' || strstr(entry->d_name, aside_mark) == NULL)
            continue;
        int n = snprintf(out_name, n_bytes, "%s%s", folder, entry->d_name);
        found =
            n > 0 && (size_t)n < n_bytes && strcmp(out_name, path) != 0 && is_file(out_name, fd);
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* Under the lock of `owned`: true if a dead socket has replaced this file. */
static bool is_lost(int i)
{
    struct stat ours;
    const char *path = owned.files[i].path;
    int fd = owned.files[i].fd;
    return path != NULL && fd >= 0 && !is_file(path, fd) && fstat(fd, &ours) == 0 &&
           ours.st_nlink > 0 && !rpc_peer_answers(path);
}

bool rpc_share_is_lost(void)
{
    bool lost = false;
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED && !lost; i++)
        lost = is_lost(i);
    pthread_mutex_unlock(&owned.lock);
    return lost;
}

void rpc_share_restore(void)
{
    char aside[MAX_UNIX_PATH + 64];
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (is_lost(i) && find_aside(owned.files[i].path, owned.files[i].fd, aside, sizeof(aside)))
            (void)rename(aside, owned.files[i].path);
    pthread_mutex_unlock(&owned.lock);
}

/* Under the lock of `owned`: removes names under which a killed successor kept this file. */
static void remove_asides(int i)
{
    char aside[MAX_UNIX_PATH + 64];
    bool removed = true;
    while (removed && owned.files[i].fd >= 0 &&
           find_aside(owned.files[i].path, owned.files[i].fd, aside, sizeof(aside)))
        removed = syscall(SYS_unlinkat, AT_FDCWD, aside, 0) == 0;
}

void rpc_share_forget(const char *path)
{
    if (!restored_other(path))
        unlink(path);
    pthread_mutex_lock(&owned.lock);
    for (int i = 0; i < MAX_OWNED; i++)
        if (owned.files[i].path == path) {
            remove_asides(i);
            if (owned.files[i].fd >= 0)
                close(owned.files[i].fd);
            owned.files[i].path = NULL;
        }
    pthread_mutex_unlock(&owned.lock);
}

int rpc_guard_unlink(const char *path)
{
    if (is_anothers(path))
        return 0;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
