/* Blocks of layers with a sliding window, or with chunks. These layers have a pool of blocks and
 * block tables of their own. A table has an entry for each block of the sequence, as the table of
 * the other layers has. Entries that no layer of the pool sees any more have no block.
 *
 * The prefix cache knows blocks of the main pool. Beside such a block it may have the window block
 * of the same tokens. A hit of n blocks needs the window blocks that the next token sees; earlier
 * ones are not needed. So a sequence that moves on drops its first window blocks. Blocks before the
 * end of the prompt stay cached, for later hits. So do blocks before the end of a prefix that
 * prompts share. All others are evicted first.
 *
 * The pool has a window for each running sequence, or as many blocks as the main pool. Each held
 * window block then belongs to a held block of the main pool. So the main pool alone decides which
 * sequences have room. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

static void on_evict(void *ctx, uint32_t block)
{
    struct scheduler_windows *windows = ctx;
    if (windows->owner_of[block] != KV_BLOCK_NONE)
        windows->block_of[windows->owner_of[block]] = KV_BLOCK_NONE;
    windows->owner_of[block] = KV_BLOCK_NONE;
}

int scheduler_windows_open(struct scheduler *sched, struct error *err)
{
    struct scheduler_windows *windows = &sched->windows;
    const struct scheduler_config *cfg = &sched->cfg;
    if (!cfg->n_window_blocks)
        return 0;
    if (!cfg->window_reach || cfg->n_window_blocks > cfg->n_blocks)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "scheduler: %u window blocks of %u blocks, windows of %u positions",
                         cfg->n_window_blocks, cfg->n_blocks, cfg->window_reach);
    struct kv_cache_config kv = {
        .n_blocks = cfg->n_window_blocks,
        .n_slots = cfg->max_seqs + cfg->n_host_states,
        .max_blocks_per_seq = cfg->max_blocks_per_seq,
        .max_proven = cfg->n_window_blocks / 4,
        .on_evict = on_evict,
        .ctx = windows,
    };
    windows->block_of = malloc(cfg->n_blocks * sizeof(*windows->block_of));
    windows->owner_of = malloc(cfg->n_window_blocks * sizeof(*windows->owner_of));
    if (!windows->block_of || !windows->owner_of)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u blocks", cfg->n_blocks);
    for (uint32_t i = 0; i < cfg->n_blocks; i++)
        windows->block_of[i] = KV_BLOCK_NONE;
    for (uint32_t i = 0; i < cfg->n_window_blocks; i++)
        windows->owner_of[i] = KV_BLOCK_NONE;
    return kv_cache_create(&kv, &windows->kv, err);
}

void scheduler_windows_close(struct scheduler *sched)
{
    kv_cache_destroy(sched->windows.kv);
    free(sched->windows.block_of);
    free(sched->windows.owner_of);
}

/* The first block that the token at position `at` sees. A chunk begins at a multiple of its length.
 */
static uint32_t first_seen(const struct scheduler *sched, uint32_t at)
{
    uint32_t reach = sched->cfg.window_reach;
    uint32_t before = sched->cfg.windows_are_chunks ? at % reach : reach - 1;
    return at > before ? (at - before) / sched->cfg.block_size : 0;
}

/* --- prefix hits --- */

bool scheduler_windows_have(const struct scheduler *sched, uint32_t block)
{
    return !sched->windows.kv || sched->windows.block_of[block] != KV_BLOCK_NONE;
}

bool scheduler_windows_suffice(const struct scheduler *sched, uint32_t n_blocks, uint32_t n_last)
{
    return !sched->windows.kv ||
           n_blocks - n_last <= first_seen(sched, n_blocks * sched->cfg.block_size);
}

void scheduler_windows_attach(struct scheduler *sched, const struct sequence *seq)
{
    const struct scheduler_windows *windows = &sched->windows;
    uint32_t n_blocks = kv_cache_table_len(sched->kv, seq->slot);
    if (!windows->kv || !n_blocks)
        return;
    uint32_t first = first_seen(sched, n_blocks * sched->cfg.block_size);
    kv_cache_skip(windows->kv, seq->slot, first);
    for (uint32_t i = first; i < n_blocks; i++)
        kv_cache_attach(windows->kv, seq->slot,
                        windows->block_of[kv_cache_table(sched->kv, seq->slot)[i]]);
}

