/* Tests the slots of recurrent states. An oracle keeps a hash of salt and tokens in each slot, as
 * an executor keeps states. Before each row it checks the slot that the row reads. The slot must
 * hold the hash of the sequence's tokens before that row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"
#include "tests/unit/engine/support/support_scheduler.h"

enum { MAX_STATES = 64, MAX_HOST = 4, MAX_LIVE = 200 };

/* --- the oracle --- */

static struct {
    uint64_t slots[MAX_STATES]; /* hash of salt and tokens */
    uint64_t host[MAX_HOST];
} oracle;

static uint64_t add_token(uint64_t h, uint32_t token, bool is_long)
{
    h = (h ^ (token + 100000 * is_long)) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

static uint64_t empty_state(const struct sequence *seq)
{
    return seq->request->salt.words[0] ^ 0x5555;
}

/* A token of the sequence, or a drafted one. */
static uint32_t token_at(const struct sequence *seq, uint32_t at)
{
    uint32_t n = sequence_n_tokens(seq);
    return at < n ? sequence_token(seq, at) : seq->draft->ids[at - n];
}

/* The state behind the first n tokens. */
static uint64_t state_after(const struct sequence *seq, uint32_t n)
{
    uint64_t h = empty_state(seq);
    for (uint32_t at = 0; at < n; at++)
        h = add_token(h, token_at(seq, at), seq->is_long);
    return h;
}

/* The state that a sequence's first row reads. */
static uint64_t read_state(const struct sequence *seq, uint32_t slot, uint32_t at)
{
    assert_int_equal(slot == STEP_STATE_NONE, at == 0);
    if (slot == STEP_STATE_NONE)
        return empty_state(seq);
    assert_true(slot < bench.cfg.n_state_slots);
    return oracle.slots[slot];
}

static void move_states(const struct bench *b, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_moves; i++) {
        const struct state_move *move = &plan->moves[i];
        assert_true(move->slot < b->cfg.n_state_slots && move->place < b->cfg.n_host_states);
        if (move->to_host)
            oracle.host[move->place] = oracle.slots[move->slot];
        else
            oracle.slots[move->slot] = oracle.host[move->place];
    }
}

/* Runs a step as an executor does: all sequences read at any time, and write at any time. */
static void run_states(struct bench *b)
{
    const struct step_batch *t = b->batch;
    uint32_t reader[MAX_STATES], writer[MAX_STATES]; /* sequences of the batch, plus 1 */
    uint64_t written[MAX_STATES];
    memset(reader, 0, sizeof(reader));
    memset(writer, 0, sizeof(writer));
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        const struct sequence *seq = b->sched->flights[b->sched->first_flight].scheduled[s];
        uint32_t first = t->seq_start[s], end = t->seq_start[s + 1];
        uint64_t h = read_state(seq, t->state_reads[first], t->positions[first]);
        assert_true(h == state_after(seq, t->positions[first]));
        if (t->state_reads[first] != STEP_STATE_NONE)
            reader[t->state_reads[first]] |= 1u << s;
        assert_true(t->state_writes[end - 1] != STEP_STATE_NONE);
        for (uint32_t row = first; row < end; row++) {
            uint32_t slot = t->state_writes[row];
            assert_true(row == first || t->state_reads[row] == STEP_STATE_PREVIOUS);
            assert_int_equal(t->token_ids[row], token_at(seq, t->positions[row]));
            h = add_token(h, t->token_ids[row], t->rope_tables[row]);
            if (slot == STEP_STATE_NONE)
                continue;
            assert_true(slot < b->cfg.n_state_slots);
            assert_int_equal(writer[slot], 0); /* no slot is written twice */
            writer[slot] = s + 1;
            written[slot] = h;
        }
    }
    for (uint32_t i = 0; i < b->cfg.n_state_slots; i++) {
        /* a slot that is read is written by its only reader, or by no sequence */
        assert_true(!writer[i] || !reader[i] || reader[i] == 1u << (writer[i] - 1));
        if (writer[i])
            oracle.slots[i] = written[i];
    }
}

/* Between steps each sequence holds the state behind its computed tokens. Each snapshot that its
 * blocks lead to is the state behind that block. */
