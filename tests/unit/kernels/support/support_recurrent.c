#include "tests/unit/kernels/support/support_recurrent.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { X_GAP = 5, Y_GAP = 3, SLOT_GAP = 7 };

#define NORM_EPS 1e-6f

static float *uniform_floats(struct random *r, size_t n, float low, float high)
{
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_uniform(r, low, high);
    return x;
}

/* Returns the place of n bytes for the op: a copy on its device, or the host's. */
static void *put(const struct recurrent_world *w, const void *host, size_t n_bytes)
{
    return w->memory == NULL || host == NULL ? (void *)(uintptr_t)host
                                             : w->memory->put(host, n_bytes);
}

/* Takes the copy back to the host, if `to` is not NULL, and drops the copy. */
static void take(const struct recurrent_world *w, const void *data, void *to, size_t n_bytes)
{
    if (w->memory == NULL || data == NULL)
        return;
    if (to != NULL)
        w->memory->get(to, data, n_bytes);
    w->memory->drop((void *)(uintptr_t)data, n_bytes);
}

/* The op's tensor of a tensor in host memory with a row more than n_rows, and its bytes. */
static struct tensor put_rows(const struct recurrent_world *w, const struct tensor *host)
{
    struct tensor t = *host;
    t.data = put(w, host->data, (host->n_rows + 1) * host->row_stride * sizeof(float));
    return t;
}

static void take_rows(const struct recurrent_world *w, const struct tensor *t, void *to)
{
    take(w, t->data, to, (t->n_rows + 1) * t->row_stride * sizeof(float));
}

/* The parameters of each head, or of each column of a convolution, for the op. */
struct own_params {
    float *a, *d, *dt_bias, *w;
};

static size_t d_bytes(const struct recurrent_shape *s)
{
    return (s->kind == KIND_CONV ? s->head_dim : s->n_heads) * sizeof(float);
}

static struct own_params put_params(const struct recurrent_world *w)
{
    const struct recurrent_shape *s = &w->shape;
    size_t n = s->n_heads * sizeof(float);
    return (struct own_params){put(w, w->a, n), put(w, w->d, d_bytes(s)), put(w, w->dt_bias, n),
                               put(w, w->w, (size_t)s->dim * s->head_dim * sizeof(float))};
}

static void drop_params(const struct recurrent_world *w, const struct own_params *p)
{
    float *all[] = {p->a, p->d, p->dt_bias, p->w};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        take(w, all[i], NULL, sizeof(float));
}

/* A world without results. */
static struct recurrent_world open_inputs(const struct recurrent_shape *s, uint32_t n_seqs,
                                          uint32_t n_tokens, uint64_t seed)
{
    struct random r = {seed};
    struct recurrent_world w = {.shape = *s, .n_seqs = n_seqs, .n_tokens = n_tokens};
    size_t n = (size_t)n_seqs * n_tokens;
    if (s->kind == KIND_CONV) {
        w.x_cols = w.y_cols = s->head_dim;
        w.state_floats = (size_t)(s->dim - 1) * s->head_dim;
        w.w = random_floats(&r, (size_t)s->dim * s->head_dim, 0.0f);
        w.d = random_floats(&r, s->head_dim, 0.0f); /* the bias */
    } else {
        w.y_cols = s->n_heads * s->head_dim;
        w.x_cols = w.y_cols + 2 * s->n_keys * s->dim;
        w.state_floats = (size_t)w.y_cols * s->dim;
        w.d = random_floats(&r, s->n_heads, 0.0f);
        w.a = uniform_floats(&r, s->n_heads, -1.2f, -0.01f); /* decays from 0.7 to 0.999 */
        w.dt_bias = uniform_floats(&r, s->n_heads, -2.5f, -0.5f);
        w.dt = random_floats(&r, n * s->n_heads, 0.0f);
        w.beta = random_floats(&r, n * s->n_heads, 0.0f);
    }
    w.slot_floats = w.state_floats + SLOT_GAP;
    w.x = random_floats(&r, n * w.x_cols, 0.0f);
    return w;
}

