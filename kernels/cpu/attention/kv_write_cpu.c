#include <string.h>

#include "base/status.h"
#include "kernels/cpu/attention/kv_layout.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/device.h"

/* A job of fewer elements runs on the calling thread alone. */
enum { MIN_PARALLEL = 4096 };

struct write_job {
    const struct cpu_inner *inner;
    const struct kv_layer *kv;
    const struct tensor *k, *v;
    const uint32_t *slots;
};

/* Writes one vector of a float cache; in a tiled cache K goes to its place in the tile. v is NULL
 * where K holds V. */
static void write_floats(const struct write_job *job, size_t item, const float *k, const float *v)
{
    const struct kv_layer *kv = job->kv;
    size_t n_bytes = ops_kv_vector_bytes(kv->dtype, kv->head_dim),
           v_bytes = ops_kv_vector_bytes(kv->dtype, kv->v_dim);
    if (v != NULL)
        job->inner->kv_store((uint8_t *)kv->v + item * v_bytes, kv->dtype, v, kv->v_dim);
    if (!kv_is_tiled(kv)) {
        job->inner->kv_store((uint8_t *)kv->k + item * n_bytes, kv->dtype, k, kv->head_dim);
        return;
    }
    uint32_t dwords[ATTENTION_MAX_HEAD_DIM], n_dwords = (uint32_t)(n_bytes / 4);
    job->inner->kv_store(dwords, kv->dtype, k, kv->head_dim);
    uint32_t *dst = (uint32_t *)kv->k + (item - item % KV_TILE) * n_dwords + item % KV_TILE;
    for (uint32_t i = 0; i < n_dwords; i++)
        dst[(size_t)i * KV_TILE] = dwords[i];
}

static void write_codes(const struct write_job *job, size_t item, const float *k, const float *v)
{
    const struct kv_layer *kv = job->kv;
    uint32_t n = kv->head_dim, n_v = kv->v_dim, lane = item % KV_TILE;
    uint8_t *keys = (uint8_t *)kv->k + kv_codes_at(kv, n, item);
    _Alignas(64) uint8_t codes[ATTENTION_MAX_HEAD_DIM];
    float k_scale = job->inner->kv_quantize(codes, k, n);
    if (kv_is_tiled(kv))
        for (uint32_t d = 0; d < n; d += 4)
            memcpy(keys + kv_key_code(lane, d), codes + d, 4);
    else
        memcpy(keys, codes, n);
    memcpy((uint8_t *)kv->k + kv_scale_at(kv, n, item), &k_scale, sizeof(k_scale));
    if (v == NULL)
        return;
    uint8_t *values = (uint8_t *)kv->v + kv_codes_at(kv, n_v, item);
    float v_scale = job->inner->kv_quantize(codes, v, n_v);
    if (kv_is_tiled(kv))
        for (uint32_t d = 0; d < n_v; d++)
            values[kv_value_code(n_v, lane, d)] = codes[d];
    else
        memcpy(values, codes, n_v);
    memcpy((uint8_t *)kv->v + kv_scale_at(kv, n_v, item), &v_scale, sizeof(v_scale));
}

static void write_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct write_job *job = arg;
    const struct kv_layer *kv = job->kv;
    uint32_t r, end;
    thread_pool_share(job->k->n_rows, 1, index, n_threads, &r, &end);
    for (; r < end; r++) {
        size_t block = job->slots[r] / kv->block_size, offset = job->slots[r] % kv->block_size;
        const float *k = tensor_row_f32(job->k, r);
        const float *values = job->v != NULL ? tensor_row_f32(job->v, r) : NULL;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++, k += kv->head_dim) {
            const float *v = values != NULL ? values + (size_t)h * kv->v_dim : NULL;
            size_t item = (block * kv->n_kv_heads + h) * kv->block_size + offset;
            if (kv->dtype == DTYPE_I8)
                write_codes(job, item, k, v);
            else
                write_floats(job, item, k, v);
        }
    }
}

int kv_write_cpu(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                 const struct tensor *v, const uint32_t *kv_slots)
{
    if (kv->head_dim > ATTENTION_MAX_HEAD_DIM || kv->v_dim > ATTENTION_MAX_HEAD_DIM)
        return STATUS_INTERNAL;
    for (uint32_t r = 0; r < k->n_rows; r++)
        if (kv_slots[r] / kv->block_size >= kv->n_blocks)
            return STATUS_INTERNAL;
    struct write_job job = {inner_of(s->ops), kv, k, v, kv_slots};
    ops_run_job(s, write_rows, &job, (uint64_t)k->n_rows * k->n_cols >= MIN_PARALLEL);
    return 0;
}
