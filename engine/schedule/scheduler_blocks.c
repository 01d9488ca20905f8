#include <assert.h>

#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

void scheduler_blocks_release(struct scheduler *sched, struct sequence *seq)
{
    kv_cache_clear(sched->kv, seq->slot);
    scheduler_windows_clear(sched, seq->slot);
    scheduler_states_release(sched, seq);
    draft_cut(seq->draft, 0);
    seq->n_computed = 0;
    seq->begun = false;
    seq->n_hashed = 0;
    seq->chain_node = PREFIX_ROOT;
}

/* --- longrope --- */

bool scheduler_blocks_want_long(const struct scheduler *sched, const struct sequence *seq)
{
    const struct request *r = seq->request;
    bool scores = r->prompt_logprobs && r->n_scored < r->n_prompt;
    return scheduler_is_long(&sched->cfg, scores ? r->n_prompt : sequence_n_tokens(seq));
}

void scheduler_blocks_cross(struct scheduler *sched)
{
    for (uint32_t i = 0; sched->cfg.long_rope_after && i < sched->n_running; i++) {
        struct sequence *seq = sched->running[i];
        if (!seq->n_computed || seq->n_rows ||
            seq->is_long == scheduler_blocks_want_long(sched, seq))
            continue;
        scheduler_blocks_release(sched, seq);
        sched->n_rope_crossings++;
        seq->begun = true; /* no new start: its cached tokens are not counted again */
    }
}

static uint64_t root_of(bool is_long)
{
    return is_long ? PREFIX_ROOT_LONG : PREFIX_ROOT;
}

/* --- preemption --- */

/* Blocks that other sequences hold too stay in memory: the prefix cache finds them again. */
uint32_t scheduler_lost_tokens(const struct scheduler *sched, const struct sequence *seq)
{
    const uint32_t *table = kv_cache_table(sched->kv, seq->slot);
    uint32_t n = kv_cache_table_len(sched->kv, seq->slot), kept = 0;
    while (sched->prefix && kept < n && kept < seq->n_hashed &&
           kv_cache_n_refs(sched->kv, table[kept]) > 1)
        kept++;
    while (sched->states && kept &&
           !scheduler_states_has_snapshot(sched, prefix_cache_node(sched->prefix, table[kept - 1])))
        kept--; /* the sequence would start again from a snapshot */
    return seq->n_computed - kept * sched->cfg.block_size;
}

/* Order of victims: lowest priority; then sequences that free a block; then least lost work; then
 * latest arrival. */
static bool is_better_victim(const struct scheduler *sched, const struct sequence *a,
                             const struct sequence *b)
{
    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    bool a_frees = kv_cache_n_exclusive(sched->kv, a->slot) > 0;
    bool b_frees = kv_cache_n_exclusive(sched->kv, b->slot) > 0;
    if (a_frees != b_frees)
        return a_frees;
    uint32_t a_lost = scheduler_lost_tokens(sched, a), b_lost = scheduler_lost_tokens(sched, b);
    if (a_lost != b_lost)
        return a_lost < b_lost;
    return a->request->arrival > b->request->arrival ||
           (a->request->arrival == b->request->arrival && a->choice > b->choice);
}

static void preempt(struct scheduler *sched, struct sequence *victim)
{
    scheduler_blocks_release(sched, victim);
    victim->request->n_preemptions++;
    sched->n_preemptions++;
}

/* The cheapest sequence to preempt, or NULL. Not `spared`, and none with rows in this step or one
 * in flight. */
static struct sequence *find_victim(const struct scheduler *sched, const struct sequence *spared)
{
    struct sequence *victim = NULL;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct sequence *seq = sched->running[i];
        if (seq == spared || seq->n_rows || !kv_cache_table_len(sched->kv, seq->slot))
            continue;
        if (!victim || is_better_victim(sched, seq, victim))
            victim = seq;
    }
    return victim;
}

