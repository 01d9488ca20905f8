/* recurrent_run.h: finds runs of rows. Included by .cu files only. */
#pragma once

#include "kernels/cuda/recurrent/recurrent_index.h"
#include "kernels/cuda/thread.h"

/* Finds the run [row, *out_end) that begins at a row. Returns false if no run begins there, or if
 * the run is padding. All threads of a warp call this together. */
CUDA_DEVICE bool recurrent_run_at(const struct recurrent_slots *s, uint32_t row, uint32_t *out_end)
{
    uint32_t from = s->reads[row], to = s->writes[row], at = recurrent_row(row, 1), n = s->n_rows;
    uint32_t mine = recurrent_row(at, cuda_lane_of(threadIdx.x));
    uint32_t next = mine < n ? s->reads[mine] : RECURRENT_NONE;
    if (from == RECURRENT_PREVIOUS)
        return false;
    uint32_t ends = __ballot_sync(0xFFFFFFFFu, next != RECURRENT_PREVIOUS);
    while (ends == 0) {
        at += CUDA_WARP;
        mine += CUDA_WARP;
        next = mine < n ? s->reads[mine] : RECURRENT_NONE;
        ends = __ballot_sync(0xFFFFFFFFu, next != RECURRENT_PREVIOUS);
    }
    at += recurrent_first_bit(ends);
    *out_end = at;
    return at - row > 1 || from != RECURRENT_NONE || to != RECURRENT_NONE;
}
