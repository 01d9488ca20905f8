#include "engine/decoder/decoder.h"

#include "base/error.h"
#include "engine/decoder/decoder_private.h"
#include "kernels/comm.h"

/* --- ops of a step --- */

static struct tensor view(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, n_rows, n_cols);
}

/* Logits of n sample rows from `first` on, in rows `to` and after of cfg.logits. Each rank writes
 * its columns. */
static int run_head(struct decoder *dec, uint32_t first, uint32_t n, uint32_t to)
{
    uint32_t hidden = dec->shape->hidden_dim, vocab = dec->shape->vocab_size;
    const struct tensor x = view(dec->mem.x, dec->n_rows, hidden);
    const struct weight *w = dec->globals.linear[ARCH_OUTPUT];
    const struct scale_params scale = {.factor = dec->shape->logit_scale,
                                       .softcap = dec->shape->final_softcap};
    uint32_t max_rows = dec->cfg.plan->steps.max_rows;
    dec->stream->n_roles = 0; /* the head takes path D for every row */
    for (uint32_t begin = 0; begin < n; begin += max_rows) {
        uint32_t m = n - begin < max_rows ? n - begin : max_rows;
        struct tensor h = view(dec->mem.h, m, hidden);
        struct tensor y =
            view(dec->cfg.logits + (size_t)(to + begin) * vocab + segments_begin(&dec->split.vocab),
                 m, segments_len(&dec->split.vocab));
        y.row_stride = vocab;
        int rc = op_gather_rows(dec->stream, &h, &x, dec->mem.sample_rows + first + begin);
        if (!rc)
            rc = decoder_norm_prepare(dec, &dec->globals, ARCH_OUTPUT_NORM, &h, &h,
                                      weight_act_kind(w));
        if (!rc)
            rc = op_linear(dec->stream, &y, dec->act, w);
        if (!rc && dec->globals.vector[ARCH_OUTPUT_BIAS])
            rc = op_add_bias(dec->stream, &y, dec->globals.vector[ARCH_OUTPUT_BIAS]);
        if (!rc && (scale.factor != 1 || scale.softcap > 0))
            rc = op_scale(dec->stream, &y, NULL, &scale);
        if (rc)
            return rc;
    }
    return 0;
}

/* Progress counts queued layers. On an asynchronous device a hang shows in the synchronisation,
 * which never ends. */
static int queue_layers(struct decoder *dec, const struct step_part *part, uint32_t n_seqs,
                        uint32_t max_positions)
{
    const struct rank_plan *plan = dec->cfg.plan;
    struct decoder_memory *mem = &dec->mem;
    uint32_t hidden = dec->shape->hidden_dim, begin = part->row_begin;
    struct tensor x = view(mem->x + (size_t)begin * hidden, part->n_rows, hidden);
    const struct attention_rows rows = {
        .positions = mem->positions + begin,
        .seq_of_row = mem->seq_of_row + begin,
        .kv_slots = mem->kv_slots + begin,
        .block_tables = mem->block_tables,
        .table_stride = plan->steps.max_blocks_per_seq,
        .n_rows = part->n_rows,
        .n_seqs = n_seqs,
        .max_positions = max_positions,
    };
    struct attention_rows windows = rows;
    if (mem->window_slots)
        windows.kv_slots = mem->window_slots + begin;
    windows.block_tables = mem->window_tables;
    int rc = 0;
    dec->row_begin = begin;
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++)
        if (dec->ropes[i].row_tables)
            dec->ropes[i].row_tables = mem->rope_tables + begin;
    if (rank_is_first(&plan->rank))
        rc = decoder_embed_rows(dec, &x);
    for (uint32_t i = 0; !rc && i < dec->split.n_layers; i++) {
        const struct layer *next = i + 1 < dec->split.n_layers ? &dec->layers[i + 1] : NULL;
        const struct layer *at = &dec->layers[i];
        rc = decoder_run_layer(dec, at, next, at->is_windowed ? &windows : &rows, &x);
        if (!rc)
            rc = decoder_embed_end(dec, at, &x);
        if (dec->cfg.progress)
            atomic_fetch_add(dec->cfg.progress, 1);
    }
    return rc;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