static void check_states(const struct bench *b)
{
    const struct scheduler *sched = b->sched;
    uint32_t n_held = 0, n_snapshots = 0;
    bool held[MAX_STATES] = {false};
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct sequence *seq = sched->running[i];
        const uint32_t *table = kv_cache_table(sched->kv, seq->slot);
        assert_int_equal(seq->state_slot == STATE_SLOT_NONE, seq->n_computed == 0);
        if (!seq->n_computed)
            continue;
        assert_true(oracle.slots[seq->state_slot] == state_after(seq, seq->n_computed));
        n_held += !held[seq->state_slot];
        held[seq->state_slot] = true;
        for (uint32_t k = 0; sched->prefix && k < seq->n_hashed; k++) {
            uint64_t node = prefix_cache_node(sched->prefix, table[k]);
            uint32_t slot = state_cache_peek(sched->states, node);
            if (slot != STATE_SLOT_NONE)
                assert_true(oracle.slots[slot] == state_after(seq, (k + 1) * BLOCK));
        }
    }
    if (!b->n_flights) /* else steps hold the slots that they write */
        assert_int_equal(state_cache_n_free(sched->states), b->cfg.n_state_slots - n_held);
    for (uint32_t i = 0; sched->prefix && i < b->cfg.n_blocks; i++) {
        uint64_t node = prefix_cache_node(sched->prefix, i);
        n_snapshots += node && state_cache_peek(sched->states, node) != STATE_SLOT_NONE;
    }
    /* no snapshot outlives its block */
    assert_int_equal(state_cache_n_snapshots(sched->states), n_snapshots);
}

static bool step(struct bench *b)
{
    bool ran = bench_step(b);
    check_states(b);
    return ran;
}

static void open_states(struct bench *b, const struct scheduler_config *cfg)
{
    assert_true(cfg->n_state_slots <= MAX_STATES && cfg->max_seqs <= 32);
    bench_open(b, cfg);
    b->on_schedule = run_states;
    b->on_moves = move_states;
    memset(oracle.slots, 0xAA, sizeof(oracle.slots));
}

static void close_states(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_states_used, 0);
    bench_close(b);
}

static const struct scheduler_config few = {.max_rows = 64,
                                            .max_seqs = 8,
                                            .n_blocks = 64,
                                            .prefill_chunk_tokens = 40,
                                            .n_state_slots = 24,
                                            .n_running_states = 8,
                                            .snapshot_blocks = 4,
                                            .prefix_cache = true};

/* Runs until no request is left, and checks the answer of `r`. */
static void finish(struct bench *b, struct request *r)
{
    while (step(b))
        ;
    bench_assert_answer(r, true);
    request_release(r);
}

/* Computed tokens of a lone request that the cache gave. */
static uint32_t cached(struct bench *b, uint32_t seed, uint32_t n_prompt)
{
    struct request *r = bench_make(b, seed, n_prompt, 3, 1, 0, "");
    scheduler_add(b->sched, r);
    while (step(b))
        ;
    uint32_t n = r->n_cached_tokens;
    bench_assert_answer(r, true);
    request_release(r);
    return n;
}

/* --- single rules --- */

/* Blocks behind the last snapshot are no hit, though their K and V are cached. */
static void test_prefix_hit_ends_at_a_snapshot(void **state)
{
    (void)state;
    struct bench *b = &bench;
    open_states(b, &few);
    assert_int_equal(cached(b, 0, 100), 0);  /* snapshots after blocks 4, 8 and 12 */
    assert_int_equal(cached(b, 0, 100), 96); /* the end of the prompt: block 12 */
    /* The first half is common: 50 tokens, so 6 blocks. The deepest snapshot among them is block
     * 4. The second request leaves a snapshot behind block 6 for the third. */
    assert_int_equal(cached(b, 6, 100), 4 * BLOCK);
    assert_int_equal(cached(b, 12, 100), 6 * BLOCK);
    /* another salt shares nothing */
    assert_int_equal(cached(b, 3, 100), 0);
    close_states(b);
}

/* Without regular snapshots the end of a shared prefix still gets one by its second request. */
static void test_third_request_finds_the_end_of_the_shared_prefix(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = few;
    cfg.snapshot_blocks = 0;
    open_states(b, &cfg);
    assert_int_equal(cached(b, 0, 100), 0);
    assert_int_equal(cached(b, 6, 100), 0);
    assert_int_equal(cached(b, 12, 100), 6 * BLOCK);
    close_states(b);
}

/* A snapshot inside a piece costs no piece of its own. */
static void test_pieces_are_not_cut_at_snapshots(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = few;
    struct request *r;
    struct scheduler_stats s;
    cfg.prefill_chunk_tokens = 64;
    cfg.snapshot_blocks = 1;
    open_states(b, &cfg);
    scheduler_add(b->sched, r = bench_make(b, 0, 64, 10, 1, 0, ""));
    assert_true(step(b));
    assert_int_equal(b->plan.n_prefill_rows, 64);
    assert_int_equal(r->choices[0].n_ids, 1);
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_snapshots, 8);
    assert_int_equal(s.n_states_used, 1);
    finish(b, r);
    close_states(b);
}