void scheduler_windows_record(struct scheduler *sched, const struct sequence *seq, uint32_t i,
                              uint32_t known)
{
    struct scheduler_windows *windows = &sched->windows;
    if (!windows->kv || i < kv_cache_front(windows->kv, seq->slot))
        return;
    uint32_t own = kv_cache_table(windows->kv, seq->slot)[i];
    if (windows->block_of[known] != KV_BLOCK_NONE) {
        kv_cache_replace(windows->kv, seq->slot, i, windows->block_of[known]);
    } else if (windows->owner_of[own] == KV_BLOCK_NONE) {
        windows->block_of[known] = own;
        windows->owner_of[own] = known;
        kv_cache_keep(windows->kv, own);
    }
}

void scheduler_windows_forget(struct scheduler *sched, uint32_t block)
{
    struct scheduler_windows *windows = &sched->windows;
    uint32_t own = windows->kv ? windows->block_of[block] : KV_BLOCK_NONE;
    if (own == KV_BLOCK_NONE)
        return;
    windows->block_of[block] = windows->owner_of[own] = KV_BLOCK_NONE;
    kv_cache_forget(windows->kv, own);
}

/* True if a hit at the end of the prompt, or of a shared prefix, needs window block i. The same
 * prompt can use all blocks but that of its last token. A longer prompt can use that block, too.
 */
static bool is_needed(const struct scheduler *sched, const struct sequence *seq, uint32_t i)
{
    uint32_t bs = sched->cfg.block_size, n_prompt = seq->request->n_prompt;
    uint32_t end = (n_prompt - 1) / bs, shared = seq->snapshot_block;
    return (i >= first_seen(sched, end * bs) && i < n_prompt / bs) ||
           (i >= first_seen(sched, shared * bs) && i < shared);
}

void scheduler_windows_pass(struct scheduler *sched, const struct sequence *seq)
{
    struct kv_cache *kv = sched->windows.kv;
    uint32_t first = kv ? first_seen(sched, seq->n_computed) : 0;
    while (kv && kv_cache_front(kv, seq->slot) < first)
        kv_cache_drop_front(kv, seq->slot, !is_needed(sched, seq, kv_cache_front(kv, seq->slot)));
}

/* --- blocks of a sequence --- */

bool scheduler_windows_grow(struct scheduler *sched, const struct sequence *seq)
{
    return !sched->windows.kv || kv_cache_grow(sched->windows.kv, seq->slot);
}

bool scheduler_windows_make_writable(struct scheduler *sched, const struct sequence *seq,
                                     uint32_t i, struct kv_copy *out_copy)
{
    *out_copy = (struct kv_copy){KV_BLOCK_NONE, KV_BLOCK_NONE, true};
    return !sched->windows.kv ||
           kv_cache_make_writable(sched->windows.kv, seq->slot, i, &out_copy->from, &out_copy->to);
}

void scheduler_windows_trim(struct scheduler *sched, const struct sequence *seq, uint32_t n)
{
    if (sched->windows.kv)
        kv_cache_trim(sched->windows.kv, seq->slot, n);
}

void scheduler_windows_clear(struct scheduler *sched, uint32_t slot)
{
    if (sched->windows.kv)
        kv_cache_clear(sched->windows.kv, slot);
}

void scheduler_windows_move(struct scheduler *sched, uint32_t from, uint32_t to)
{
    if (sched->windows.kv)
        kv_cache_move(sched->windows.kv, from, to);
}

bool scheduler_windows_can_fork(const struct scheduler *sched, const struct sequence *leader,
                                uint32_t at)
{
    return !sched->windows.kv ||
           kv_cache_front(sched->windows.kv, leader->slot) <= first_seen(sched, at);
}

void scheduler_windows_fork(struct scheduler *sched, const struct sequence *leader,
                            const struct sequence *seq, uint32_t n)
{
    if (sched->windows.kv)
        kv_cache_share(sched->windows.kv, leader->slot, seq->slot, n);
}

/* --- a step --- */

void scheduler_windows_emit(const struct scheduler *sched, const struct sequence *seq,
                            struct step_batch *b, uint32_t s)
{
    const struct kv_cache *kv = sched->windows.kv;
    if (!kv)
        return;
    const uint32_t *table = kv_cache_table(kv, seq->slot);
    uint32_t front = kv_cache_front(kv, seq->slot), n = kv_cache_table_len(kv, seq->slot);
    uint32_t *to = b->window_tables + (size_t)s * b->limits.max_blocks_per_seq;
    for (uint32_t i = 0; i < front; i++)
        to[i] = table[front];
    memcpy(to + front, table + front, (n - front) * sizeof(*to));
}

uint32_t scheduler_windows_slot(const struct scheduler *sched, const struct sequence *seq,
                                uint32_t at)
{
    uint32_t bs = sched->cfg.block_size;
    return sched->windows.kv ? kv_cache_table(sched->windows.kv, seq->slot)[at / bs] * bs + at % bs
                             : 0;
}
