#include <string.h>

#include "base/status.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/recurrent/recurrent_span.h"
#include "kernels/cpu/stream_cpu.h"

enum {
    MAX_ROWS = 1 << 18,
    FETCH_ROWS = 8, /* rows ahead, to prefetch */
    SHARES_PER_THREAD = 4,
    MIN_PARALLEL = 4096, /* smaller jobs run on the calling thread alone */
    /* Places in a member's scratch. S, or taps and old inputs, come first. */
    KEYS_AT = RECURRENT_MAX_DIM * RECURRENT_MAX_DIM * 4,
    GATES_AT = KEYS_AT + SPAN_ROWS * 3 * RECURRENT_MAX_DIM * 4,
};

_Static_assert(GATES_AT + 2 * (MAX_ROWS + 16) * sizeof(float) <= STREAM_SCRATCH_BYTES &&
                   2 * RECURRENT_MAX_WIDTH * CONV_COLUMNS * sizeof(float) <= KEYS_AT,
               "the work of an item fits a member's scratch");

static bool rows_are_sound(const struct state_view *state, const struct state_rows *rows)
{
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        uint32_t from = rows->reads[r], to = rows->writes[r];
        if (!(from < state->n_slots || from == RECURRENT_NONE ||
              (from == RECURRENT_PREVIOUS && r > 0)) ||
            !(to < state->n_slots || to == RECURRENT_NONE))
            return false;
    }
    return rows->n_rows <= MAX_ROWS;
}

/* Returns the first row at or after `row` that begins a run. */
static uint32_t run_begin(const struct state_rows *rows, uint32_t row)
{
    while (row < rows->n_rows && rows->reads[row] == RECURRENT_PREVIOUS)
        row++;
    return row;
}

static uint32_t run_end(const struct state_rows *rows, uint32_t begin)
{
    return run_begin(rows, begin + 1);
}

static bool is_padding(const struct state_rows *rows, uint32_t begin, uint32_t end)
{
    return end - begin == 1 && rows->reads[begin] == RECURRENT_NONE &&
           rows->writes[begin] == RECURRENT_NONE;
}

static float *slot_at(const struct state_view *state, uint32_t slot)
{
    return slot == RECURRENT_NONE ? NULL : state->base + slot * state->stride;
}

struct conv_job {
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    const struct tensor *y, *x;
    const struct state_view *state;
    const struct state_rows *rows;
    const struct conv_params *p;
    uint32_t n_columns; /* an item's */
};

/* The columns of an item in the rows of a run, the last row first: y may overwrite x. */
static void conv_run(const struct conv_job *job, const struct conv_row *shape, uint32_t column,
                     uint32_t begin, uint32_t end, float *old)
{
    const struct conv_params *p = job->p;
    uint32_t kept = p->width - 1;
    const float *from = slot_at(job->state, job->rows->reads[begin]), *x[RECURRENT_MAX_WIDTH];
    struct conv_row row = *shape;
    size_t old_stride = row.n;
    if (from != NULL && end - begin == 1) { /* no other row writes the slot before it is read */
        old = (float *)(uintptr_t)from + column;
        old_stride = p->n_cols;
    } else {
        for (uint32_t t = 0; t < kept; t++)
            if (from != NULL)
                memcpy(old + t * old_stride, from + (size_t)t * p->n_cols + column,
                       row.n * sizeof(float));
            else
                memset(old + t * old_stride, 0, row.n * sizeof(float));
    }
    row.x = x;
    row.state_stride = p->n_cols;
    for (uint32_t r = end; r-- > begin;) {
        for (uint32_t t = 0; t < p->width; t++) {
            uint32_t back = kept - t; /* rows before r */
            x[t] = back <= r - begin ? tensor_row_f32(job->x, r - back) + column
                                     : old + (kept - (back - (r - begin))) * old_stride;
        }
        row.state = slot_at(job->state, job->rows->writes[r]);
        if (row.state != NULL)
            row.state += column;
        row.y = tensor_row_f32(job->y, r) + column;
        row.ahead = r > begin + kept ? tensor_row_f32(job->x, r - 1 - kept) + column : NULL;
        job->inner->conv_row(&row);
    }
}