/* Four choices hold the prompt's state together and part without a copy. With as few slots as
 * sequences some choices wait a step, and no choice waits for ever. */
static void test_choices_share_the_state_of_the_prompt(void **state)
{
    (void)state;
    struct bench *b = &bench;
    for (uint32_t n_slots = 4; n_slots < 9; n_slots++) {
        struct scheduler_config cfg = few;
        struct request *r;
        struct scheduler_stats s;
        cfg.n_state_slots = n_slots;
        cfg.n_running_states = 4;
        open_states(b, &cfg);
        scheduler_add(b->sched, r = bench_make(b, 0, 30, 12, 4, 0, ""));
        assert_true(step(b));
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_states_used, 1);
        for (uint32_t i = 0; i < 3; i++)
            assert_true(step(b));
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_states_used, 4);
        finish(b, r);
        close_states(b);
    }
}

/* More choices than slots of states never start; the engine refuses them at submit. */
static void test_running_states_limit_running_sequences(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = few;
    struct scheduler_stats s;
    struct request *r[3];
    cfg.n_state_slots = cfg.n_running_states = 2;
    open_states(b, &cfg);
    for (uint32_t i = 0; i < 3; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 20, 10, 1, 0, ""));
    assert_true(step(b));
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_used_slots, 2);
    assert_int_equal(s.n_queued, 1);
    while (step(b))
        ;
    for (uint32_t i = 0; i < 3; i++) {
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    close_states(b);
}

static void test_running_states_beyond_the_slots_are_refused(void **state)
{
    (void)state;
    struct scheduler_config cfg = few;
    struct scheduler *sched;
    struct error err;
    cfg.block_size = BLOCK;
    cfg.max_blocks_per_seq = cfg.max_requests = 8;
    cfg.n_running_states = cfg.n_state_slots + 1;
    assert_int_equal(scheduler_create(&cfg, &sched, &err), STATUS_INVALID_ARGUMENT);
    cfg.n_running_states = 0;
    assert_int_equal(scheduler_create(&cfg, &sched, &err), STATUS_INVALID_ARGUMENT);
}

/* Drafts take spare slots only: with none, no draft is made and the answer is the same. */
static void test_drafts_take_spare_slots_only(void **state)
{
    (void)state;
    struct bench *b = &bench;
    for (uint32_t n_spare = 0; n_spare < 14; n_spare++) {
        struct scheduler_config cfg = few;
        struct request *r;
        cfg.n_running_states = 1;
        cfg.n_state_slots = 1 + n_spare;
        cfg.n_draft_rows = 12;
        open_states(b, &cfg);
        b->repeats = true;
        b->limits.draft_tokens = 12;
        scheduler_set_row_cost(b->sched, 1e6f);
        scheduler_add(b->sched, r = bench_make(b, 3, 30, 200, 1, 0, ""));
        finish(b, r);
        if (n_spare)
            assert_true(b->n_drafted > 20 && b->n_accepted > 10);
        else
            assert_int_equal(b->n_drafted, 0);
        close_states(b);
    }
}

/* A request takes the only slot of a request of lower priority, whose state waits in host memory.
 * Returns the prompt rows of all steps since. */
static uint32_t yield_and_return(struct bench *b, int64_t move_ns, uint64_t *out_n_moved)
{
    struct scheduler_config cfg = few;
    struct scheduler_stats s;
    struct request *r[2];
    uint32_t n_rows = 0;
    cfg.n_running_states = 1;
    cfg.n_state_slots = 2;
    cfg.n_host_states = 1;
    cfg.snapshot_blocks = 0;
    open_states(b, &cfg);
    scheduler_set_move_ns(b->sched, move_ns);
    scheduler_add(b->sched, r[0] = bench_make(b, 0, 61, 20, 1, 0, ""));
    while (r[0]->choices[0].n_ids < 12)
        assert_true(step(b));
    scheduler_add(b->sched, r[1] = bench_make(b, 1, 40, 20, 1, 1, ""));
    while (step(b))
        n_rows += b->plan.n_prefill_rows;
    scheduler_get_stats(b->sched, &s);
    *out_n_moved = s.n_moved_out;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(r[i]->n_preemptions, i == 0);
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    close_states(b);
    return n_rows;
}

