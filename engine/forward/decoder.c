#include "engine/forward/decoder.h"

#include "base/error.h"
#include "engine/forward/decoder_private.h"
#include "kernels/comm.h"

/* --- ops of a step --- */

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

static int norm(struct decoder *dec, const struct layer *at, enum arch_slot weight,
                enum arch_slot bias, struct tensor *y, const struct tensor *x)
{
    const float *w = at->vector[weight];
    if (dec->arch->norm == ARCH_NORM_LAYER)
        return op_layer_norm(dec->stream, y, x, w, at->vector[bias], dec->shape->norm_eps);
    return op_rms_norm(dec->stream, y, x, w, dec->shape->norm_eps);
}

/* h = norm(x), prepared for the linears that read it. */
static int norm_prepare(struct decoder *dec, const struct layer *at, enum arch_slot weight,
                        enum arch_slot bias, struct tensor *h, const struct tensor *x,
                        uint32_t kinds)
{
    const struct norm_params p = {.is_centred = dec->arch->norm == ARCH_NORM_LAYER,
                                  .w = at->vector[weight],
                                  .bias = at->vector[bias],
                                  .eps = dec->shape->norm_eps};
    return op_norm_prepare(dec->stream, dec->act, h, x, &p, kinds);
}

/* y = W·act + bias, for a weight that is split by outputs or not split. */
static struct linear_part part_of(const struct layer *at, enum arch_slot weight,
                                  enum arch_slot bias, struct tensor *y)
{
    return (struct linear_part){.y = y, .w = at->linear[weight], .bias = at->vector[bias]};
}

/* Announces the weights that the next attention, or the head, will read. */
static void will_read_attention(struct decoder *dec, const struct layer *next)
{
    if (next) {
        const struct weight *w[] = {next->linear[ARCH_ATTN_Q], next->linear[ARCH_ATTN_K],
                                    next->linear[ARCH_ATTN_V]};
        op_will_read(dec->stream, w, 3);
    } else if (dec->globals.linear[ARCH_OUTPUT]) { /* last layer of the last stage */
        op_will_read(dec->stream, &dec->globals.linear[ARCH_OUTPUT], 1);
    }
}

/* Announces the weights that this layer's MLP will read. */
static void will_read_ffn(struct decoder *dec, const struct layer *at)
{
    const struct weight *w[] = {at->linear[ARCH_FFN_UP], at->linear[ARCH_FFN_GATE]};
    op_will_read(dec->stream, w, dec->arch->ffn == ARCH_FFN_GATED ? 2 : 1);
}

/* Prepares `from` for a weight that is split by inputs. */
static int row_prepare(struct decoder *dec, const struct linear_part *what,
                       const struct segments *segments, const struct tensor *from)
{
    return op_act_prepare(dec->stream, dec->act, from, weight_act_kind(what->w), segments,
                          dec->comm);
}

/* sum += W·act + bias, for a weight that is split by inputs. The bias is added once, after the sum
 * over ranks. `y` is scratch, or the result if `sum` is NULL. */
static int linear_row(struct decoder *dec, const struct linear_part *what)
{
    struct tensor partial = view(dec->mem.partial, what->y->n_rows, what->y->n_cols);
    if (!dec->comm || dec->comm->size == 1)
        return op_linear_parts(dec->stream, dec->act, what, 1);
    int rc = op_linear_row(dec->stream, what->y, dec->act, what->w, &partial, dec->comm);
    if (!rc && what->bias)
        rc = op_add_bias(dec->stream, what->y, what->bias);
    return rc || !what->sum ? rc : op_add(dec->stream, what->sum, what->y);
}

