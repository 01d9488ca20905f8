#include "base/system/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/beneath.h"

struct source {
    int fd;
    char *name;
    struct source_stat stat;
};

static void fill_stat(const struct stat *st, struct source_stat *out)
{
    out->size_bytes = (uint64_t)st->st_size;
    out->inode = st->st_ino;
    out->mtime_ns = (int64_t)st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int source_open(const char *path, struct source **out_source, struct error *err)
{
    const char *name = base_name(path);
    /* O_NONBLOCK so that opening a FIFO returns instead of waiting for a writer. */
    int fd;
    if (beneath_open_marked(path, O_RDONLY | O_NONBLOCK, name, &fd, err) != 0)
        return err->status;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int rc = error_errno(err, errno, "%s", name);
        close(fd);
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        error_set(err, STATUS_INVALID_ARGUMENT, "%s is a %s, not a file: give %s", name,
                  S_ISDIR(st.st_mode) ? "folder" : "pipe, socket or device",
                  S_ISDIR(st.st_mode) ? "the path of the model file in it" : "a model file");
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    struct source *source = calloc(1, sizeof(*source));
    char *copy = strdup(name);
    if (!source || !copy) {
        close(fd);
        free(source);
        free(copy);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", name);
    }
    source->fd = fd;
    source->name = copy;
    fill_stat(&st, &source->stat);
    *out_source = source;
    return 0;
}

void source_close(struct source *source)
{
    if (!source)
        return;
    close(source->fd);
    free(source->name);
    free(source);
}

uint64_t source_size(const struct source *source)
{
    return source->stat.size_bytes;
}

const char *source_name(const struct source *source)
{
    return source->name;
}

int source_read(struct source *source, uint64_t offset, void *dst, size_t n_bytes,
                struct error *err)
{
    uint64_t size = source->stat.size_bytes;
    if (offset > size || n_bytes > size - offset)
        return error_set(err, STATUS_OUT_OF_RANGE,
                         "%s: %zu bytes at offset %" PRIu64 " end after the file's %" PRIu64
                         " bytes",
                         source->name, n_bytes, offset, size);
    unsigned char *out = dst;
    while (n_bytes) {
        ssize_t n = pread(source->fd, out, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, errno, "%s: read at offset %" PRIu64, source->name, offset);
        if (n == 0) {
            error_set(err, STATUS_DATA_LOSS,
                      "%s: the file became shorter while it was read (offset %" PRIu64 ")",
                      source->name, offset);
            return error_reason(err, REASON_MODEL_FILE_CHANGED);
        }
        out += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

void source_drop(struct source *source, uint64_t offset, uint64_t n_bytes)
{
    /* The kernel drops whole pages only. The first page also ends the range before, so it goes too;
     * the last page goes with the next range. */
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    posix_fadvise(source->fd, (off_t)(offset - before), (off_t)(n_bytes + before),
                  POSIX_FADV_DONTNEED);
}

int source_check(struct source *source, struct error *err)
{
    struct stat st;
    struct source_stat now;
    if (fstat(source->fd, &st) != 0)
        return error_errno(err, errno, "%s", source->name);
    fill_stat(&st, &now);
    if (now.size_bytes == source->stat.size_bytes && now.mtime_ns == source->stat.mtime_ns &&
        now.inode == source->stat.inode)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "%s: the file changed while it was being read",
              source->name);
    return error_reason(err, REASON_MODEL_FILE_CHANGED);
}

void source_stat(const struct source *source, struct source_stat *out_stat)
{
    *out_stat = source->stat;
}
