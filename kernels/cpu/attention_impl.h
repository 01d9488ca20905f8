/* attention_impl.h: attention of a tile of query rows of one sequence against one KV head, in
 * 16-lane vectors. Partition by partition of 128 positions: K transposed and V widened to f32 once
 * for all queries of the tile, then scores (a chain of FMAs over head_dim per position), softmax
 * within the partition, P·V (a chain over positions per element), and the partition is folded into
 * the running result in index order. What a query computes depends on its own position only.
 * Operations per query and partition: 4·128·head_dim; bytes: 2·128·head_dim elements per tile.
 * Sources: arXiv 2205.14135 (online softmax), 2309.06180 (paged KV). */

/* ATTENTION_NQ queries at a time; ATTENTION_NV vectors of positions or elements. */

enum { PART = ATTENTION_PARTITION };

struct attention_scratch {
    float *k;         /* [head_dim][PART] */
    float *v;         /* [PART][head_dim padded to 16] */
    float *p;         /* [MAX_Q][PART] scores, then weights */
    float *out;       /* [MAX_Q][dim] running P·V */
    float *part;      /* [MAX_Q][dim] P·V of this partition */
    float *max, *sum; /* [MAX_Q] running */
    float *part_max, *part_sum;
    uint32_t dim; /* head_dim padded to 16 */
};

static struct attention_scratch lay_out_scratch(float *at, uint32_t head_dim)
{
    struct attention_scratch s = {.dim = (head_dim + 15) & ~15u};
    s.k = at;
    s.v = s.k + (size_t)s.dim * PART;
    s.p = s.v + (size_t)s.dim * PART;
    s.out = s.p + (size_t)ATTENTION_MAX_Q * PART;
    s.part = s.out + (size_t)ATTENTION_MAX_Q * s.dim;
    s.max = s.part + (size_t)ATTENTION_MAX_Q * s.dim;
    s.sum = s.max + ATTENTION_MAX_Q;
    s.part_max = s.sum + ATTENTION_MAX_Q;
    s.part_sum = s.part_max + ATTENTION_MAX_Q;
    return s;
}

/* Elements [d, d + 16) of a cached vector; beyond head_dim they are 0. */
static inline v16 load_cached(const uint8_t *item, enum dtype type, uint32_t d, uint32_t head_dim)
{
    if (d + 16 <= head_dim) {
        if (type == DTYPE_F32)
            return v_load((const float *)(const void *)item + d);
        const uint16_t *halves = (const uint16_t *)(const void *)item + d;
        return type == DTYPE_F16 ? v_load_f16(halves) : v_load_bf16(halves);
    }
    float values[16] = {0};
    dtype_to_f32(type, item + (size_t)d * dtype_block_bytes(type), head_dim - d, values);
    return v_load(values);
}

/* Stands for positions beyond the context: all zero. */
static const uint8_t no_position[ATTENTION_MAX_HEAD_DIM * sizeof(float)];

/* K of 16 positions into columns [first, first + 16) of the transposed K, and V into rows. */
static void load_16_any(const struct attention_scratch *s, const uint8_t *const k_items[16],
                        const uint8_t *const v_items[16], uint32_t first, enum dtype type,
                        uint32_t head_dim)
{
    for (uint32_t d = 0; d < s->dim; d += 16) {
        v16 rows[16];
        for (uint32_t i = 0; i < 16; i++)
            rows[i] = load_cached(k_items[i], type, d, head_dim);
        v_transpose(rows);
        for (uint32_t i = 0; i < 16; i++)
            v_store(s->k + (size_t)(d + i) * PART + first, rows[i]);
        for (uint32_t i = 0; i < 16; i++)
            v_store(s->v + (size_t)(first + i) * s->dim + d,
                    load_cached(v_items[i], type, d, head_dim));
    }
}

/* The same for 16-bit types and head_dim a multiple of 32: pairs of elements are transposed as
 * dwords and split afterwards, which halves the shuffles. */