/* A preempted sequence is moved out if that costs less than to compute its tokens again. */
static void test_preemption_moves_the_state_out_where_that_costs_less(void **state)
{
    (void)state;
    uint64_t n_moved;
    /* its last row comes as a piece of one row */
    assert_int_equal(yield_and_return(&bench, 0, &n_moved), 40 + 1);
    assert_int_equal(n_moved, 1);
    /* from the snapshot behind block 7 if that survives, else from the start */
    assert_true(yield_and_return(&bench, INT64_MAX, &n_moved) >= 40 + 61 + 12 - 56);
    assert_int_equal(n_moved, 0);
}

/* --- random schedules --- */

struct totals {
    uint64_t n_preemptions, n_hits, n_accepted, n_kept, n_crossings, n_evictions, n_replayed;
    uint64_t n_moved;
};

/* A request as a client resumes it: with the tokens of the request that was cut off. */
static struct request *make_resumed(struct bench *b, const struct request *old)
{
    static uint32_t prompt[MAX_BLOCKS];
    struct engine_resume resume[ENGINE_MAX_CHOICES];
    struct engine_request req;
    struct request *r = NULL;
    struct error err;
    engine_request_init(&req);
    memcpy(prompt, old->prompt, old->n_prompt * sizeof(*prompt));
    req.prompt_ids = prompt;
    req.n_prompt_ids = old->n_prompt;
    req.stopping.max_tokens = old->max_tokens;
    req.sampling.n = old->n_choices;
    req.caller = "";
    req.cache_salt = "one";
    for (uint32_t i = 0; i < old->n_choices; i++)
        resume[i] = (struct engine_resume){
            .ids = old->choices[i].ids,
            .n_ids = old->choices[i].n_ids,
            .finished = old->choices[i].n_ids == old->max_tokens,
        };
    req.resume = resume;
    if (request_check(&req, &b->limits, &err) || request_create(&req, &b->limits, &r, &err))
        fail_msg("%s", err.message);
    for (uint32_t i = 0; r && i < r->n_choices; i++)
        if (resume[i].finished)
            r->choices[i].state = SEQUENCE_ENDED;
    return r;
}

static bool has_unfinished(const struct request *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].n_ids < r->max_tokens)
            return true;
    return false;
}

static void disturb(struct bench *b, struct request **all, uint32_t *n)
{
    struct request *r = all[bench_below(*n)];
    if (scheduler_is_in_flight(r))
        bench_settle(b);
    switch (r->state == REQUEST_ENDED ? 1 : bench_below(8)) {
    case 0:
        scheduler_end_sequence(b->sched, &r->choices[bench_below(r->n_choices)]);
        break;
    case 1:
        scheduler_end_request(b->sched, r);
        if (*n < MAX_LIVE && has_unfinished(r) && bench_below(2))
            scheduler_add(b->sched, all[(*n)++] = make_resumed(b, r));
        break;
    case 2:
        scheduler_set_priority(b->sched, r, (int32_t)bench_below(3) - 1);
        break;
    default:
        scheduler_pause(b->sched, r, bench_below(3) == 0);
    }
}

/* A config of `seed`: few slots, few blocks, few rows, in all mixtures. */
static struct scheduler_config random_config(bool *out_drafts)
{
    struct scheduler_config cfg = {.max_rows = 2 + bench_below(60),
                                   .max_seqs = 4 + bench_below(6),
                                   .n_blocks = 16 + bench_below(60),
                                   .prefill_chunk_tokens = 1 + bench_below(64),
                                   .snapshot_blocks = bench_below(5),
                                   .prefix_cache = bench_below(8) > 0};
    cfg.n_running_states = cfg.max_seqs - bench_below(3) * (cfg.max_seqs > 6);
    cfg.n_state_slots = cfg.n_running_states + bench_below(bench_below(2) ? 3 : 40);
    cfg.n_host_states = bench_below(MAX_HOST + 1);
    cfg.long_rope_after = bench_below(4) ? 0 : 40 + bench_below(60);
    cfg.window_reach = 1 + bench_below(40); /* some models have windows, too */
    cfg.windows_are_chunks = bench_below(3) == 0;
    cfg.n_window_blocks = bench_below(2) ? cfg.n_blocks : 0;
    *out_drafts = bench_below(2);
    cfg.n_draft_rows = *out_drafts ? 12 : 0;
    return cfg;
}

