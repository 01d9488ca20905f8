#include "tests/gpu/support/support_gpu_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ref/ref.h"

/* Converts a vector of K or V to the values that the cache holds. */
static void hold(const struct gpu_setup *s, const float *x, uint32_t n, float *held)
{
    uint8_t codes[576]; /* the widest head */
    float scale = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        scale = fmaxf(scale, fabsf(x[i]));
    float inv = 448.0f / fmaxf(scale, 1e-30f);
    scale *= 1.0f / 448.0f;
    if (s->dtype == DTYPE_I8)
        scale = ref_kv_quantize(codes, x, n);
    for (uint32_t i = 0; i < n; i++)
        held[i] = s->dtype == DTYPE_F32    ? x[i]
                  : s->dtype == DTYPE_F16  ? dtype_f16_to_f32(dtype_f32_to_f16(x[i]))
                  : s->dtype == DTYPE_BF16 ? dtype_bf16_to_f32(dtype_f32_to_bf16(x[i]))
                  : s->dtype == DTYPE_I8   ? (float)(codes[i] - 128) * scale
                                           : maths_f8_to_f32(maths_f32_to_f8(x[i] * inv)) * scale;
}

static void make_tables(struct gpu_world *w)
{
    const struct gpu_setup *s = &w->s;
    uint32_t next = 0;
    memset(w->tables, 0xFF, (size_t)w->n_seqs * w->stride * sizeof(uint32_t));
    for (uint32_t seq = 0; seq < w->n_seqs; seq++)
        for (uint32_t i = 0; i * s->block_size < s->lengths[seq]; i++, next++) /* scattered */
            w->tables[seq * w->stride + i] = (uint32_t)((uint64_t)next * 7919 % w->n_blocks);
}

struct gpu_world gpu_world_create(const struct gpu_setup *s, struct random *r)
{
    return gpu_world_create_widths(s, s->head_dim, r);
}

/* Sets V from the first elements of K. */
static void take_values(struct gpu_world *w)
{
    size_t n = (size_t)w->n_tokens * w->s.n_kv;
    for (size_t i = 0; i < n; i++) {
        memcpy(w->v + i * w->v_dim, w->k + i * w->s.head_dim, w->v_dim * sizeof(float));
        memcpy(w->v_held + i * w->v_dim, w->k_held + i * w->s.head_dim, w->v_dim * sizeof(float));
    }
}

static struct gpu_world create(const struct gpu_setup *s, uint32_t v_dim, bool is_latent,
                               struct random *r)
{
    struct gpu_world w = {.s = *s, .n_heads = s->n_kv * s->heads_per_kv, .v_dim = v_dim};
    while (w.n_seqs < 4 && s->lengths[w.n_seqs] > 0) {
        uint32_t blocks = (s->lengths[w.n_seqs] + s->block_size - 1) / s->block_size;
        w.stride = blocks > w.stride ? blocks : w.stride;
        w.n_blocks += blocks;
        w.first[w.n_seqs] = w.n_tokens;
        w.n_tokens += s->lengths[w.n_seqs++];
    }
    while (w.n_blocks % 7919 == 0)
        w.n_blocks++;
    size_t n_kv = (size_t)w.n_tokens * s->n_kv * s->head_dim,
           n_v = (size_t)w.n_tokens * s->n_kv * v_dim;
    w.tables = malloc((size_t)w.n_seqs * w.stride * sizeof(uint32_t));
    make_tables(&w);
    w.q = random_floats(r, (size_t)w.n_tokens * w.n_heads * s->head_dim, 0.0f);
    for (size_t i = 0; i < (size_t)w.n_tokens * w.n_heads * s->head_dim; i++)
        w.q[i] *= 3.0f; /* peaked */
    w.k = random_floats(r, n_kv, 0.0f);
    w.v = random_floats(r, n_v, 0.0f);
    w.k_held = poisoned(n_kv);
    w.v_held = poisoned(n_v);
    for (size_t i = 0; i < n_kv; i += s->head_dim)
        hold(s, w.k + i, s->head_dim, w.k_held + i);
    for (size_t i = 0; i < n_v; i += v_dim)
        hold(s, w.v + i, v_dim, w.v_held + i);
    if (is_latent)
        take_values(&w);
    w.rank_heads = w.n_heads;
    w.rank_kv = s->n_kv;
    w.device_tables = gpu_upload(w.tables, (size_t)w.n_seqs * w.stride * sizeof(uint32_t));
    size_t n_vectors = (size_t)w.n_blocks * s->n_kv * s->block_size;
    w.pool_bytes = n_vectors * ops_kv_vector_bytes(s->dtype, s->head_dim);
    w.v_pool_bytes = n_vectors * ops_kv_vector_bytes(s->dtype, v_dim);
    w.pool_k = gpu_upload(NULL, w.pool_bytes);
    w.pool_v = is_latent ? NULL : gpu_upload(NULL, w.v_pool_bytes);
    gpu_world_fill(&w);
    return w;
}