ALWAYS_INLINE void load_16_halves(const struct attention_scratch *s,
                                  const uint8_t *const k_items[16],
                                  const uint8_t *const v_items[16], uint32_t first, enum dtype type)
{
    for (uint32_t d = 0; d < s->dim; d += 32) {
        v16 rows[16];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++)
            rows[i] = v_load((const float *)(const void *)(k_items[i] + 2 * d));
        v_transpose(rows);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            float *even = s->k + (size_t)(d + 2 * i) * PART + first;
            v16 low, high;
            if (type == DTYPE_F16)
                v_split_f16(rows[i], &low, &high);
            else
                v_split_bf16(rows[i], &low, &high);
            v_store(even, low);
            v_store(even + PART, high);
        }
    }
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t d = 0; d < s->dim; d += 16)
            v_store(s->v + (size_t)(first + i) * s->dim + d,
                    load_cached(v_items[i], type, d, s->dim));
}

/* Byte offset of a position's vector in K and V. */
static size_t place_of(const struct attention_tile *t, uint32_t position)
{
    const struct kv_layer *kv = t->kv;
    size_t block = t->table[position / kv->block_size];
    return ((block * kv->n_kv_heads + t->i_kv) * kv->block_size + position % kv->block_size) *
           ((size_t)kv->head_dim * dtype_block_bytes(kv->dtype));
}

/* Where 16 positions from `position` on lie, of which the first `count` exist. */
static void find_16(const struct attention_tile *t, uint32_t position, uint32_t count,
                    const uint8_t *k_items[16], const uint8_t *v_items[16])
{
    const struct kv_layer *kv = t->kv;
    const uint8_t *k = kv->k, *v = kv->v;
    size_t item = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype),
           place = place_of(t, position);
    bool one_block = kv->block_size % 16 == 0;
    for (uint32_t i = 0; i < 16; i++, place += item) {
        if (!one_block && i < count)
            place = place_of(t, position + i);
        k_items[i] = i < count ? k + place : no_position;
        v_items[i] = i < count ? v + place : no_position;
    }
}

/* Loads positions [base, base + n) of a partition, the rest up to a multiple of 16 as zeros. */
static void load_partition(const struct attention_tile *t, const struct attention_scratch *s,
                           uint32_t base, uint32_t n)
{
    const struct kv_layer *kv = t->kv;
    size_t run_bytes = (size_t)kv->head_dim * dtype_block_bytes(kv->dtype) * 16;
    for (uint32_t first = 0; first < n; first += 16) {
        const uint8_t *k_items[16], *v_items[16];
        find_16(t, base + first, n - first < 16 ? n - first : 16, k_items, v_items);
        if (first + 16 < n) { /* the next run comes while this one is worked on */
            size_t next = place_of(t, base + first + 16);
            for (size_t at = 0; at < run_bytes; at += 64) {
                _mm_prefetch((const char *)kv->k + next + at, _MM_HINT_T0);
                _mm_prefetch((const char *)kv->v + next + at, _MM_HINT_T0);
            }
        }
        if (kv->dtype == DTYPE_BF16 && kv->head_dim % 32 == 0)
            load_16_halves(s, k_items, v_items, first, DTYPE_BF16);
        else if (kv->dtype == DTYPE_F16 && kv->head_dim % 32 == 0)
            load_16_halves(s, k_items, v_items, first, DTYPE_F16);
        else
            load_16_any(s, k_items, v_items, first, kv->dtype, kv->head_dim);
    }
}

/* out[q][c] = Σ_j a[q][j] · b[j][c], j ascending: a chain of FMAs per element. nq rows of a, n_vec
 * vectors of columns. */
ALWAYS_INLINE void product_tile(const float *const a[], const float *b, size_t b_stride,
                                uint32_t n_j, float *const out[], int nq, int n_vec)
{
    v16 acc[ATTENTION_NQ][ATTENTION_NV];
#pragma GCC unroll 16
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 16
        for (int c = 0; c < n_vec; c++)
            acc[q][c] = v_zero();
    for (uint32_t j = 0; j < n_j; j++, b += b_stride) {
        v16 bj[ATTENTION_NV];
#pragma GCC unroll 16
        for (int c = 0; c < n_vec; c++)
            bj[c] = v_load(b + 16 * c);
#pragma GCC unroll 16
        for (int q = 0; q < nq; q++) {
            v16 aq = v_set1(a[q][j]);
#pragma GCC unroll 16
            for (int c = 0; c < n_vec; c++)
                acc[q][c] = v_fma(aq, bj[c], acc[q][c]);
        }
    }
#pragma GCC unroll 16
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 16
        for (int c = 0; c < n_vec; c++)
            v_store(out[q] + 16 * c, acc[q][c]);
}

