#include "tests/unit/kernels/support/support_attention_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention/attention_amx.h"
#include "kernels/cpu/linear/linear_amx.h"
#include "kernels/cpu/stream_cpu.h"

struct world make_world(const struct setup *s, struct random *r)
{
    struct world w = {.s = s, .v_dim = s->v_dim ? s->v_dim % V_IN_K : s->head_dim};
    w.v_in_k = s->v_dim >= V_IN_K;
    while (w.n_seqs < 3 && s->lengths[w.n_seqs] > 0)
        w.n_tokens += s->lengths[w.n_seqs++];
    w.stride = MAX_TOKENS / s->block_size + 1;
    w.n_blocks = w.n_seqs * w.stride;
    w.positions = calloc(w.n_tokens, 4);
    w.seqs = calloc(w.n_tokens, 4);
    w.slots = calloc(w.n_tokens, 4);
    w.tables = calloc(w.n_blocks, 4);
    for (uint32_t i = 0; i < w.n_blocks; i++) /* scattered: 7919 is prime to every count here */
        w.tables[i] = (uint32_t)((uint64_t)i * 7919 % w.n_blocks);
    uint32_t t = 0;
    for (uint32_t seq = 0; seq < w.n_seqs; seq++)
        for (uint32_t p = 0; p < s->lengths[seq]; p++, t++) {
            w.positions[t] = p;
            w.seqs[t] = seq;
            w.slots[t] =
                w.tables[seq * w.stride + p / s->block_size] * s->block_size + p % s->block_size;
        }
    w.q = random_floats(r, (size_t)w.n_tokens * s->n_heads * s->head_dim, 0.0f);
    w.k = random_floats(r, (size_t)w.n_tokens * s->n_kv * s->head_dim, 0.0f);
    w.v = random_floats(r, (size_t)w.n_tokens * s->n_kv * w.v_dim, 0.0f);
    for (size_t i = 0; i < (size_t)w.n_tokens * s->n_heads * s->head_dim; i++)
        w.q[i] *= 3.0f; /* peaked */
    for (size_t i = 0; w.v_in_k && i < (size_t)w.n_tokens * s->n_kv; i++)
        memcpy(w.v + i * w.v_dim, w.k + i * s->head_dim, w.v_dim * sizeof(float));
    return w;
}

void free_world(struct world *w)
{
    free(w->positions);
    free(w->seqs);
    free(w->slots);
    free(w->tables);
    free(w->q);
    free(w->k);
    free(w->v);
}

struct kv_layer make_cache(const struct world *w)
{
    const struct setup *s = w->s;
    size_t n = (size_t)w->n_blocks * s->n_kv * s->block_size,
           k_bytes = n * ops_kv_vector_bytes(s->kv_type, s->head_dim),
           v_bytes = n * ops_kv_vector_bytes(s->kv_type, w->v_dim);
    void *values = w->v_in_k ? NULL : malloc(v_bytes);
    struct kv_layer kv = {malloc(k_bytes), values,  s->kv_type,  w->n_blocks,
                          s->block_size,   s->n_kv, s->head_dim, w->v_dim};
    memset(kv.k, 0xFF, k_bytes); /* NaN in every type, so that a read of unwritten values shows */
    if (values)
        memset(values, 0xFF, v_bytes);
    return kv;
}

void free_cache(struct kv_layer *kv)
{
    free(kv->k);
    free(kv->v);
}

void step(const struct rig *rig, const struct world *w, const struct kv_layer *kv, uint32_t begin,
          uint32_t n, float *y)
{
    const struct setup *s = w->s;
    uint32_t kv_cols = s->n_kv * s->head_dim, q_cols = s->n_heads * s->head_dim;
    uint32_t v_cols = s->n_kv * w->v_dim, y_cols = s->n_heads * w->v_dim;
    struct tensor k = tensor_view(w->k + (size_t)begin * kv_cols, DTYPE_F32, n, kv_cols),
                  v = tensor_view(w->v + (size_t)begin * v_cols, DTYPE_F32, n, v_cols),
                  q = tensor_view(w->q + (size_t)begin * q_cols, DTYPE_F32, n, q_cols),
                  out = tensor_view(y + (size_t)begin * y_cols, DTYPE_F32, n, y_cols);
    struct attention_rows rows = {.positions = w->positions + begin,
                                  .seq_of_row = w->seqs + begin,
                                  .kv_slots = w->slots + begin,
                                  .block_tables = w->tables,
                                  .table_stride = w->stride,
                                  .n_rows = n,
                                  .n_seqs = w->n_seqs};
    struct attention_params params = {.n_heads = s->n_heads,
                                      .heads_per_kv = s->n_heads / s->n_kv,
                                      .scale = 1.0f / sqrtf((float)s->head_dim),
                                      .window = s->window,
                                      .softcap = s->softcap,
                                      .slopes = w->slopes,
                                      .sinks = w->sinks,
                                      .chunk = w->chunk};
    const struct tensor *values = w->v_in_k ? NULL : &v;
    assert_int_equal(op_kv_write(rig->stream, kv, &k, values, w->slots + begin), 0);
    assert_int_equal(op_attention(rig->stream, &out, &q, kv, &rows, &params), 0);
}

float *run_world(const char *set, uint32_t threads, const struct world *w, uint32_t chunk)
{
    struct rig rig = rig_open(set, threads);
    struct kv_layer kv = make_cache(w);
    const struct stream_cpu *stream = stream_cpu(rig.stream);
    memset(stream->scratch, 0xFF, stream->scratch_bytes); /* NaN in place of another op's data */
    float *y = poisoned((size_t)w->n_tokens * w->s->n_heads * w->v_dim);
    for (uint32_t t = 0; t < w->n_tokens; t += chunk)
        step(&rig, w, &kv, t, w->n_tokens - t < chunk ? w->n_tokens - t : chunk, y);
    free_cache(&kv);
    rig_close(&rig);
    return y;
}

bool adds_in_tiles(const char *set, const struct setup *s)
{
    struct rig rig = rig_open(set, 1);
    bool tiles = strcmp(rig.ops->numerics, AMX_NUMERICS) == 0;
    rig_close(&rig);
    return tiles && s->kv_type == DTYPE_BF16 &&
           attention_dim(s->head_dim) >= AMX_ATTENTION_MIN_BF16_DIM;
}