struct gpu_world gpu_world_create_widths(const struct gpu_setup *s, uint32_t v_dim,
                                         struct random *r)
{
    return create(s, v_dim, false, r);
}

struct gpu_world gpu_world_create_latent(const struct gpu_setup *s, uint32_t v_dim,
                                         struct random *r)
{
    return create(s, v_dim, true, r);
}

static struct kv_layer layer_of(const struct gpu_world *w)
{
    return (struct kv_layer){w->pool_k,       w->pool_v,  w->s.dtype,    w->n_blocks,
                             w->s.block_size, w->rank_kv, w->s.head_dim, w->v_dim};
}

/* Copies the columns of the rank's KV heads, of `dim` elements each; the result is dense. */
static float *kv_columns(const struct gpu_world *w, const float *x, uint32_t dim)
{
    size_t n = (size_t)w->rank_kv * dim, all = (size_t)w->s.n_kv * dim;
    float *part = malloc(w->n_tokens * n * sizeof(float));
    for (uint32_t t = 0; t < w->n_tokens; t++)
        memcpy(part + t * n, x + t * all + (size_t)w->kv_begin * dim, n * sizeof(float));
    return part;
}

static uint32_t *token_slots(const struct gpu_world *w)
{
    uint32_t *slots = malloc(w->n_tokens * sizeof(uint32_t)), size = w->s.block_size;
    for (uint32_t seq = 0; seq < w->n_seqs; seq++)
        for (uint32_t p = 0; p < w->s.lengths[seq]; p++)
            slots[w->first[seq] + p] = w->tables[seq * w->stride + p / size] * size + p % size;
    return slots;
}

void gpu_world_slope(struct gpu_world *w)
{
    w->slopes = malloc(w->n_heads * sizeof(float));
    for (uint32_t h = 0; h < w->n_heads; h++) /* from steep to nearly flat */
        w->slopes[h] = exp2f(-0.37f * (float)(h * 7 % 23));
    w->device_slopes = gpu_upload(w->slopes, w->n_heads * sizeof(float));
}

void gpu_world_sink(struct gpu_world *w)
{
    w->sinks = malloc(w->n_heads * sizeof(float));
    for (uint32_t h = 0; h < w->n_heads; h++) /* from without effect to above all keys */
        w->sinks[h] = (float)(h * 5 % 13) * 6.0f - 30.0f;
    w->device_sinks = gpu_upload(w->sinks, w->n_heads * sizeof(float));
}

/* `slopes` and `sinks` have all heads, in the memory that the op reads. */
static struct attention_params params_of(const struct gpu_world *w, const float *slopes,
                                         const float *sinks)
{
    return (struct attention_params){.n_heads = w->rank_heads,
                                     .head_begin = w->head_begin,
                                     .kv_begin = w->kv_begin,
                                     .heads_per_kv = w->s.heads_per_kv,
                                     .scale = 1.0f / sqrtf((float)w->s.head_dim),
                                     .window = w->s.window,
                                     .softcap = w->s.softcap,
                                     .chunk = w->chunk,
                                     .slopes = slopes ? slopes + w->head_begin : NULL,
                                     .sinks = sinks ? sinks + w->head_begin : NULL};
}