/* out[m, hidden] = attention over the layer's normed and prepared input; added to `sum`. */
static int attention(struct decoder *dec, const struct layer *at, const struct attention_rows *rows,
                     struct tensor *out, struct tensor *sum)
{
    uint32_t m = out->n_rows, hd = dec->shape->head_dim;
    struct tensor q = view(dec->mem.q, m, dec->split.n_heads * hd);
    struct tensor k = view(dec->mem.k, m, dec->split.n_kv_heads * hd);
    struct tensor v = view(dec->mem.v, m, dec->split.n_kv_heads * hd);
    struct tensor mixed = view(dec->mem.mixed, m, dec->split.n_heads * hd);
    const struct linear_part parts[] = {part_of(at, ARCH_ATTN_Q, ARCH_ATTN_Q_BIAS, &q),
                                        part_of(at, ARCH_ATTN_K, ARCH_ATTN_K_BIAS, &k),
                                        part_of(at, ARCH_ATTN_V, ARCH_ATTN_V_BIAS, &v)};
    struct linear_part o = part_of(at, ARCH_ATTN_OUT, ARCH_ATTN_OUT_BIAS, out);
    o.sum = sum;
    op_will_read(dec->stream, &o.w, 1);
    int rc = op_linear_parts(dec->stream, dec->act, parts, 3);
    if (!rc)
        rc = op_rope_kv(dec->stream, &q, &k, &v, rows->positions, &dec->rope, &at->kv,
                        rows->kv_slots);
    if (!rc)
        rc = op_attention(dec->stream, &mixed, &q, &at->kv, rows, &dec->attention);
    will_read_ffn(dec, at);
    if (!rc)
        rc = row_prepare(dec, &o, &dec->split.heads, &mixed);
    return rc ? rc : linear_row(dec, &o);
}

/* out[m, hidden] = MLP over the prepared input; added to `sum`. `next` (may be NULL): the layer
 * whose weights are read afterwards. */
static int ffn(struct decoder *dec, const struct layer *at, const struct layer *next,
               struct tensor *out, struct tensor *sum)
{
    uint32_t m = out->n_rows, n = segments_len(&dec->split.ffn);
    struct tensor up_y = view(dec->mem.up, m, n), gate_y = view(dec->mem.gate, m, n);
    struct linear_part up = part_of(at, ARCH_FFN_UP, ARCH_FFN_UP_BIAS, &up_y);
    struct linear_part down = part_of(at, ARCH_FFN_DOWN, ARCH_FFN_DOWN_BIAS, out);
    down.sum = sum;
    int rc = 0;
    op_will_read(dec->stream, &down.w, 1);
    if (dec->arch->ffn == ARCH_FFN_GATED) {
        struct linear_part gate = part_of(at, ARCH_FFN_GATE, ARCH_FFN_GATE_BIAS, &gate_y);
        rc = op_gated_prepare(dec->stream, dec->act, &gate, &up, dec->arch->activation,
                              weight_act_kind(down.w), &dec->split.ffn, dec->comm);
    } else {
        rc = op_linear_parts(dec->stream, dec->act, &up, 1);
        if (!rc)
            rc = op_act_mul(dec->stream, &gate_y, &up_y, NULL, dec->arch->activation);
        if (!rc)
            rc = row_prepare(dec, &down, &dec->split.ffn, &gate_y);
    }
    will_read_attention(dec, next);
    return rc ? rc : linear_row(dec, &down);
}

static int run_layer(struct decoder *dec, const struct layer *at, const struct layer *next,
                     const struct attention_rows *rows, struct tensor *x)
{
    uint32_t m = x->n_rows, hidden = x->n_cols;
    struct tensor h = view(dec->mem.h, m, hidden);
    struct tensor from_attention = view(dec->mem.y_attention, m, hidden);
    struct tensor from_ffn = view(dec->mem.y_ffn, m, hidden);
    bool parallel = dec->arch->residual == ARCH_RESIDUAL_PARALLEL;
    int rc = norm_prepare(dec, at, ARCH_ATTN_NORM, ARCH_ATTN_NORM_BIAS, &h, x, at->attention_kinds);
    if (!rc)
        rc = attention(dec, at, rows, &from_attention, parallel ? NULL : x);
    if (!rc)
        rc = norm_prepare(dec, at, ARCH_FFN_NORM, ARCH_FFN_NORM_BIAS, &h, x, at->ffn_kinds);
    if (!rc && !parallel)
        return ffn(dec, at, next, &from_ffn, x);
    if (!rc)
        rc = ffn(dec, at, next, &from_ffn, NULL);
    if (!rc)
        rc = op_add(dec->stream, x, &from_attention);
    if (!rc)
        rc = op_add(dec->stream, x, &from_ffn);
    return rc;
}

