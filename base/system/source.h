/* source.h: where checkpoint bytes come from. Readers ask for ranges and never see how they are
 * fetched (pread today; direct I/O or a remote store fit behind the same calls). Any thread may
 * read; open and close belong to one owner. A file that changes under us must never become wrong
 * weights: size, mtime and inode are noted at open and compared by source_check(), which loaders
 * call after the last read. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct source;

/* Opens a regular file read-only (symbolic links are followed; FIFOs, devices and directories are
 * refused). "ROOT/./REST" is opened below ROOT and nowhere else, over no link (beneath.h).
 * *out_source is owned. Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular
 * file). */
int source_open(const char *path, struct source **out_source, struct error *err);
void source_close(struct source *source);

uint64_t source_size(const struct source *source);
/* Last path component, for messages. Borrowed until close. */
const char *source_name(const struct source *source);

/* Reads exactly n_bytes at `offset` into dst. OUT_OF_RANGE where the range leaves the file (nothing
 * is read), DATA_LOSS where the file became shorter, INTERNAL on I/O errors. */
int source_read(struct source *source, uint64_t offset, void *dst, size_t n_bytes,
                struct error *err);

/* Tells the kernel that the range's pages are not needed again (they are clean: dropping is free).
 */
void source_drop(struct source *source, uint64_t offset, uint64_t n_bytes);

/* FAILED_PRECONDITION (reason MODEL_FILE_CHANGED) where size, mtime or inode differ from those at
 * open. */
int source_check(struct source *source, struct error *err);

/* Identity of the open file, for receipts and the pinning of versions. */
struct source_stat {
    uint64_t size_bytes;
    uint64_t inode;
    int64_t mtime_ns;
};
void source_stat(const struct source *source, struct source_stat *out_stat);