static void run_schedule(struct totals *totals, uint32_t max_flights)
{
    static const char *const callers[] = {"ann", "bob", "cid"};
    struct bench *b = &bench;
    static struct request *all[MAX_LIVE];
    struct scheduler_stats s;
    bool drafts;
    uint32_t n = 0, n_most = 4 + bench_below(20), n_seeds = 1 + bench_below(20);
    struct scheduler_config cfg = random_config(&drafts);
    cfg.max_flights = max_flights;
    open_states(b, &cfg);
    b->sched->cfg.share_generated = bench_below(4) > 0;
    b->looks_ahead = !drafts && max_flights == 1;
    b->repeats = drafts;
    b->limits.draft_tokens = drafts ? 6 : 0;
    scheduler_set_row_cost(b->sched, drafts ? 1e6f : 8.0f);
    while (n < n_most || scheduler_any(b->sched)) {
        while (n < n_most && bench_below(3) == 0) {
            uint32_t room = b->limits.context_tokens, n_prompt = 1 + bench_below(110);
            n_prompt = n_prompt < room ? n_prompt : room - 1;
            all[n] = bench_make(b, bench_below(n_seeds), n_prompt, 1 + bench_below(60),
                                bench_below(3) ? 1 : 1 + bench_below(4),
                                (int32_t)bench_below(3) - 1, callers[bench_below(3)]);
            scheduler_add(b->sched, all[n++]);
        }
        if (n && bench_below(6) == 0)
            disturb(b, all, &n);
        if (!step(b) && n >= n_most)
            for (uint32_t i = 0; i < n; i++) {
                assert_true(all[i]->state != REQUEST_ACTIVE || all[i]->paused);
                scheduler_pause(b->sched, all[i], false);
            }
        assert_true(b->n_steps < 20000);
    }
    scheduler_get_stats(b->sched, &s);
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(all[i], false);
        totals->n_replayed += all[i]->choices[0].n_replayed > 0;
        request_release(all[i]);
    }
    totals->n_preemptions += s.n_preemptions;
    totals->n_hits += s.n_snapshot_hits;
    totals->n_evictions += s.n_snapshot_evictions;
    totals->n_moved += s.n_moved_out;
    totals->n_crossings += s.n_rope_crossings;
    totals->n_accepted += b->n_accepted;
    totals->n_kept += b->n_kept;
    close_states(b);
}

/* SLUICE_SCHEDULES in the environment sets the number of schedules. */
static void test_random_schedules_read_the_state_of_their_tokens(void **state)
{
    (void)state;
    const char *text = getenv("SLUICE_SCHEDULES");
    uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 1500;
    struct totals totals = {0};
    for (uint32_t seed = 1; seed <= n; seed++) {
        bench_rng = seed * 2654435761u;
        run_schedule(&totals, 1);
    }
    print_message("%u schedules: %llu snapshots found, %llu moved out, %llu replayed\n", n,
                  (unsigned long long)totals.n_hits, (unsigned long long)totals.n_moved,
                  (unsigned long long)totals.n_replayed);
    assert_true(totals.n_preemptions > n && totals.n_hits > n && totals.n_evictions > n);
    assert_true(totals.n_replayed > n / 8 && totals.n_moved > n / 8);
    assert_true(totals.n_crossings > n / 8 && totals.n_accepted > n && totals.n_kept > n);
}

/* Steps are scheduled while others are in flight. */
static void test_random_schedules_with_steps_in_flight(void **state)
{
    (void)state;
    const char *text = getenv("SLUICE_SCHEDULES");
    uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 1500;
    struct totals totals = {0};
    for (uint32_t seed = 1; seed <= n; seed++) {
        bench_rng = seed * 2654435761u;
        run_schedule(&totals, 2 + seed % 3);
    }
    assert_true(totals.n_preemptions > n && totals.n_hits > n && totals.n_evictions > n);
    assert_true(totals.n_replayed > n / 8 && totals.n_moved > n / 8);
    assert_true(totals.n_crossings > n / 8 && totals.n_accepted > n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_hit_ends_at_a_snapshot),
        cmocka_unit_test(test_third_request_finds_the_end_of_the_shared_prefix),
        cmocka_unit_test(test_pieces_are_not_cut_at_snapshots),
        cmocka_unit_test(test_choices_share_the_state_of_the_prompt),
        cmocka_unit_test(test_running_states_limit_running_sequences),
        cmocka_unit_test(test_running_states_beyond_the_slots_are_refused),
        cmocka_unit_test(test_drafts_take_spare_slots_only),
        cmocka_unit_test(test_preemption_moves_the_state_out_where_that_costs_less),
        cmocka_unit_test(test_random_schedules_read_the_state_of_their_tokens),
        cmocka_unit_test(test_random_schedules_with_steps_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