/* The block that the sequence's next token is written to, or KV_BLOCK_NONE. */
static uint32_t write_block(const struct scheduler *sched, const struct sequence *seq)
{
    uint32_t i = seq->n_computed / sched->cfg.block_size;
    if (i >= kv_cache_table_len(sched->kv, seq->slot))
        return KV_BLOCK_NONE;
    return kv_cache_table(sched->kv, seq->slot)[i];
}

/* True if the next token of seqs[i] takes a new block. Choices of one request may share a block,
 * and every writer but the last copies the block. The writers before this one are in seqs. */
static bool takes_block(const struct scheduler *sched, struct sequence *const *seqs, uint32_t i)
{
    const struct request *r = seqs[i]->request;
    uint32_t block = write_block(sched, seqs[i]), n_before = 0;
    if (block == KV_BLOCK_NONE)
        return true;
    for (uint32_t k = 0; r->n_choices > 1 && k < i; k++)
        n_before += seqs[k]->request == r && write_block(sched, seqs[k]) == block;
    return kv_cache_n_refs(sched->kv, block) > 1 + n_before;
}

/* The first sequence with blocks that may run. This sequence is never preempted for others, so that
 * some sequence always makes progress. */
static const struct sequence *first_runner(const struct scheduler *sched)
{
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct sequence *seq = sched->running[i];
        if (seq->state == SEQUENCE_RUNNING && !seq->request->paused &&
            kv_cache_table_len(sched->kv, seq->slot))
            return seq;
    }
    return NULL;
}

uint32_t scheduler_blocks_make_room(struct scheduler *sched, struct sequence **seqs, uint32_t n)
{
    const struct sequence *spared = first_runner(sched);
    for (;;) {
        uint32_t needed = 0, n_kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (kv_cache_table_len(sched->kv, seqs[i]->slot))
                seqs[n_kept++] = seqs[i];
        n = n_kept;
        for (uint32_t i = 0; i < n; i++)
            needed += takes_block(sched, seqs, i);
        if (needed <= kv_cache_n_free(sched->kv))
            return n;
        if (scheduler_moves_give_blocks(sched))
            continue;
        struct sequence *victim = find_victim(sched, spared);
        if (!victim)
            return n;
        preempt(sched, victim);
    }
}

/* Preempts one victim for `seq`. Returns false if there is no victim. */
static bool preempt_for(struct scheduler *sched, const struct sequence *seq)
{
    struct sequence *victim = find_victim(sched, seq);
    if (victim)
        preempt(sched, victim);
    return victim != NULL;
}

/* Makes the sequence's block i writable. Shared blocks are copied before the step. Returns false,
 * with some copies noted, if no block is free. */
static bool make_writable(struct scheduler *sched, const struct sequence *seq, uint32_t i)
{
    struct kv_copy copy = {.is_window = false};
    if (!kv_cache_make_writable(sched->kv, seq->slot, i, &copy.from, &copy.to))
        return false;
    if (copy.to != KV_BLOCK_NONE) {
        sched->copies[sched->plan.n_copies++] = copy;
        /* the draft model's K and V are not copied */
        draft_cut(seq->draft, i * sched->cfg.block_size);
    }
    if (!scheduler_windows_make_writable(sched, seq, i, &copy))
        return false;
    if (copy.to != KV_BLOCK_NONE)
        sched->copies[sched->plan.n_copies++] = copy;
    return true;
}

/* Appends a block to each table of the sequence. Returns false, with both unchanged, if no block is
 * free. */
static bool grow(struct scheduler *sched, const struct sequence *seq)
{
    uint32_t n = kv_cache_table_len(sched->kv, seq->slot);
    if (!kv_cache_grow(sched->kv, seq->slot))
        return false;
    if (scheduler_windows_grow(sched, seq))
        return true;
    kv_cache_trim(sched->kv, seq->slot, n);
    return false;
}