/* Logits of n sample rows from `first` on. Each rank writes its columns of the shared [n,
 * vocab]. */
static int run_head(struct decoder *dec, const struct tensor *x, uint32_t first, uint32_t n)
{
    uint32_t hidden = dec->shape->hidden_dim, vocab = dec->shape->vocab_size;
    const struct weight *w = dec->globals.linear[ARCH_OUTPUT];
    uint32_t max_rows = dec->cfg.plan->steps.max_rows;
    dec->stream->n_roles = 0; /* the head takes path D for every row */
    for (uint32_t begin = 0; begin < n; begin += max_rows) {
        uint32_t m = n - begin < max_rows ? n - begin : max_rows;
        struct tensor h = view(dec->mem.h, m, hidden);
        struct tensor y =
            view(dec->cfg.logits + (size_t)begin * vocab + segments_begin(&dec->split.vocab), m,
                 segments_len(&dec->split.vocab));
        y.row_stride = vocab;
        int rc = op_gather_rows(dec->stream, &h, x, dec->mem.sample_rows + first + begin);
        if (!rc)
            rc = norm_prepare(dec, &dec->globals, ARCH_OUTPUT_NORM, ARCH_OUTPUT_NORM_BIAS, &h, &h,
                              weight_act_kind(w));
        if (!rc)
            rc = op_linear(dec->stream, &y, dec->act, w);
        if (rc)
            return rc;
    }
    return 0;
}

/* x[m, hidden] = embeddings of the step's tokens. */
static int run_embedding(struct decoder *dec, struct tensor *x)
{
    const struct layer *globals = &dec->globals;
    int rc = op_embed(dec->stream, x, dec->mem.token_ids, globals->linear[ARCH_TOKEN_EMBD]);
    if (!rc && dec->arch->position == ARCH_POSITION_LEARNED) {
        struct tensor places = view(dec->mem.h, x->n_rows, x->n_cols);
        rc =
            op_embed(dec->stream, &places, dec->mem.positions, globals->linear[ARCH_POSITION_EMBD]);
        if (!rc)
            rc = op_add(dec->stream, x, &places);
    }
    if (!rc && globals->vector[ARCH_TOKEN_NORM])
        rc = norm(dec, globals, ARCH_TOKEN_NORM, ARCH_TOKEN_NORM_BIAS, x, x);
    return rc;
}

/* Progress counts queued layers. On an asynchronous device a hang shows in the synchronisation,
 * which never ends. */
int decoder_queue_step(struct decoder *dec, uint32_t n_rows, uint32_t n_sample_rows,
                       uint32_t n_seqs, uint32_t max_positions)
{
    const struct rank_plan *plan = dec->cfg.plan;
    struct decoder_memory *mem = &dec->mem;
    struct tensor x = view(mem->x, n_rows, dec->shape->hidden_dim);
    const struct attention_rows rows = {
        .positions = mem->positions,
        .seq_of_row = mem->seq_of_row,
        .kv_slots = mem->kv_slots,
        .block_tables = mem->block_tables,
        .table_stride = plan->steps.max_blocks_per_seq,
        .n_rows = n_rows,
        .n_seqs = n_seqs,
        .max_positions = max_positions,
    };
    uint32_t n_logits = plan->steps.n_logits;
    int rc = 0;
    dec->n_rows = n_rows;
    if (rank_is_first(&plan->rank))
        rc = run_embedding(dec, &x);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        const struct layer *next = i + 1 < dec->split.n_layers ? &dec->layers[i + 1] : NULL;
        rc = run_layer(dec, &dec->layers[i], next, &rows, &x);
        if (dec->cfg.progress)
            atomic_fetch_add(dec->cfg.progress, 1);
    }
    if (!rc && rank_is_last(&plan->rank))
        rc = run_head(dec, &x, 0, n_sample_rows < n_logits ? n_sample_rows : n_logits);
    return rc;
}

