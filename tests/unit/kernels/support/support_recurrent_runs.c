#include "tests/unit/kernels/support/support_recurrent_runs.h"

#include <stdlib.h>
#include <string.h>

const struct recurrent_shape recurrent_shapes[RECURRENT_N_SHAPES] = {
    {.kind = KIND_CONV, .dim = 2, .head_dim = 1, .has_bias = true},
    {.kind = KIND_CONV, .dim = 3, .head_dim = 33, .silu = true},
    {.kind = KIND_CONV, .dim = 4, .head_dim = 100, .silu = true},
    {.kind = KIND_CONV, .dim = 4, .head_dim = 1300, .silu = true, .has_bias = true},
    {.kind = KIND_CONV, .dim = 5, .head_dim = 16},
    {.kind = KIND_CONV, .dim = 6, .head_dim = 31, .has_bias = true, .silu = true},
    {.kind = KIND_CONV, .dim = 7, .head_dim = 64, .has_bias = true},
    {.kind = KIND_CONV, .dim = 8, .head_dim = 80, .silu = true},
    {.kind = KIND_CONV, .dim = 16, .head_dim = 17, .silu = true},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 1, .head_dim = 1},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 8, .head_dim = 12},
    {.kind = KIND_DELTA, .n_keys = 2, .n_heads = 6, .dim = 8, .head_dim = 24, .tiled = true},
    {.kind = KIND_DELTA, .n_keys = 3, .n_heads = 3, .dim = 20, .head_dim = 65},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 7, .head_dim = 200},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 128, .head_dim = 128},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 1, .dim = 1, .head_dim = 1},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 3, .dim = 16, .head_dim = 64},
    {.kind = KIND_SSM, .n_keys = 2, .n_heads = 4, .dim = 9, .head_dim = 33},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 2, .dim = 40, .head_dim = 130},
    {.kind = KIND_SSM, .n_keys = 2, .n_heads = 2, .dim = 128, .head_dim = 64},
};

enum { N_SLOTS = RECURRENT_SLOTS };

/* Compares y and the state of positions [0, n) of a sequence. */
static void assert_sequence(const struct recurrent_world *w, uint32_t seq, const float *y,
                            const float *state, uint32_t n, const char *what)
{
    assert_same_bits(w->y + (size_t)seq * w->n_tokens * w->y_cols, y,
                     (size_t)n * w->y_cols * sizeof(float), what);
    assert_same_bits(recurrent_state(w, seq, n - 1), state, w->state_floats * sizeof(float), what);
}

void recurrent_run_pieces(struct recurrent_world *w, const struct rig *rig, uint32_t piece,
                          bool in_place, const char *set)
{
    float *pool = poisoned(N_SLOTS * w->slot_floats),
          *y = poisoned((size_t)w->n_tokens * w->y_cols);
    struct recurrent_row rows[RECURRENT_TOKENS];
    uint32_t slot = 3;
    for (uint32_t begin = 0, n; begin < w->n_tokens; begin += n) {
        n = w->n_tokens - begin < piece ? w->n_tokens - begin : piece;
        uint32_t next = in_place ? slot : (slot + 1) % N_SLOTS;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct recurrent_row){
                .token = begin + i,
                .reads = i > 0       ? RECURRENT_PREVIOUS
                         : begin > 0 ? slot
                                     : RECURRENT_NONE,
                .writes = i + 1 == n ? next : RECURRENT_NONE,
                .y = y + (size_t)(begin + i) * w->y_cols,
            };
        assert_int_equal(recurrent_step(w, rig, pool, N_SLOTS, rows, n, in_place), 0);
        slot = next;
    }
    assert_sequence(w, 0, y, pool + slot * w->slot_floats, w->n_tokens, set);
    free(pool);
    free(y);
}

/* A running sequence of the random batches. */
struct running {
    uint32_t seq, next, slot; /* slot N_SLOTS: no state yet */
};

/* Adds a piece of random length of a sequence to the step, and sometimes a snapshot within.
 * Returns the number of rows. */
static uint32_t add_piece(struct recurrent_world *w, struct random *r, struct running *run,
                          struct recurrent_row *rows, uint32_t free_slot, float *y,
                          uint32_t *out_snapshot)
{
    uint32_t left = w->n_tokens - run->next, n = 1 + random_u32(r) % (random_u32(r) % 2 ? 1 : 40),
             at = random_u32(r) % 4;
    n = n < left ? n : left;
    *out_snapshot = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = run->seq * w->n_tokens + run->next + i;
        rows[i] = (struct recurrent_row){
            .token = token,
            .reads = i > 0                 ? RECURRENT_PREVIOUS
                     : run->slot < N_SLOTS ? run->slot
                                           : RECURRENT_NONE,
            .writes = RECURRENT_NONE,
        };
        rows[i].y = y + (size_t)token * w->y_cols;
    }
    bool in_place = run->slot < N_SLOTS && random_u32(r) % 2;
    rows[n - 1].writes = in_place ? run->slot : free_slot;
    if (in_place && at + 1 < n) { /* the free slot gets the state within the piece */
        rows[at].writes = free_slot;
        *out_snapshot = token_position(w, rows[at].token);
    }
    run->next += n;
    run->slot = rows[n - 1].writes;
    return n;
}

