#include "engine/forward/pipeline.h"

#include "kernels/futex.h"

/* --- parts --- */

/* Time of a step of n rows in m equal parts, in rows. */
static float time_of(const struct pipeline_cut *cut, uint32_t n, uint32_t m)
{
    return (float)(m + cut->n_stages - 1) * (cut->base_rows + (float)n / (float)m);
}

static uint32_t count_parts(const struct pipeline_cut *cut, uint32_t n_rows)
{
    uint32_t best = 1;
    for (uint32_t m = 2; cut->n_stages > 1 && m <= n_rows && m <= PIPELINE_MAX_PARTS; m++)
        if (time_of(cut, n_rows, m) < time_of(cut, n_rows, best))
            best = m;
    return best;
}

/* The end of the sequence of row r, or r itself if the sequence may be cut. */
static uint32_t next_border(const struct pipeline_cut *cut, const struct step_batch *batch,
                            uint32_t r)
{
    if (!cut->whole_sequences || r >= batch->n_rows)
        return r;
    uint32_t s = batch->seq_of_row[r];
    return r == batch->seq_start[s] ? r : batch->seq_start[s + 1];
}

uint32_t pipeline_cut_step(const struct pipeline_cut *cut, const struct step_batch *batch,
                           struct step_part parts[PIPELINE_MAX_PARTS])
{
    uint32_t n = batch->n_rows, m = count_parts(cut, n), n_parts = 0;
    for (uint32_t i = 0, begin = 0; begin < n; i++) {
        uint32_t end =
            i + 1 < m ? next_border(cut, batch, (uint32_t)((uint64_t)n * (i + 1) / m)) : n;
        if (end <= begin)
            continue;
        parts[n_parts++] = (struct step_part){.row_begin = begin, .n_rows = end - begin};
        begin = end;
    }
    return n_parts;
}

/* --- the gate --- */

void pipeline_gate_pass(struct pipeline_gate *gate, uint32_t rank)
{
    atomic_fetch_add(&gate->n_done[rank], 1);
    futex_wake_all(&gate->n_done[rank]);
}

void pipeline_gate_wait(struct pipeline_gate *gate, uint32_t rank, uint32_t n)
{
    futex_wait_count(&gate->n_done[rank], n);
}