static void conv_columns(void *arg, uint32_t item, uint32_t member)
{
    const struct conv_job *job = arg;
    const struct conv_params *p = job->p;
    uint32_t column = item * job->n_columns, n = p->n_cols - column;
    if (n > job->n_columns)
        n = job->n_columns;
    float *taps = stream_scratch(job->stream, member), *old = taps + (size_t)p->width * n;
    job->inner->conv_taps(taps, n, p->w + (size_t)column * p->width, n, p->width);
    struct conv_row row = {.taps = taps,
                           .taps_stride = n,
                           .bias = p->bias != NULL ? p->bias + column : NULL,
                           .n = n,
                           .width = p->width,
                           .silu = p->silu};
    for (uint32_t begin = 0, end; begin < job->rows->n_rows; begin = end) {
        end = run_end(job->rows, begin);
        if (!is_padding(job->rows, begin, end))
            conv_run(job, &row, column, begin, end, old);
    }
}

int conv_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
             const struct state_view *state, const struct state_rows *rows,
             const struct conv_params *p)
{
    if (!rows_are_sound(state, rows))
        return STATUS_INTERNAL;
    struct thread_pool *pool = stream_cpu(s)->pool;
    struct conv_job job = {inner_of(s->ops), stream_cpu(s), y, x, state, rows, p, CONV_COLUMNS};
    uint32_t n_shares = SHARES_PER_THREAD * thread_pool_size(pool),
             columns = (p->n_cols / n_shares + 63) & ~63u;
    if (columns == 0)
        columns = 64;
    if (columns < job.n_columns && (uint64_t)rows->n_rows * p->n_cols >= MIN_PARALLEL)
        job.n_columns = columns;
    thread_pool_run_items(pool, (p->n_cols + job.n_columns - 1) / job.n_columns, conv_columns,
                          &job);
    return 0;
}

/* delta_net and ssm. */
struct span_job {
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    void (*span)(const struct state_span *span);
    const struct tensor *y, *x, *dt, *beta; /* x: qkv or xbc; beta NULL: ssm */
    const struct state_view *state;
    const struct state_rows *rows;
    const struct delta_params *delta; /* NULL: ssm */
    const struct ssm_params *ssm;     /* NULL: delta_net */
    const float *a, *dt_bias;
    uint32_t n_heads, dim, head_dim;
    uint32_t n_groups, n_parts; /* items: groups of runs × heads × parts of the columns */
};

/* Sets the columns of x that hold the keys, queries and values of a head. */
static void span_of_head(const struct span_job *job, uint32_t head, struct state_span *span)
{
    const float *x = job->x->data;
    if (job->delta != NULL) {
        size_t n_keys = (size_t)job->delta->n_key_heads * job->dim,
               key = (size_t)recurrent_key_head(job->delta, head) * job->dim;
        span->q = x + key;
        span->k = x + n_keys + key;
        span->x = x + 2 * n_keys + (size_t)head * job->head_dim;
    } else {
        const struct ssm_params *p = job->ssm;
        size_t n_values = (size_t)job->n_heads * job->head_dim,
               key = (size_t)(head / (p->n_heads / p->n_groups)) * job->dim;
        span->x = x + (size_t)head * job->head_dim;
        span->k = x + n_values + key;
        span->q = x + n_values + (size_t)p->n_groups * job->dim + key;
        span->skip = p->d[head];
    }
}

/* Returns the state that the item reads after the run that ends before row `next`. */
static const float *state_ahead(const struct span_job *job, uint32_t next, uint32_t end,
                                size_t head_at, uint32_t head, const float *from)
{
    if (next < end)
        from = slot_at(job->state, job->rows->reads[next]);
    else if (head + 1 < job->n_heads)
        head_at += (size_t)job->dim * job->head_dim;
    else
        return NULL;
    return from != NULL ? from + head_at : NULL;
}