void recurrent_check_batches(const struct recurrent_shape *shape, const struct rig *rig,
                             const struct recurrent_memory *memory, const char *set, uint64_t seed)
{
    enum { SEQS = 5, MOST_ROWS = SEQS * 42 };
    struct recurrent_world w = recurrent_open(shape, SEQS, 90, seed);
    struct random r = {seed};
    w.memory = memory;
    float *pool = poisoned(N_SLOTS * w.slot_floats),
          *y = poisoned((size_t)SEQS * w.n_tokens * w.y_cols), *spare = poisoned(w.y_cols);
    struct running runs[SEQS];
    for (uint32_t s = 0; s < SEQS; s++)
        runs[s] = (struct running){s, 0, N_SLOTS};
    for (bool more = true; more;) {
        struct recurrent_row rows[MOST_ROWS];
        uint32_t n = 0, snapshots[SEQS], free_slots[SEQS];
        bool in_step[SEQS] = {false}, used[N_SLOTS] = {false};
        for (uint32_t s = 0; s < SEQS; s++)
            if (runs[s].slot < N_SLOTS)
                used[runs[s].slot] = true;
        for (uint32_t s = 0; s < SEQS; s++) {
            if (runs[s].next == w.n_tokens || random_u32(&r) % 3 == 0)
                continue;
            for (free_slots[s] = 0; used[free_slots[s]];)
                free_slots[s]++;
            used[free_slots[s]] = in_step[s] = true;
            n += add_piece(&w, &r, &runs[s], rows + n, free_slots[s], y, &snapshots[s]);
            if (random_u32(&r) % 2)
                rows[n++] = (struct recurrent_row){0, RECURRENT_NONE, RECURRENT_NONE, spare};
        }
        assert_int_equal(recurrent_step(&w, rig, pool, N_SLOTS, rows, n, random_u32(&r) % 2), 0);
        more = false;
        for (uint32_t s = 0; s < SEQS; s++) {
            more |= runs[s].next < w.n_tokens;
            if (in_step[s] && snapshots[s] != UINT32_MAX)
                assert_same_bits(recurrent_state(&w, s, snapshots[s]),
                                 pool + free_slots[s] * w.slot_floats,
                                 w.state_floats * sizeof(float), set);
            if (in_step[s])
                assert_same_bits(recurrent_state(&w, s, runs[s].next - 1),
                                 pool + runs[s].slot * w.slot_floats,
                                 w.state_floats * sizeof(float), set);
        }
    }
    assert_same_bits(w.y, y, (size_t)SEQS * w.n_tokens * w.y_cols * sizeof(float), set);
    free(pool);
    free(y);
    free(spare);
    recurrent_close(&w);
}

void recurrent_check_drafts(const struct recurrent_shape *shape, const struct rig *rig,
                            const struct recurrent_memory *memory, const char *set, uint64_t seed)
{
    enum { ROWS = 9 };
    struct recurrent_world w = recurrent_open(shape, 1, 2 * ROWS, seed);
    float *pool = poisoned(N_SLOTS * w.slot_floats), *y = poisoned(ROWS * w.y_cols);
    struct recurrent_row rows[ROWS];
    w.memory = memory;
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (struct recurrent_row){r, r > 0 ? RECURRENT_PREVIOUS : RECURRENT_NONE, r,
                                         y + r * w.y_cols};
    assert_int_equal(recurrent_step(&w, rig, pool, N_SLOTS, rows, ROWS, true), 0);
    for (uint32_t r = 0; r < ROWS; r++)
        assert_sequence(&w, 0, y, pool + r * w.slot_floats, r + 1, set);
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = (struct recurrent_row){5 + r, r > 0 ? RECURRENT_PREVIOUS : 4,
                                         r + 1 == ROWS ? 4 : RECURRENT_NONE, y + r * w.y_cols};
    assert_int_equal(recurrent_step(&w, rig, pool, N_SLOTS, rows, ROWS, false), 0);
    assert_same_bits(w.y + 5 * w.y_cols, y, ROWS * w.y_cols * sizeof(float), set);
    assert_same_bits(recurrent_state(&w, 0, 4 + ROWS), pool + 4 * w.slot_floats,
                     w.state_floats * sizeof(float), set);
    free(pool);
    free(y);
    recurrent_close(&w);
}
