/* source.h: reads byte ranges of a checkpoint file. Callers do not see how the bytes are read
 * (pread today). Any thread may read; a single owner opens and closes. A file that changes during a
 * load must not become wrong weights. So source_open() notes size, mtime and inode, and
 * source_check() compares them. Loaders call source_check() after the last read. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct source;

/* Opens a regular file read-only (symbolic links are followed; FIFOs, devices and directories are
 * refused). "ROOT/./REST" is opened strictly below ROOT, with links that stay there (beneath.h).
 * *out_source is owned. Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular
 * file). */
int source_open(const char *path, struct source **out_source, struct error *err);
void source_close(struct source *source);

uint64_t source_size(const struct source *source);
/* Returns the last path component, for messages. Borrowed until close. */
const char *source_name(const struct source *source);

/* Reads exactly n_bytes at `offset` into dst. OUT_OF_RANGE if the range exceeds the file (nothing
 * is read), DATA_LOSS if the file became shorter, INTERNAL on I/O errors. */
int source_read(struct source *source, uint64_t offset, void *dst, size_t n_bytes,
                struct error *err);

/* Tells the kernel to drop the range's pages from its cache (they are clean: dropping is free). */
void source_drop(struct source *source, uint64_t offset, uint64_t n_bytes);

/* FAILED_PRECONDITION (reason MODEL_FILE_CHANGED) if size, mtime or inode differ from those at
 * open. */
int source_check(struct source *source, struct error *err);

/* Identity of the open file, for receipts and for pinning versions. */
struct source_stat {
    uint64_t size_bytes;
    uint64_t inode;
    int64_t mtime_ns;
};
void source_stat(const struct source *source, struct source_stat *out_stat);
