/* fault_disk.h: a failing disk for programs with an SQLite database. A VFS over the real VFS counts
 * the operations that reach the disk and lets the N-th fail. A model knows what a power cut leaves.
 * All files lie below one folder. Their bytes are the program's view; the model knows which bytes
 * are synced (durable) and which are not (pending).
 *
 * Modelled: sectors of 512 bytes are written whole or not at all, in any order, until the file is
 * synced. Names (created, removed, renamed) become durable in order when their folder is synced.
 * Before the sync, a prefix of these changes is durable. After a failed sync, pending bytes are
 * durable or lost by chance. The next sync does not write them (as in Linux). Not modelled:
 * folders that vanish, a disk that lies about syncs.
 *
 * The linker redirects rename(), unlink(), fsync() and pwrite() of the code under test (--wrap).
 * Bytes that pwrite() writes replace existing bytes and need no room. Real syncs are left out: the
 * model is the disk. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    FAULT_EIO,       /* the operation does nothing and returns EIO */
    FAULT_FULL,      /* writes find no room; syncs and renames still work */
    FAULT_SYNC_FULL, /* a sync finds no room, as with delayed allocation or a quota */
    FAULT_TORN, /* a write is done in part, then EIO; a sync, name or read fails as with FAULT_EIO
                 */
    FAULT_READ, /* only reads are counted; they fail with EIO */
    FAULT_CUT,  /* the power is off: every operation fails until fault_disk_cut() */
};

/* Becomes SQLite's default VFS, and copies `folder`. All files in the folder count as durable. */
void fault_disk_begin(const char *folder, uint64_t seed);
void fault_disk_end(void);

/* Counts operations from 1 again. The at-th change (or read) and the next n_times - 1 get `fault`.
 */
void fault_disk_plan(enum fault fault, uint64_t at, uint64_t n_times);
/* Operations since the plan was set, and true if the fault has happened. */
uint64_t fault_disk_n(void);
bool fault_disk_struck(void);

/* The power comes back: the folder has what was durable and a random part of the rest. No database
 * may be open. */
void fault_disk_cut(void);

/* Returns a random number below n from the seed, for tests that plan faults. */
uint64_t fault_disk_random(uint64_t n);