void gpu_world_fill(struct gpu_world *w)
{
    uint32_t cols = w->rank_kv * w->s.head_dim, v_cols = w->rank_kv * w->v_dim,
             *slots = token_slots(w);
    size_t n_bytes = (size_t)w->n_tokens * cols * sizeof(float),
           v_bytes = (size_t)w->n_tokens * v_cols * sizeof(float);
    float *k = kv_columns(w, w->k, w->s.head_dim), *v = kv_columns(w, w->v, w->v_dim);
    void *device_k = gpu_upload(k, n_bytes), *device_v = gpu_upload(v, v_bytes);
    void *device_slots = gpu_upload(slots, w->n_tokens * sizeof(uint32_t));
    struct tensor tk = tensor_view(device_k, DTYPE_F32, w->n_tokens, cols),
                  tv = tensor_view(device_v, DTYPE_F32, w->n_tokens, v_cols);
    struct kv_layer kv = layer_of(w);
    assert_int_equal(op_kv_write(gpu.stream, &kv, &tk, kv.v ? &tv : NULL, device_slots), 0);
    gpu_sync();
    gpu_drop(device_k, n_bytes);
    gpu_drop(device_v, v_bytes);
    gpu_drop(device_slots, w->n_tokens * sizeof(uint32_t));
    free(k);
    free(v);
    free(slots);
}

void gpu_world_destroy(struct gpu_world *w)
{
    gpu_drop(w->pool_k, w->pool_bytes);
    if (w->pool_v)
        gpu_drop(w->pool_v, w->v_pool_bytes);
    gpu_drop(w->device_tables, (size_t)w->n_seqs * w->stride * sizeof(uint32_t));
    if (w->slopes)
        gpu_drop(w->device_slopes, w->n_heads * sizeof(float));
    if (w->sinks)
        gpu_drop(w->device_sinks, w->n_heads * sizeof(float));
    free(w->slopes);
    free(w->sinks);
    free(w->tables);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->k_held);
    free(w->v_held);
}

float *gpu_attend(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                  const struct role_run *roles, uint32_t n_roles, uint32_t max_positions)
{
    uint32_t cols = w->rank_heads * w->s.head_dim, all = w->n_heads * w->s.head_dim;
    uint32_t y_cols = w->rank_heads * w->v_dim;
    size_t n_bytes = (size_t)n * cols * sizeof(float), n_words = n * sizeof(uint32_t);
    size_t y_bytes = (size_t)n * y_cols * sizeof(float);
    uint32_t *positions = malloc(n_words), *seqs = malloc(n_words);
    float *q = malloc(n_bytes), *y = poisoned((size_t)n * y_cols);
    for (uint32_t i = 0; i < n; i++) {
        positions[i] = rows[i].position;
        seqs[i] = rows[i].seq;
        size_t token = w->first[rows[i].seq] + rows[i].position;
        memcpy(q + (size_t)i * cols, w->q + token * all + (size_t)w->head_begin * w->s.head_dim,
               cols * sizeof(float));
    }
    void *device_q = gpu_upload(q, n_bytes), *device_y = gpu_upload(NULL, y_bytes);
    void *device_positions = gpu_upload(positions, n_words),
         *device_seqs = gpu_upload(seqs, n_words);
    struct tensor tq = tensor_view(device_q, DTYPE_F32, n, cols),
                  ty = tensor_view(device_y, DTYPE_F32, n, y_cols);
    struct attention_rows batch = {.positions = device_positions,
                                   .seq_of_row = device_seqs,
                                   .block_tables = w->device_tables,
                                   .table_stride = w->stride,
                                   .n_rows = n,
                                   .n_seqs = w->n_seqs,
                                   .max_positions = max_positions};
    struct attention_params params = params_of(w, w->device_slopes, w->device_sinks);
    struct kv_layer kv = layer_of(w);
    gpu.stream->roles = roles;
    gpu.stream->n_roles = n_roles;
    assert_int_equal(op_attention(gpu.stream, &ty, &tq, &kv, &batch, &params), 0);
    gpu.stream->n_roles = 0;
    gpu_fetch(y, device_y, y_bytes);
    gpu_drop(device_q, n_bytes);
    gpu_drop(device_y, y_bytes);
    gpu_drop(device_positions, n_words);
    gpu_drop(device_seqs, n_words);
    free(positions);
    free(seqs);
    free(q);
    return y;
}

float *gpu_attend_path(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                       bool generated)
{
    const struct role_run run = {0, n, generated};
    return gpu_attend(w, rows, n, &run, 1, 0);
}