struct recurrent_world recurrent_open(const struct recurrent_shape *shape, uint32_t n_seqs,
                                      uint32_t n_tokens, uint64_t seed)
{
    struct recurrent_world w = open_inputs(shape, n_seqs, n_tokens, seed);
    struct rig rig = rig_open("ref", 1);
    size_t n = (size_t)n_seqs * n_tokens;
    w.y = malloc(n * w.y_cols * sizeof(float));
    w.states = malloc(n * w.state_floats * sizeof(float));
    float *pool = poisoned(w.slot_floats);
    assert_non_null(w.y);
    assert_non_null(w.states);
    for (uint32_t token = 0; token < n; token++) {
        struct recurrent_row row = {token, token % n_tokens > 0 ? 0 : RECURRENT_NONE, 0,
                                    w.y + (size_t)token * w.y_cols};
        assert_int_equal(recurrent_step(&w, &rig, pool, 1, &row, 1, false), 0);
        memcpy(w.states + token * w.state_floats, pool, w.state_floats * sizeof(float));
    }
    free(pool);
    rig_close(&rig);
    return w;
}

void recurrent_close(struct recurrent_world *w)
{
    float *all[] = {w->x, w->dt, w->beta, w->a, w->d, w->dt_bias, w->w, w->y, w->states};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

const float *recurrent_state(const struct recurrent_world *w, uint32_t seq, uint32_t position)
{
    return w->states + ((size_t)seq * w->n_tokens + position) * w->state_floats;
}

uint32_t token_position(const struct recurrent_world *w, uint32_t token)
{
    return token % w->n_tokens;
}

/* Copies the rows' columns out of all tokens, with a gap between the rows. */
static struct tensor gather(const float *all, uint32_t n_cols, uint32_t gap,
                            const struct recurrent_row *rows, uint32_t n)
{
    float *data = poisoned((size_t)(n + 1) * (n_cols + gap));
    struct tensor t = {data, DTYPE_F32, n, n_cols, n_cols + gap};
    for (uint32_t r = 0; r < n && all != NULL; r++)
        memcpy(tensor_row_f32(&t, r), all + (size_t)rows[r].token * n_cols, n_cols * sizeof(float));
    return t;
}

/* The whole model's heads. */
static struct delta_params delta_params(const struct recurrent_world *w,
                                        const struct own_params *own)
{
    const struct recurrent_shape *s = &w->shape;
    return (struct delta_params){
        .n_key_heads = s->n_keys,
        .n_heads = s->n_heads,
        .key_dim = s->dim,
        .head_dim = s->head_dim,
        .n_all_key_heads = s->n_keys,
        .n_all_heads = s->n_heads,
        .tiled = s->tiled,
        .a = own->a,
        .dt_bias = own->dt_bias,
        .norm_eps = NORM_EPS,
        .scale = 1.0f / sqrtf((float)s->dim),
    };
}

int recurrent_step(const struct recurrent_world *w, const struct rig *rig, float *pool,
                   uint32_t n_slots, const struct recurrent_row *rows, uint32_t n, bool in_place)
{
    const struct recurrent_shape *s = &w->shape;
    struct tensor x = gather(w->x, w->x_cols, X_GAP, rows, n),
                  dt = gather(w->dt, s->n_heads, 1, rows, n),
                  beta = gather(w->beta, s->n_heads, 2, rows, n),
                  own = gather(NULL, w->y_cols, Y_GAP, rows, n);
    bool y_is_x = in_place && s->kind == KIND_CONV;
    uint32_t *reads = calloc(n + 1, sizeof(*reads)), *writes = calloc(n + 1, sizeof(*writes));
    assert_non_null(reads);
    assert_non_null(writes);
    for (uint32_t r = 0; r < n; r++) {
        reads[r] = rows[r].reads;
        writes[r] = rows[r].writes;
    }
    const struct own_params params = put_params(w);
    struct tensor tx = put_rows(w, &x), tdt = put_rows(w, &dt), tbeta = put_rows(w, &beta),
                  town = put_rows(w, &own);
    struct tensor *y = y_is_x ? &tx : &town;
    const size_t n_pool = n_slots * w->slot_floats * sizeof(float),
                 n_ids = (n + 1) * sizeof(*reads);
    const struct state_rows state_rows = {put(w, reads, n_ids), put(w, writes, n_ids), n};
    const struct state_view view = {put(w, pool, n_pool), w->slot_floats, n_slots};
    int rc;
    if (s->kind == KIND_CONV) {
        const struct conv_params p = {s->head_dim, s->dim, params.w, s->has_bias ? params.d : NULL,
                                      s->silu};
        rc = op_conv(rig->stream, y, &tx, &view, &state_rows, &p);
    } else if (s->kind == KIND_DELTA) {
        const struct delta_params p = delta_params(w, &params);
        rc = op_delta_net(rig->stream, y, &tx, &tbeta, &tdt, &view, &state_rows, &p);
    } else {
        const struct ssm_params p = {s->n_keys, s->n_heads, s->dim,        s->head_dim,
                                     params.a,  params.d,   params.dt_bias};
        rc = op_ssm(rig->stream, y, &tx, &tdt, &view, &state_rows, &p);
    }
    take_rows(w, &tx, x.data);
    take_rows(w, &tdt, NULL);
    take_rows(w, &tbeta, NULL);
    take_rows(w, &town, own.data);
    take(w, state_rows.reads, NULL, n_ids);
    take(w, state_rows.writes, NULL, n_ids);
    take(w, view.base, pool, n_pool);
    drop_params(w, &params);
    const struct tensor *result = y_is_x ? &x : &own;
    for (uint32_t r = 0; r < n; r++) {
        memcpy(rows[r].y, tensor_row_f32(result, r), w->y_cols * sizeof(float));
        assert_true(isnan(tensor_row_f32(result, r)[w->y_cols]));
    }
    for (uint32_t slot = 0; slot < n_slots; slot++)
        assert_true(isnan(pool[slot * w->slot_floats + w->state_floats]));
    free(x.data);
    free(dt.data);
    free(beta.data);
    free(own.data);
    free(reads);
    free(writes);
    return rc;
}

void recurrent_check_rank(const struct recurrent_world *w, const struct rig *rig,
                          uint32_t first_head, uint32_t n_heads, uint32_t piece)
{
    const struct recurrent_shape *s = &w->shape;
    const struct own_params params = put_params(w);
    struct delta_params p = delta_params(w, &params);
    p.first_head = first_head;
    p.n_heads = n_heads;
    p.a += first_head;
    p.dt_bias += first_head;
    if (!s->tiled) { /* the rank holds the keys that its heads read */
        uint32_t per_key = s->n_heads / s->n_keys;
        p.first_key = first_head / per_key;
        p.n_key_heads = (first_head + n_heads - 1) / per_key + 1 - p.first_key;
    }
    uint32_t n_keys = p.n_key_heads * s->dim, n_values = n_heads * s->head_dim,
             n_cols = 2 * n_keys + n_values;
    const size_t n_pool = 2 * w->slot_floats * sizeof(float),
                 n_gates = (size_t)w->n_tokens * s->n_heads * sizeof(float);
    float *pool = poisoned(2 * w->slot_floats), *all_dt = put(w, w->dt, n_gates),
          *all_beta = put(w, w->beta, n_gates);
    const struct state_view view = {put(w, pool, n_pool), w->slot_floats, 2};
    for (uint32_t begin = 0; begin < w->n_tokens; begin += piece) {
        uint32_t n = w->n_tokens - begin < piece ? w->n_tokens - begin : piece;
        float *qkv = poisoned((size_t)n * n_cols), *y = poisoned((size_t)n * n_values);
        uint32_t reads[64], writes[64];
        assert_true(n <= 64);
        for (uint32_t r = 0; r < n; r++) {
            const float *x = w->x + (size_t)(begin + r) * w->x_cols;
            float *row = qkv + (size_t)r * n_cols;
            for (int i = 0; i < 2; i++)
                memcpy(row + i * n_keys, x + (i * s->n_keys + p.first_key) * s->dim,
                       n_keys * sizeof(float));
            memcpy(row + 2 * n_keys, x + 2 * s->n_keys * s->dim + first_head * s->head_dim,
                   n_values * sizeof(float));
            reads[r] = r > 0 ? RECURRENT_PREVIOUS : begin > 0 ? 1 : RECURRENT_NONE;
            writes[r] = r + 1 == n ? 1 : RECURRENT_NONE;
        }
        const size_t n_ids = n * sizeof(*reads), n_x = (size_t)n * n_cols * sizeof(float),
                     n_y = (size_t)n * n_values * sizeof(float);
        const struct state_rows rows = {put(w, reads, n_ids), put(w, writes, n_ids), n};
        size_t at = (size_t)begin * s->n_heads + first_head;
        struct tensor tx = tensor_view(put(w, qkv, n_x), DTYPE_F32, n, n_cols),
                      ty = tensor_view(put(w, y, n_y), DTYPE_F32, n, n_values),
                      dt = {all_dt + at, DTYPE_F32, n, n_heads, s->n_heads},
                      beta = {all_beta + at, DTYPE_F32, n, n_heads, s->n_heads};
        assert_int_equal(op_delta_net(rig->stream, &ty, &tx, &beta, &dt, &view, &rows, &p), 0);
        take(w, rows.reads, NULL, n_ids);
        take(w, rows.writes, NULL, n_ids);
        take(w, tx.data, NULL, n_x);
        take(w, ty.data, y, n_y);
        for (uint32_t r = 0; r < n; r++)
            assert_same_bits(w->y + (size_t)(begin + r) * w->y_cols + first_head * s->head_dim,
                             y + (size_t)r * n_values, n_values * sizeof(float), "rank");
        free(qkv);
        free(y);
    }
    take(w, view.base, pool, n_pool);
    take(w, all_dt, NULL, n_gates);
    take(w, all_beta, NULL, n_gates);
    drop_params(w, &params);
    size_t head_floats = (size_t)s->dim * s->head_dim;
    assert_same_bits(recurrent_state(w, 0, w->n_tokens - 1) + first_head * head_floats,
                     pool + w->slot_floats, n_heads * head_floats * sizeof(float), "rank");
    free(pool);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void conv_float64(const struct recurrent_world *w, double *y)
{
    const struct recurrent_shape *s = &w->shape;
    for (uint32_t r = 0; r < w->n_tokens; r++)
        for (uint32_t c = 0; c < w->y_cols; c++) {
            double sum = s->has_bias ? (double)w->d[c] : 0;
            for (uint32_t t = 0; t < s->dim; t++)
                if (r + t + 1 >= s->dim)
                    sum += (double)w->w[c * s->dim + t] *
                           (double)w->x[(size_t)(r + t + 1 - s->dim) * w->x_cols + c];
            y[(size_t)r * w->y_cols + c] = s->silu ? sum * sigmoid(sum) : sum;
        }
}

/* Copies a key or a query, after its norm in a delta net. */
static void key_float64(const struct recurrent_world *w, const float *x, double scale, double *out)
{
    double sum = (double)NORM_EPS;
    for (uint32_t i = 0; i < w->shape.dim; i++)
        sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < w->shape.dim; i++)
        out[i] = (double)x[i] * (w->shape.kind == KIND_DELTA ? scale / sqrt(sum) : 1);
}

/* A head of a delta net or of ssm. S[dim][head_dim] begins as zeros. */
static void head_float64(const struct recurrent_world *w, uint32_t h, double *state, double *y)
{
    const struct recurrent_shape *s = &w->shape;
    const bool is_delta = s->kind == KIND_DELTA;
    uint32_t n_keys = s->n_keys * s->dim,
             key = s->tiled ? h % s->n_keys : h / (s->n_heads / s->n_keys);
    double k[RECURRENT_MAX_DIM], q[RECURRENT_MAX_DIM];
    for (uint32_t r = 0; r < w->n_tokens; r++) {
        const float *row = w->x + (size_t)r * w->x_cols, *x = row + h * s->head_dim,
                    *keys = row + w->y_cols, *queries = keys + n_keys;
        if (is_delta) {
            queries = row;
            keys = row + n_keys;
            x = row + 2 * n_keys + h * s->head_dim;
        }
        key_float64(w, keys + key * s->dim, 1, k);
        key_float64(w, queries + key * s->dim, 1 / sqrt((double)s->dim), q);
        size_t at = (size_t)r * s->n_heads + h;
        double t = log1p(exp((double)w->dt[at] + (double)w->dt_bias[h])),
               decay = exp(t * (double)w->a[h]), gain = is_delta ? sigmoid((double)w->beta[at]) : t;
        for (uint32_t j = 0; j < s->head_dim; j++) {
            double d = (double)x[j], sum = is_delta ? 0 : (double)w->d[h] * d;
            for (uint32_t i = 0; i < s->dim && is_delta; i++)
                d -= decay * k[i] * state[i * s->head_dim + j];
            for (uint32_t i = 0; i < s->dim; i++) {
                double *cell = &state[i * s->head_dim + j];
                *cell = decay * *cell + k[i] * gain * d;
                sum += q[i] * *cell;
            }
            y[(size_t)r * w->y_cols + h * s->head_dim + j] = sum;
        }
    }
}

static double largest_error(const float *got, const double *want, size_t n)
{
    double top = 0, error = 0;
    for (size_t i = 0; i < n; i++) {
        top = fmax(top, fabs(want[i]));
        if (!(fabs((double)got[i] - want[i]) <= error))
            error = fabs((double)got[i] - want[i]);
    }
    return error / top;
}

void recurrent_float64_error(const struct recurrent_shape *shape, uint32_t n_tokens,
                             double *out_error, double *out_state_error)
{
    struct recurrent_world w = open_inputs(shape, 1, n_tokens, 11);
    struct rig rig = rig_open("auto", 2);
    size_t n = (size_t)n_tokens * w.y_cols;
    float *pool = poisoned(w.slot_floats), *y = poisoned(n);
    double *want = calloc(n, sizeof(*want)), *state = calloc(w.state_floats, sizeof(*state));
    struct recurrent_row *rows = calloc(n_tokens, sizeof(*rows));
    assert_non_null(want);
    assert_non_null(state);
    assert_non_null(rows);
    for (uint32_t r = 0; r < n_tokens; r++)
        rows[r] = (struct recurrent_row){r, r > 0 ? RECURRENT_PREVIOUS : RECURRENT_NONE,
                                         r + 1 == n_tokens ? 0 : RECURRENT_NONE,
                                         y + (size_t)r * w.y_cols};
    assert_int_equal(recurrent_step(&w, &rig, pool, 1, rows, n_tokens, false), 0);
    *out_state_error = 0;
    if (shape->kind == KIND_CONV) {
        conv_float64(&w, want);
        for (uint32_t t = 0; t + 1 < shape->dim; t++)
            assert_same_bits(w.x + (size_t)(n_tokens + t + 1 - shape->dim) * w.x_cols,
                             pool + (size_t)t * w.x_cols, w.x_cols * sizeof(float), "last inputs");
    } else {
        for (uint32_t h = 0; h < shape->n_heads; h++)
            head_float64(&w, h, state + (size_t)h * shape->dim * shape->head_dim, want);
        *out_state_error = largest_error(pool, state, w.state_floats);
    }
    *out_error = largest_error(y, want, n);
    free(pool);
    free(y);
    free(want);
    free(state);
    free(rows);
    rig_close(&rig);
    recurrent_close(&w);
}