int decoder_queue_step(struct decoder *dec, uint32_t n_rows, uint32_t n_sample_rows,
                       uint32_t n_seqs, uint32_t max_positions)
{
    const struct step_part all = {.n_rows = n_rows};
    dec->n_rows = n_rows;
    int rc = queue_layers(dec, &all, n_seqs, max_positions);
    if (!rc && rank_is_last(&dec->cfg.plan->rank))
        rc = run_head(dec, 0, least(n_sample_rows, dec->cfg.plan->steps.n_logits), 0);
    return rc;
}

/* Computes the logits of the part's sample rows, by runs of adjacent ones. */
static int run_part_head(struct decoder *dec, const struct step_batch *batch,
                         const struct step_part *part)
{
    uint32_t n = least(batch->n_sample_rows, dec->cfg.plan->steps.n_logits);
    int rc = 0;
    for (uint32_t i = 0, end; !rc && i < n; i = end) {
        bool in_part = batch->sample_rows[i] - part->row_begin < part->n_rows;
        for (end = i + 1; end < n; end++)
            if ((batch->sample_rows[end] - part->row_begin < part->n_rows) != in_part)
                break;
        if (in_part)
            rc = run_head(dec, i, end - i, i);
    }
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

static int upload_inputs(struct decoder *dec, const struct step_batch *batch)
{
    int rc = decoder_inputs_upload(dec, batch, batch->n_rows, batch->n_sample_rows);
    dec->stream->roles = dec->inputs.roles;
    dec->stream->n_roles = dec->inputs.n_roles;
    dec->stream->mix_products = dec->cfg.mix_roles;
    dec->stream->prompts_f16 = dec->cfg.prompts_f16;
    return rc;
}

static int step_by_ops(struct decoder *dec, const struct step_batch *batch)
{
    int rc = upload_inputs(dec, batch);
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

int decoder_step_part(struct decoder *dec, const struct step_batch *batch,
                      const struct step_part *part, struct error *err)
{
    int rc = 0;
    error_clear(err);
    if (part->row_begin == 0)
        rc = upload_inputs(dec, batch);
    dec->n_rows = batch->n_rows;
    if (!rc)
        rc = queue_layers(dec, part, batch->n_seqs, last_position(batch) + 1);
    if (!rc && rank_is_last(&dec->cfg.plan->rank))
        rc = run_part_head(dec, batch, part);
    return rc ? report_failure(dec, rc, err) : 0;
}

int decoder_logits(struct decoder *dec, uint32_t first, uint32_t n, struct error *err)
{
    error_clear(err);
    int rc = run_head(dec, first, n, 0);
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

/* Copies a block within every plane of a layer. */
static int copy_planes(struct decoder *dec, uint32_t i_layer, uint32_t from, uint32_t to)
{
    struct decoder_plane planes[DECODER_MAX_PLANES];
    int rc = 0;
    decoder_memory_planes(dec->cfg.plan, dec->shape, i_layer, planes);
    for (uint32_t i = 0; !rc && i < DECODER_MAX_PLANES; i++) {
        unsigned char *pool = dec->kv_memory + planes[i].offset_bytes;
        uint64_t bytes = planes[i].block_bytes;
        if (bytes)
            rc = dec->stream->device->ops->copy(dec->stream, pool + to * bytes, pool + from * bytes,
                                                bytes);
    }
    return rc;
}

int decoder_copy_block(struct decoder *dec, bool windows, uint32_t from, uint32_t to,
                       struct error *err)
{
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        if (dec->layers[i].is_windowed != windows)
            continue;
        int rc = copy_planes(dec, i, from, to);
        if (rc && dec->stream->device->ops->stream_sync(dec->stream, err) == 0)
            error_set(err, rc, "rank %u: KV block %u cannot be copied", dec->cfg.plan->rank.index,
                      from);
        if (rc)
            return err->status;
    }
    return dec->stream->device->ops->stream_sync(dec->stream, err);
}