float *cpu_attend(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n)
{
    struct rig rig = rig_open("ref", 1);
    uint32_t cols = w->n_heads * w->s.head_dim, kv_cols = w->s.n_kv * w->s.head_dim;
    uint32_t *positions = malloc(n * sizeof(uint32_t)), *seqs = malloc(n * sizeof(uint32_t));
    uint32_t *slots = token_slots(w);
    uint32_t v_cols = w->s.n_kv * w->v_dim, y_cols = w->n_heads * w->v_dim;
    float *q = malloc((size_t)n * cols * sizeof(float)), *y = poisoned((size_t)n * y_cols);
    struct kv_layer kv = layer_of(w);
    for (uint32_t i = 0; i < n; i++) {
        positions[i] = rows[i].position;
        seqs[i] = rows[i].seq;
        memcpy(q + (size_t)i * cols, w->q + (size_t)(w->first[seqs[i]] + positions[i]) * cols,
               cols * sizeof(float));
    }
    kv.k = malloc(w->pool_bytes);
    kv.v = w->pool_v ? malloc(w->v_pool_bytes) : NULL;
    struct tensor k = tensor_view(w->k, DTYPE_F32, w->n_tokens, kv_cols),
                  v = tensor_view(w->v, DTYPE_F32, w->n_tokens, v_cols),
                  tq = tensor_view(q, DTYPE_F32, n, cols),
                  ty = tensor_view(y, DTYPE_F32, n, y_cols);
    struct attention_rows batch = {positions, seqs, NULL, w->tables, w->stride, n, w->n_seqs, 0};
    struct attention_params params = params_of(w, w->slopes, w->sinks);
    assert_int_equal(op_kv_write(rig.stream, &kv, &k, kv.v ? &v : NULL, slots), 0);
    assert_int_equal(op_attention(rig.stream, &ty, &tq, &kv, &batch, &params), 0);
    rig_close(&rig);
    free(kv.k);
    free(kv.v);
    free(positions);
    free(seqs);
    free(slots);
    free(q);
    return y;
}

/* Returns the error of head h (of all heads) in one row. */
static double head_error(const struct gpu_world *w, struct gpu_row row, uint32_t h, const float *y)
{
    uint32_t n = w->s.head_dim, n_v = w->v_dim, end = row.position + 1;
    uint32_t begin = attention_first(row.position, w->s.window, w->chunk);
    size_t step = (size_t)w->s.n_kv * n, at = w->first[row.seq] * step + h / w->s.heads_per_kv * n;
    size_t v_step = (size_t)w->s.n_kv * n_v,
           v_at = w->first[row.seq] * v_step + h / w->s.heads_per_kv * n_v;
    const float *q = w->q + ((size_t)(w->first[row.seq] + row.position) * w->n_heads + h) * n;
    double *p = malloc(end * sizeof(double)), max = -INFINITY, sum = 0.0, worst = 0.0, most = 0.0;
    for (uint32_t i = begin; i < end; i++) {
        p[i] = 0.0;
        for (uint32_t d = 0; d < n; d++)
            p[i] += (double)q[d] * (double)w->k_held[at + i * step + d];
        p[i] /= sqrt(n);
        if (w->s.softcap > 0.0f)
            p[i] = (double)w->s.softcap * tanh(p[i] / (double)w->s.softcap);
        if (w->slopes)
            p[i] -= (double)w->slopes[h] * (row.position - i);
        max = fmax(max, p[i]);
    }
    if (w->sinks) {
        max = fmax(max, (double)w->sinks[h]);
        sum = exp((double)w->sinks[h] - max);
    }
    for (uint32_t i = begin; i < end; i++)
        sum += p[i] = exp(p[i] - max);
    double *x =
        calloc(n_v, sizeof(*x)); /* each in the order of positions; memory is read along rows */
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < n_v; d++) {
            double v = (double)w->v_held[v_at + i * v_step + d];
            x[d] += p[i] * v;
            most = fabs(v) > most ? fabs(v) : most;
        }
    for (uint32_t d = 0; d < n_v; d++) {
        double error = fabs(x[d] / sum - (double)y[d]);
        worst = error <= worst ? worst : error; /* NaN is kept */
    }
    free(x);
    free(p);
    return worst / most;
}

double gpu_attention_error(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                           const float *y)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < w->rank_heads; h++) {
            double error = head_error(w, rows[i], w->head_begin + h,
                                      y + ((size_t)i * w->rank_heads + h) * w->v_dim);
            if (!(error <= worst))
                worst = error;
        }
    return worst;
}
