/* Tests the slots of a draft model's recurrent states. A bench plays the device: each slot has the
 * tokens that its state was computed from, as a sequence's number and a length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/draft/draft_states.h"

enum { N_PLACES = 6, MAX_SLOTS = 24, PREFIX_BLOCKS = 4, BLOCK = 8 };

static uint32_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

/* The state behind the first n tokens of a sequence. Tokens of the first blocks are those of the
 * sequence's prefix. */
struct content {
    uint32_t prefix, seq, n;
};

static struct content content_of(uint32_t prefix, uint32_t seq, uint32_t n)
{
    return (struct content){prefix, n <= PREFIX_BLOCKS * BLOCK ? 0 : seq, n};
}

struct sequence_of {
    uint32_t prefix, number, n_tokens; /* tokens that the target model has accepted */
    uint32_t n_written, n_ahead;
    uint64_t id;
};

static struct content slots[MAX_SLOTS], written[MAX_SLOTS];
static bool is_written[MAX_SLOTS], is_read[MAX_SLOTS];

/* Rows of one pass: reads are checked against the slots before the pass. */
static void read_slot(uint32_t slot, uint32_t n_slots, struct content want)
{
    if (!want.n) {
        assert_int_equal(slot, STATE_SLOT_NONE);
        return;
    }
    assert_true(slot < n_slots);
    assert_memory_equal(&slots[slot], &want, sizeof(want));
    is_read[slot] = true;
}

static void write_slot(uint32_t slot, uint32_t n_slots, uint32_t read, struct content content)
{
    assert_true(slot < n_slots && !is_written[slot]);
    is_written[slot] = true;
    written[slot] = content;
    if (slot == read)
        is_read[slot] = false; /* in place */
}

static void end_pass(struct draft_states *states, uint32_t n_slots)
{
    for (uint32_t i = 0; i < n_slots; i++) {
        assert_false(is_written[i] && is_read[i]); /* another sequence's state */
        if (is_written[i])
            slots[i] = written[i];
        is_written[i] = is_read[i] = false;
    }
    draft_states_end_pass(states);
}

static uint32_t block_of(uint32_t prefix, uint32_t i)
{
    return prefix * PREFIX_BLOCKS + i;
}

/* The rows up to the sequence's last token. Returns false if no slot was free. */
static bool catch_up(struct draft_states *states, struct sequence_of *seq, uint32_t place,
                     uint32_t n_slots)
{
    uint32_t read, write, n = seq->n_tokens;
    if (!draft_states_advance(states, place, n, false, &read, &write))
        return false;
    read_slot(read, n_slots, content_of(seq->prefix, seq->number, seq->n_written));
    write_slot(write, n_slots, read, content_of(seq->prefix, seq->number, n));
    for (uint32_t i = seq->n_written / BLOCK; i < PREFIX_BLOCKS && (i + 1) * BLOCK <= n; i++) {
        if (below(2))
            continue;
        uint32_t block = block_of(seq->prefix, i), slot = write;
        enum state_place where = below(2) ? STATE_END : STATE_INSIDE;
        if ((i + 1) * BLOCK == n) {
            draft_states_record(states, block, write, where);
            continue;
        }
        slot = draft_states_snapshot(states, block, where);
        if (slot != STATE_SLOT_NONE)
            write_slot(slot, n_slots, read, content_of(seq->prefix, 0, (i + 1) * BLOCK));
    }
    seq->n_written = n;
    return true;
}

struct totals {
    uint32_t n_found, n_lost, n_drafted, n_short, n_rejected;
};

/* A step: some places catch up together, then draft together, row by row. The target model accepts
 * some drafts. A drafted token's state counts for the sequence only if its token was accepted. */
