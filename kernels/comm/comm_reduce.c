#include "kernels/comm/comm_reduce.h"

#include "base/status.h"
#include "kernels/segments.h"
#include "kernels/tensor.h"

enum { MAX_RANKS = N_SEGMENTS };

static void reduce_i32(int32_t *out, const uint8_t *const slots[], uint32_t size, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t sum = 0; /* unsigned: sums of the numerics contract wrap at 32 bits */
        for (uint32_t r = 0; r < size; r++)
            sum += ((const uint32_t *)(const void *)slots[r])[i];
        out[i] = (int32_t)sum;
    }
}

static void reduce_tree(float *out, const uint8_t *const slots[], uint32_t size, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float part[MAX_RANKS] = {0};
        for (uint32_t r = 0; r < size; r++)
            part[r] = ((const float *)(const void *)slots[r])[i];
        for (uint32_t width = size; width > 1; width /= 2)
            for (uint32_t r = 0; r < width / 2; r++)
                part[r] = part[2 * r] + part[2 * r + 1];
        out[i] = part[0];
    }
}

static void reduce_max(float *out, const uint8_t *const slots[], uint32_t size, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float max = ((const float *)(const void *)slots[0])[i];
        for (uint32_t r = 1; r < size; r++) {
            float other = ((const float *)(const void *)slots[r])[i];
            max = other > max || other != other ? other : max;
        }
        out[i] = max;
    }
}

void comm_reduce_slots(void *out, const uint8_t *const slots[], uint32_t size, size_t n,
                       enum comm_reduce how)
{
    if (how == COMM_SUM_I32)
        reduce_i32(out, slots, size, n);
    else if (how == COMM_SUM_TREE_F32)
        reduce_tree(out, slots, size, n);
    else
        reduce_max(out, slots, size, n);
}

int comm_reduce_pieces(struct comm *comm, struct tensor *t, enum comm_reduce how, size_t max_bytes,
                       comm_reduce_fn *fn)
{
    if (t->dtype != (how == COMM_SUM_I32 ? DTYPE_I32 : DTYPE_F32))
        return STATUS_INTERNAL;
    uint32_t n_rows = t->n_rows;
    size_t n_cols = t->n_cols;
    if (t->row_stride == n_cols) {
        n_cols *= n_rows;
        n_rows = 1;
    }
    size_t limit = max_bytes / sizeof(float);
    int rc = 0;
    for (uint32_t row = 0; !rc && row < n_rows; row++) {
        float *data = (float *)t->data + (size_t)row * t->row_stride;
        for (size_t done = 0; !rc && done < n_cols; done += limit)
            rc = fn(comm, data + done, n_cols - done < limit ? n_cols - done : limit, how);
    }
    return rc;
}
