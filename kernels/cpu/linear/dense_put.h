/* dense_put.h: adds the segments of a dense linear's output and stores the result. The includer has
 * the vectors (vec_*.h): a lane per output of a panel. */
#pragma once

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/weight_cpu.h"

/* tree_sum_present() in every lane; overwrites level[]. */
ALWAYS_INLINE v16 dense_tree(v16 level[N_SEGMENTS], uint32_t present, uint32_t count)
{
    for (; count > 1; count /= 2) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < count / 2; i++) {
            uint32_t left = present >> 2 * i & 1, right = present >> (2 * i + 1) & 1;
            level[i] = left && right ? v_add(level[2 * i], level[2 * i + 1])
                                     : level[2 * i + (right ? 1 : 0)];
            next |= (left | right) << i;
        }
        present = next;
    }
    return level[0];
}

/* Stores outputs n … n + 15 of a row, up to the last output. */
ALWAYS_INLINE void dense_store(const struct linear_job *job, uint32_t row, uint32_t n, v16 sum)
{
    uint32_t left = job->w->base.n_rows - n;
    float *y = job->y + row * job->y_stride + n;
    if (left >= PANEL_ROWS)
        v_store(y, sum);
    else
        v_store_n(y, sum, left);
}