static void run_step(struct draft_states *states, struct sequence_of seqs[N_PLACES],
                     uint32_t n_slots, struct totals *totals)
{
    bool drafts[N_PLACES];
    draft_states_begin(states);
    for (uint32_t p = 0; p < N_PLACES; p++) {
        struct sequence_of *seq = &seqs[p];
        drafts[p] = below(3) > 0;
        if (!drafts[p])
            continue;
        uint32_t n = draft_states_keep(states, p, &seq->id, seq->n_written);
        assert_true(n == seq->n_written || n == 0);
        totals->n_lost += n < seq->n_written;
        seq->n_written = n;
        for (uint32_t i = PREFIX_BLOCKS; i-- > seq->n_written / BLOCK;)
            if ((i + 1) * BLOCK < seq->n_tokens &&
                draft_states_has(states, block_of(seq->prefix, i))) {
                seq->n_written = (i + 1) * BLOCK;
                draft_states_attach(states, p, block_of(seq->prefix, i), seq->n_written);
                totals->n_found++;
                break;
            }
    }
    for (uint32_t p = 0; p < N_PLACES; p++)
        drafts[p] = drafts[p] && catch_up(states, &seqs[p], p, n_slots);
    end_pass(states, n_slots);
    for (uint32_t k = 0; k < 5; k++) {
        for (uint32_t p = 0; p < N_PLACES; p++) {
            struct sequence_of *seq = &seqs[p];
            uint32_t read, write, n = seq->n_tokens + k;
            if (!drafts[p] || below(4) == 0)
                drafts[p] = false;
            if (!drafts[p])
                continue;
            if (!draft_states_advance(states, p, n + 1, true, &read, &write)) {
                drafts[p] = false;
                totals->n_short++;
                continue;
            }
            read_slot(read, n_slots, content_of(seq->prefix, seq->number, n));
            write_slot(write, n_slots, read, content_of(seq->prefix, seq->number, n + 1));
            seq->n_ahead++;
            totals->n_drafted++;
        }
        end_pass(states, n_slots);
    }
}

/* The target model accepts some drafts and draws another token; some sequences end. */
static void accept(struct draft_states *states, struct sequence_of seqs[N_PLACES],
                   uint32_t *n_numbers, struct totals *totals)
{
    for (uint32_t p = 0; p < N_PLACES; p++) {
        struct sequence_of *seq = &seqs[p];
        uint32_t n = below(seq->n_ahead + 1);
        bool was_written = seq->n_written == seq->n_tokens;
        totals->n_rejected += n < seq->n_ahead;
        seq->n_written += was_written ? n : 0;
        seq->n_tokens += n + 1;
        seq->n_ahead = 0;
        if (below(20) == 0) /* its blocks are gone */
            seq->n_written = 0;
        if (below(20) == 0) { /* both come back to other places */
            struct sequence_of other = seqs[0];
            seqs[0] = *seq;
            *seq = other;
        }
        if (below(20) == 0)
            *seq = (struct sequence_of){
                .prefix = below(3), .number = ++*n_numbers, .n_tokens = 1 + below(60)};
    }
    if (below(10) == 0)
        draft_states_forget(states, block_of(below(3), below(PREFIX_BLOCKS)));
}

static void test_random_steps_read_the_state_of_the_accepted_tokens(void **state)
{
    struct totals totals = {0};
    (void)state;
    for (uint32_t seed = 1; seed <= 300; seed++) {
        struct draft_states *states;
        struct error err;
        rng = seed * 2654435761u;
        uint32_t n_slots = 1 + below(MAX_SLOTS), n_numbers = N_PLACES;
        struct sequence_of seqs[N_PLACES];
        assert_int_equal(draft_states_create(n_slots, N_PLACES, &states, &err), 0);
        for (uint32_t p = 0; p < N_PLACES; p++)
            seqs[p] = (struct sequence_of){
                .prefix = below(3), .number = p + 1, .n_tokens = 1 + below(60)};
        for (uint32_t i = 0; i < 200; i++) {
            run_step(states, seqs, n_slots, &totals);
            accept(states, seqs, &n_numbers, &totals);
        }
        draft_states_begin(states);
        for (uint32_t p = 0; p < N_PLACES; p++) {
            uint64_t id = 0;
            draft_states_keep(states, p, &id, 0);
        }
        assert_int_equal(state_cache_n_free(draft_states_cache(states)), n_slots);
        draft_states_destroy(states);
    }
    print_message("%u found, %u lost, %u drafted, %u without a slot, %u rejected\n", totals.n_found,
                  totals.n_lost, totals.n_drafted, totals.n_short, totals.n_rejected);
    assert_true(totals.n_found > 1000 && totals.n_lost > 1000 && totals.n_drafted > 10000);
    assert_true(totals.n_short > 1000 && totals.n_rejected > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps_read_the_state_of_the_accepted_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