/* Prefetches n floats. */
static void fetch(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        __builtin_prefetch(x + i);
}

/* Norms the span's queries and keys into `to`, and copies its values. There the rows are adjacent.
 * Rows of x are often a multiple of 4 KiB apart, so they would evict S from the caches. */
static void norm_keys(const struct span_job *job, struct state_span *span, float *to)
{
    const struct delta_params *p = job->delta;
    const size_t stride = 2 * (size_t)span->dim + ((span->n_cols + 15) & ~15u);
    for (uint32_t r = 0; r < span->n_rows; r++) {
        size_t at = r * span->x_stride;
        float *row = to + r * stride;
        if (r + FETCH_ROWS < span->n_rows) {
            fetch(span->k + at + FETCH_ROWS * span->x_stride, span->dim);
            fetch(span->q + at + FETCH_ROWS * span->x_stride, span->dim);
            fetch(span->x + at + FETCH_ROWS * span->x_stride, span->n_cols);
        }
        job->inner->l2_norm(row, span->k + at, span->dim, p->norm_eps, 1.0f);
        job->inner->l2_norm(row + span->dim, span->q + at, span->dim, p->norm_eps, p->scale);
        memcpy(row + 2 * (size_t)span->dim, span->x + at, span->n_cols * sizeof(float));
    }
    span->k = to;
    span->q = to + span->dim;
    span->x = to + 2 * (size_t)span->dim;
    span->k_stride = span->x_stride = stride;
    span->is_spread = false;
}

static void span_item(void *arg, uint32_t item, uint32_t member)
{
    const struct span_job *job = arg;
    const struct state_rows *rows = job->rows;
    uint32_t part = item % job->n_parts, head = item / job->n_parts % job->n_heads,
             group = item / job->n_parts / job->n_heads, begin, end, column, column_end;
    thread_pool_share(rows->n_rows, 1, group, job->n_groups, &begin, &end);
    thread_pool_share(job->head_dim, SPAN_GRAIN, part, job->n_parts, &column, &column_end);
    begin = run_begin(rows, begin);
    end = end > begin ? run_begin(rows, end) : begin;
    if (begin == end || column == column_end)
        return;

    uint8_t *scratch = stream_scratch(job->stream, member);
    float *decay = (float *)(void *)(scratch + GATES_AT), *gain = decay + MAX_ROWS + 16;
    const struct span_gates gates = {
        .decay = decay,
        .gain = gain,
        .dt = tensor_row_f32(job->dt, begin) + head,
        .beta = job->beta != NULL ? tensor_row_f32(job->beta, begin) + head : NULL,
        .dt_stride = job->dt->row_stride,
        .beta_stride = job->beta != NULL ? job->beta->row_stride : 0,
        .n_rows = end - begin,
        .a = job->a[head],
        .bias = job->dt_bias[head],
    };
    job->inner->span_gates(&gates);

    struct state_span at_zero = {.work = (float *)(void *)scratch,
                                 .k_stride = job->x->row_stride,
                                 .x_stride = job->x->row_stride,
                                 .y_stride = job->y->row_stride,
                                 .slot_stride = job->state->stride,
                                 .s_stride = job->head_dim,
                                 .dim = job->dim,
                                 .n_cols = column_end - column,
                                 .is_spread = true};
    span_of_head(job, head, &at_zero);
    size_t head_at = (size_t)head * job->dim * job->head_dim + column;
    at_zero.x += column;
    at_zero.y = (float *)job->y->data + (size_t)head * job->head_dim + column;
    at_zero.slots = job->state->base + head_at;
    for (uint32_t row = begin, next; row < end; row = next) {
        next = run_end(rows, row);
        if (is_padding(rows, row, next))
            continue;
        const float *from = slot_at(job->state, rows->reads[row]);
        for (uint32_t at = row; at < next; at += SPAN_ROWS) {
            struct state_span span = at_zero;
            span.from = from != NULL ? from + head_at : NULL;
            span.ahead = state_ahead(job, next, end, head_at, head, from);
            span.n_rows = next - at < SPAN_ROWS ? next - at : SPAN_ROWS;
            span.resumes = at > row;
            span.stays = next - at > SPAN_ROWS;
            span.k = at_zero.k + at * job->x->row_stride;
            span.q = at_zero.q + at * job->x->row_stride;
            span.x = at_zero.x + at * job->x->row_stride;
            span.y = at_zero.y + at * job->y->row_stride;
            span.decay = decay + (at - begin);
            span.gain = gain + (at - begin);
            span.writes = rows->writes + at;
            if (job->delta != NULL)
                norm_keys(job, &span, (float *)(void *)(scratch + KEYS_AT));
            job->span(&span);
        }
    }
}