static uint32_t last_position(const struct step_batch *batch)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        uint32_t position = batch->positions[batch->seq_start[s + 1] - 1];
        most = position > most ? position : most;
    }
    return most;
}

static int step_captured(struct decoder *dec, const struct step_batch *batch,
                         const struct decoder_graph_key *key, bool has_ahead, struct error *err)
{
    int rc = has_ahead ? decoder_inputs_ids(dec, batch, key->n_rows)
                       : decoder_inputs_upload(dec, batch, key->n_rows, key->n_rows);
    return rc ? rc : decoder_graphs_run(dec, key, err);
}

static int step_by_ops(struct decoder *dec, const struct step_batch *batch)
{
    int rc = decoder_inputs_upload(dec, batch, batch->n_rows, batch->n_sample_rows);
    dec->stream->roles = dec->inputs.roles;
    dec->stream->n_roles = dec->inputs.n_roles;
    dec->stream->mix_products = dec->cfg.mix_roles;
    dec->stream->prompts_f16 = dec->cfg.prompts_f16;
    if (rc)
        return rc;
    return decoder_queue_step(dec, batch->n_rows, batch->n_sample_rows, batch->n_seqs,
                              last_position(batch) + 1);
}

/* Prefers the device's error over the op's: it is more precise. `err`, cleared at the begin of the
 * step, may hold that error already. */
static int report_failure(struct decoder *dec, int rc, struct error *err)
{
    if (!err->status && dec->stream->device->ops->stream_sync(dec->stream, err) == 0)
        error_set(err, rc, "an operation of the step failed");
    return error_prefix(err, "rank %u", dec->cfg.plan->rank.index);
}

int decoder_step(struct decoder *dec, const struct step_batch *batch, struct error *err)
{
    struct decoder_graph_key key = dec->ahead;
    bool has_ahead = dec->has_ahead && batch->is_ahead;
    int rc;
    dec->has_ahead = false;
    error_clear(err);
    if (has_ahead || decoder_graphs_key(dec, batch, &key))
        rc = step_captured(dec, batch, &key, has_ahead, err);
    else
        rc = step_by_ops(dec, batch);
    return rc ? report_failure(dec, rc, err) : 0;
}

int decoder_logits(struct decoder *dec, uint32_t first, uint32_t n, struct error *err)
{
    struct tensor x = view(dec->mem.x, dec->n_rows, dec->shape->hidden_dim);
    error_clear(err);
    int rc = run_head(dec, &x, first, n);
    return rc ? report_failure(dec, rc, err) : 0;
}

int decoder_step_ahead(struct decoder *dec, const struct step_batch *batch, struct error *err)
{
    dec->has_ahead = false;
    error_clear(err);
    if (!dec->inputs.mirror || !decoder_graphs_key(dec, batch, &dec->ahead))
        return 0;
    int rc = decoder_inputs_ahead(dec, batch, dec->ahead.n_rows);
    dec->has_ahead = !rc;
    return rc ? report_failure(dec, rc, err) : 0;
}

float *decoder_hidden(const struct decoder *dec)
{
    return dec->mem.x;
}

int decoder_copy_block(struct decoder *dec, uint32_t from, uint32_t to, struct error *err)
{
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        const struct kv_layer *kv = &dec->layers[i].kv;
        size_t bytes =
            (size_t)kv->n_kv_heads * kv->block_size * ops_kv_vector_bytes(kv->dtype, kv->head_dim);
        int rc = dec->stream->device->ops->copy(dec->stream, (char *)kv->k + to * bytes,
                                                (const char *)kv->k + from * bytes, bytes);
        if (!rc)
            rc = dec->stream->device->ops->copy(dec->stream, (char *)kv->v + to * bytes,
                                                (const char *)kv->v + from * bytes, bytes);
        if (rc && dec->stream->device->ops->stream_sync(dec->stream, err) == 0)
            error_set(err, rc, "rank %u: KV block %u cannot be copied", dec->cfg.plan->rank.index,
                      from);
        if (rc)
            return err->status;
    }
    return dec->stream->device->ops->stream_sync(dec->stream, err);
}