uint32_t scheduler_blocks_reserve(struct scheduler *sched, struct sequence *seq, uint32_t n_rows,
                                  bool force)
{
    uint32_t bs = sched->cfg.block_size, first = seq->n_computed / bs;
    uint32_t last = (seq->n_computed + n_rows - 1) / bs;
    if (first < kv_cache_table_len(sched->kv, seq->slot))
        while (!make_writable(sched, seq, first))
            if (!scheduler_moves_give_blocks(sched) && (!force || !preempt_for(sched, seq)))
                return 0;
    while (kv_cache_table_len(sched->kv, seq->slot) <= last)
        if (!grow(sched, seq) && !scheduler_moves_give_blocks(sched) &&
            (!force || !preempt_for(sched, seq)))
            break;
    uint32_t room = kv_cache_table_len(sched->kv, seq->slot) * bs;
    if (room <= seq->n_computed)
        return 0;
    return room - seq->n_computed < n_rows ? room - seq->n_computed : n_rows;
}

void scheduler_blocks_trim(struct scheduler *sched, const struct sequence *seq, uint32_t n)
{
    kv_cache_trim(sched->kv, seq->slot, n);
    scheduler_windows_trim(sched, seq, n);
}

/* Token ids of the sequence's block i_block: [block_size], in the request, the sequence or the
 * scratch. */
static const uint32_t *tokens_of_block(struct scheduler *sched, const struct sequence *seq,
                                       uint32_t i_block)
{
    uint32_t begin = i_block * sched->cfg.block_size;
    const struct request *r = seq->request;
    if (begin + sched->cfg.block_size <= r->n_prompt)
        return r->prompt + begin;
    if (begin >= r->n_prompt)
        return seq->ids + (begin - r->n_prompt);
    for (uint32_t i = 0; i < sched->cfg.block_size; i++)
        sched->block_tokens[i] = sequence_token(seq, begin + i);
    return sched->block_tokens;
}

/* True if rows before `end` still have to give log-probabilities: these rows must be computed. */
static bool wants_scores_before(const struct request *r, uint32_t end)
{
    return r->prompt_logprobs && r->n_scored < r->n_prompt && end >= r->n_scored;
}

/* The next cached block of the sequence's tokens, or KV_BLOCK_NONE. The last token is always
 * computed, because its logits are needed. */
static uint32_t next_hit(struct scheduler *sched, const struct sequence *seq, uint32_t i_block,
                         uint64_t *node)
{
    uint32_t end = (i_block + 1) * sched->cfg.block_size;
    if (!sched->prefix || end >= sequence_n_tokens(seq) ||
        (!sched->cfg.share_generated && end > seq->request->n_prompt) ||
        wants_scores_before(seq->request, end) ||
        (end >= seq->request->n_prompt && scheduler_states_wait_for(sched, seq)))
        return KV_BLOCK_NONE;
    return prefix_cache_find(sched->prefix, &seq->request->salt, *node,
                             tokens_of_block(sched, seq, i_block), node);
}

/* The prefix hit of a sequence. */
struct hit {
    uint32_t n_blocks; /* cached blocks that end where a state and a window are cached, too */
    uint32_t n_found;  /* all cached blocks */
};

static struct hit find_hit(struct scheduler *sched, const struct sequence *seq)
{
    struct hit hit = {0};
    uint64_t node = root_of(scheduler_blocks_want_long(sched, seq));
    uint32_t block, n_windows = 0; /* the last blocks that have window blocks */
    while ((block = next_hit(sched, seq, hit.n_found, &node)) != KV_BLOCK_NONE) {
        hit.n_found++;
        n_windows = scheduler_windows_have(sched, block) ? n_windows + 1 : 0;
        if ((!sched->states || scheduler_states_has_snapshot(sched, node)) &&
            scheduler_windows_suffice(sched, hit.n_found, n_windows))
            hit.n_blocks = hit.n_found;
    }
    return hit;
}

/* True if not every cached block ends a hit. */
static bool bounds_hits(const struct scheduler *sched)
{
    return sched->states || sched->windows.kv;
}