/* Shares of a work that has at most `most`; at least one. */
static uint32_t share_count(uint32_t wanted, uint32_t most)
{
    uint32_t n = wanted < most ? wanted : most;
    return n > 0 ? n : 1;
}

/* Chooses the items. Long runs are shared by columns, many runs by groups of runs. */
static void run_spans(struct stream *s, struct span_job *job)
{
    struct thread_pool *pool = stream_cpu(s)->pool;
    uint32_t n_threads = thread_pool_size(pool), n_runs = 0,
             wanted = n_threads > 1 ? SHARES_PER_THREAD * n_threads : 1;
    for (uint32_t r = 0; r < job->rows->n_rows; r++)
        n_runs += job->rows->reads[r] != RECURRENT_PREVIOUS;
    uint32_t most_parts = (job->head_dim + SPAN_GRAIN - 1) / SPAN_GRAIN,
             missing = (wanted + job->n_heads - 1) / job->n_heads;
    if (n_runs == job->rows->n_rows) {
        job->n_groups = share_count(missing, n_runs);
        job->n_parts = share_count((missing + job->n_groups - 1) / job->n_groups, most_parts);
    } else {
        job->n_parts = share_count(missing, most_parts);
        job->n_groups = share_count((missing + job->n_parts - 1) / job->n_parts, n_runs);
    }
    job->inner = inner_of(s->ops);
    job->stream = stream_cpu(s);
    thread_pool_run_items(pool, job->n_groups * job->n_heads * job->n_parts, span_item, job);
}

int delta_net_cpu(struct stream *s, struct tensor *y, const struct tensor *qkv,
                  const struct tensor *beta, const struct tensor *dt,
                  const struct state_view *state, const struct state_rows *rows,
                  const struct delta_params *p)
{
    if (!rows_are_sound(state, rows))
        return STATUS_INTERNAL;
    struct span_job job = {.span = inner_of(s->ops)->delta_span,
                           .y = y,
                           .x = qkv,
                           .dt = dt,
                           .beta = beta,
                           .state = state,
                           .rows = rows,
                           .delta = p,
                           .a = p->a,
                           .dt_bias = p->dt_bias,
                           .n_heads = p->n_heads,
                           .dim = p->key_dim,
                           .head_dim = p->head_dim};
    run_spans(s, &job);
    return 0;
}

int ssm_cpu(struct stream *s, struct tensor *y, const struct tensor *xbc, const struct tensor *dt,
            const struct state_view *state, const struct state_rows *rows,
            const struct ssm_params *p)
{
    if (!rows_are_sound(state, rows))
        return STATUS_INTERNAL;
    struct span_job job = {.span = inner_of(s->ops)->ssm_span,
                           .y = y,
                           .x = xbc,
                           .dt = dt,
                           .state = state,
                           .rows = rows,
                           .ssm = p,
                           .a = p->a,
                           .dt_bias = p->dt_bias,
                           .n_heads = p->n_heads,
                           .dim = p->state_dim,
                           .head_dim = p->head_dim};
    run_spans(s, &job);
    return 0;
}