/* The same for any width: columns in runs of ATTENTION_NV vectors, then one by one. */
ALWAYS_INLINE void product_rows(const float *const a[], const float *b, size_t b_stride,
                                uint32_t n_j, float *const out[], uint32_t n_cols, int nq)
{
    float *at[ATTENTION_NQ];
    uint32_t c = 0;
    for (; c < n_cols;) {
        for (int q = 0; q < nq; q++)
            at[q] = out[q] + c;
        if (c + 16 * ATTENTION_NV <= n_cols) {
            product_tile(a, b + c, b_stride, n_j, at, nq, ATTENTION_NV);
            c += 16 * ATTENTION_NV;
        } else {
            product_tile(a, b + c, b_stride, n_j, at, nq, 1);
            c += 16;
        }
    }
}

static void product(const float *const a[], const float *b, size_t b_stride, uint32_t n_j,
                    float *const out[], uint32_t n_cols, uint32_t nq)
{
    if (nq == ATTENTION_NQ) {
        product_rows(a, b, b_stride, n_j, out, n_cols, ATTENTION_NQ);
        return;
    }
    uint32_t q = 0;
    for (; q + 3 <= nq; q += 3)
        product_rows(a + q, b, b_stride, n_j, out + q, n_cols, 3);
    for (; q < nq; q++)
        product_rows(a + q, b, b_stride, n_j, out + q, n_cols, 1);
}

/* softcap·tanh(x / softcap) = softcap·(1 − 2 / (1 + exp(2x / softcap))) */
static inline v16 v_softcap(v16 x, float cap)
{
    v16 e = v_exp(v_mul(x, v_set1(2.0f / cap))), one = v_set1(1.0f);
    return v_mul(v_set1(cap), v_sub(one, v_div(v_set1(2.0f), v_add(one, e))));
}

/* Scores p[0, n) of one query become weights; those outside [first, last) weigh exactly 0. n is a
 * multiple of 16. */