uint32_t scheduler_blocks_missing(struct scheduler *sched, const struct sequence *seq,
                                  uint32_t spare)
{
    uint32_t bs = sched->cfg.block_size, n_hits = 0, n_hits_free = 0, block;
    uint64_t node = root_of(scheduler_blocks_want_long(sched, seq));
    uint32_t most = bounds_hits(sched) ? find_hit(sched, seq).n_blocks : UINT32_MAX;
    while (n_hits < most && (block = next_hit(sched, seq, n_hits, &node)) != KV_BLOCK_NONE) {
        n_hits++;
        n_hits_free += kv_cache_n_refs(sched->kv, block) == 0;
    }
    uint32_t n_blocks = (sequence_n_tokens(seq) + bs - 1) / bs;
    uint32_t wanted = n_blocks - n_hits + n_hits_free + spare;
    uint32_t n_free = kv_cache_n_free(sched->kv) + scheduler_moves_n_blocks(sched, seq);
    if (scheduler_moves_has(sched, seq))
        wanted = n_blocks + spare - scheduler_moves_table_len(sched, seq);
    return wanted > n_free ? wanted - n_free : 0;
}

void scheduler_blocks_attach_prefix(struct scheduler *sched, struct sequence *seq)
{
    uint32_t block;
    seq->is_long = scheduler_blocks_want_long(sched, seq);
    uint64_t node = seq->chain_node = root_of(seq->is_long);
    struct hit hit = {.n_blocks = UINT32_MAX};
    if (bounds_hits(sched)) {
        hit = find_hit(sched, seq);
        seq->snapshot_block = hit.n_found > hit.n_blocks ? hit.n_found : 0;
    }
    while (seq->n_hashed < hit.n_blocks &&
           (block = next_hit(sched, seq, seq->n_hashed, &node)) != KV_BLOCK_NONE) {
        kv_cache_attach(sched->kv, seq->slot, block);
        seq->n_hashed++;
        seq->chain_node = node;
    }
    scheduler_windows_attach(sched, seq);
    seq->n_computed = seq->n_hashed * sched->cfg.block_size;
    if (sched->states && seq->n_hashed)
        scheduler_states_attach(sched, seq, node);
}

void scheduler_blocks_record(struct scheduler *sched, struct sequence *seq)
{
    uint32_t bs = sched->cfg.block_size;
    const uint32_t *table = kv_cache_table(sched->kv, seq->slot);
    while (sched->prefix && (seq->n_hashed + 1) * bs <= seq->n_computed) {
        uint32_t known, own = table[seq->n_hashed];
        if (!sched->cfg.share_generated && (seq->n_hashed + 1) * bs > seq->request->n_prompt)
            return;
        seq->chain_node =
            prefix_cache_insert(sched->prefix, &seq->request->salt, seq->chain_node,
                                tokens_of_block(sched, seq, seq->n_hashed), own, &known);
        if (known == own) {
            kv_cache_keep(sched->kv, own);
        } else { /* another sequence computed the same block: keep one copy, chain on it */
            kv_cache_replace(sched->kv, seq->slot, seq->n_hashed, known);
            draft_cut(seq->draft, seq->n_hashed * bs);
        }
        scheduler_windows_record(sched, seq, seq->n_hashed, known);
        seq->n_hashed++;
    }
}

void scheduler_blocks_fork(struct scheduler *sched, const struct sequence *leader,
                           struct sequence *seq)
{
    uint32_t bs = sched->cfg.block_size, n_prompt = seq->request->n_prompt;
    /* If the leader found the prompt's last token in the cache, there were no logits to draw from.
     * Then a choice without tokens computes that token again. */
    seq->n_computed = seq->n_ids || seq->samples ? n_prompt : n_prompt - 1;
    seq->begun = true;
    seq->n_hashed = 0;
    seq->is_long = leader->is_long;
    seq->chain_node = root_of(seq->is_long);
    if (!scheduler_windows_can_fork(sched, leader, seq->n_computed) ||
        !scheduler_states_fork(sched, leader, seq)) {
        seq->n_computed = 0; /* the choice starts from cached blocks on its own */
        return;
    }
    uint32_t n_blocks = (seq->n_computed + bs - 1) / bs;
    kv_cache_share(sched->kv, leader->slot, seq->slot, n_blocks);
    scheduler_windows_fork(sched, leader, seq, n_blocks);
}
