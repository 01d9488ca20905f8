/* fault_disk.h: a disk that fails, for programs that keep an SQLite database: a VFS over the real
 * one that counts what would reach the disk and makes the N-th of it fail, and a model of what a
 * power cut leaves. Files lie below one folder; their bytes are what the programs see, and beside
 * them the model has what has been synced (durable) and what has not (pending).
 *
 * Modelled: sectors of 512 bytes that are written whole or not at all, in any order, until the file
 * is synced; names of files (created, removed, renamed) that are durable in the order they were
 * changed, once their folder is synced, and before that a beginning of them; a failed sync, after
 * which what was pending is durable or lost by chance, and is not written by the next sync (as
 * Linux does). Not modelled: folders that vanish, a disk that lies about syncs.
 *
 * rename(), unlink(), fsync() and pwrite() of the code under test are taken by the linker (--wrap);
 * what pwrite() writes lies over something and needs no room. Real
 * syncs are left out: the model is the disk. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    FAULT_EIO,       /* nothing is done, and EIO */
    FAULT_FULL,      /* a write has no room; syncs and names go on */
    FAULT_SYNC_FULL, /* a sync finds that there is no room (delayed allocation, quota) */
    FAULT_TORN, /* a write is done in part, then EIO; a sync, name or read fails as with FAULT_EIO
                 */
    FAULT_READ, /* reads are counted, and fail with EIO */
    FAULT_CUT,  /* the power is off: nothing works until fault_disk_cut() */
};

/* Makes itself SQLite's default VFS; `folder` is copied. All that is in the folder is durable. */
void fault_disk_begin(const char *folder, uint64_t seed);
void fault_disk_end(void);

/* Counts from 1 again. The at-th change (or read) and the n_times - 1 after it suffer `fault`. */
void fault_disk_plan(enum fault fault, uint64_t at, uint64_t n_times);
/* Counted since then, and whether the fault has come. */
uint64_t fault_disk_n(void);
bool fault_disk_struck(void);

/* The power comes back: the folder has what was durable and a random part of the rest. No database
 * may be open. */
void fault_disk_cut(void);

/* The random numbers of the seed, for whoever plans. Below n. */
uint64_t fault_disk_random(uint64_t n);