static void softmax_partition(const struct attention_tile *t, float *p, uint32_t first,
                              uint32_t last, uint32_t n, float *out_max, float *out_sum)
{
    v16 max = v_set1(-INFINITY), sum = v_zero(), low = v_set1((float)first),
        high = v_set1((float)last);
    v16 lane = v_load((const float[16]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    for (uint32_t i = 0; i < n; i += 16) {
        v16 x = v_mul(v_load(p + i), v_set1(t->scale));
        if (t->softcap > 0.0f)
            x = v_softcap(x, t->softcap);
        v16 at = v_add(lane, v_set1((float)i));
        x = v_select_lt(at, low, v_set1(-INFINITY), x);
        x = v_select_lt(at, high, x, v_set1(-INFINITY));
        v_store(p + i, x);
        max = v_max(max, x);
    }
    *out_max = v_max_lanes(max);
    for (uint32_t i = 0; i < n; i += 16) {
        v16 e = v_exp(v_sub(v_load(p + i), v_set1(*out_max)));
        v_store(p + i, e);
        sum = v_add(sum, e);
    }
    *out_sum = v_sum(sum);
}

static float exp1(float x)
{
    float lanes[16];
    v_store(lanes, v_exp(v_set1(x)));
    return lanes[0];
}

/* Folds the partition of query q into its running result. */
static void fold(const struct attention_scratch *s, uint32_t q)
{
    float *out = s->out + (size_t)q * s->dim, *part = s->part + (size_t)q * s->dim;
    if (s->sum[q] == 0.0f) { /* the first partition that this query sees */
        s->max[q] = s->part_max[q];
        s->sum[q] = s->part_sum[q];
        memcpy(out, part, s->dim * sizeof(float));
        return;
    }
    float max = s->max[q] > s->part_max[q] ? s->max[q] : s->part_max[q];
    float keep = exp1(s->max[q] - max), take = exp1(s->part_max[q] - max);
    s->sum[q] = s->sum[q] * keep + s->part_sum[q] * take;
    s->max[q] = max;
    for (uint32_t d = 0; d < s->dim; d += 16)
        v_store(out + d,
                v_add(v_mul(v_load(out + d), v_set1(keep)), v_mul(v_load(part + d), v_set1(take))));
}

/* What a query at `position` sees of the partition at `base`: [first, last) within it. */
static void visible(const struct attention_tile *t, uint32_t position, uint32_t base,
                    uint32_t *out_first, uint32_t *out_last)
{
    uint64_t end = (uint64_t)position + 1, begin = 0;
    if (t->window > 0 && end > t->window)
        begin = end - t->window;
    *out_last = end <= base ? 0 : end - base < PART ? (uint32_t)(end - base) : PART;
    *out_first = begin <= base ? 0 : begin - base < PART ? (uint32_t)(begin - base) : PART;
}

/* Queries [q, q + nq) of the tile against the loaded partition. */
static void attend(const struct attention_tile *t, const struct attention_scratch *s, uint32_t base,
                   uint32_t q, uint32_t nq)
{
    const float *a[ATTENTION_NQ];
    float *out[ATTENTION_NQ];
    uint32_t first[ATTENTION_NQ], last[ATTENTION_NQ], most = 0;
    for (uint32_t i = 0; i < nq; i++) {
        uint32_t row = (q + i) / t->n_heads, head = (q + i) % t->n_heads;
        a[i] = t->q + row * t->q_stride + (size_t)head * t->kv->head_dim;
        out[i] = s->p + (size_t)(q + i) * PART;
        visible(t, t->positions[row], base, &first[i], &last[i]);
        most = last[i] > most ? last[i] : most;
    }
    most = (most + 15) & ~15u;
    product(a, s->k, PART, t->kv->head_dim, out, most, nq);
    for (uint32_t i = 0; i < nq; i++) {
        if (first[i] < last[i])
            softmax_partition(t, out[i], first[i], last[i], most, &s->part_max[q + i],
                              &s->part_sum[q + i]);
        a[i] = out[i];
        out[i] = s->part + (size_t)(q + i) * s->dim;
    }
    product(a, s->v, s->dim, most, out, s->dim, nq);
    for (uint32_t i = 0; i < nq; i++)
        if (first[i] < last[i])
            fold(s, q + i);
}

static void attention(const struct attention_tile *t, void *scratch)
{
    struct attention_scratch s = lay_out_scratch(scratch, t->kv->head_dim);
    uint32_t n_q = t->n_rows * t->n_heads, longest = t->positions[t->n_rows - 1] + 1;
    uint32_t begin = 0, n = t->kv->head_dim;
    if (t->window > 0 && t->positions[0] + 1 > t->window)
        begin = (t->positions[0] + 1 - t->window) / PART * PART;
    memset(s.sum, 0, n_q * sizeof(float));
    for (uint32_t base = begin; base < longest; base += PART) {
        load_partition(t, &s, base, longest - base < PART ? longest - base : PART);
        uint32_t q = 0; /* rows ascend: those before the partition come first */
        while (t->positions[q / t->n_heads] < base)
            q += t->n_heads;
        for (; q < n_q; q += ATTENTION_NQ)
            attend(t, &s, base, q, n_q - q < ATTENTION_NQ ? n_q - q : ATTENTION_NQ);
    }
    for (uint32_t q = 0; q < n_q; q++) {
        const float *out = s.out + (size_t)q * s.dim;
        float *y = t->y + q / t->n_heads * t->y_stride + (size_t)(q % t->n_heads) * n;
        float scale = 1.0f / s.sum[q];
        for (uint32_t d = 0; d + 16 <= n; d += 16)
            v_store(y + d, v_mul(v_load(out + d), v_set1(scale)));
        for (uint32_t d = n & ~15u; d < n; d++)
            y[d] = out[d] * scale;
    }
}
