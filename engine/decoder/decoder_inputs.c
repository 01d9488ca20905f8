#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

/* On a device with memory of its own, a step's inputs are assembled in a mirror in pinned memory,
 * in the device's layout. A single copy brings all but the block tables; only changed tables are
 * copied. On other devices, upload_arrays() copies each array. */

enum { NO_SLOT = UINT32_MAX };

int decoder_inputs_init(struct decoder *dec, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    struct decoder_inputs *in = &dec->inputs;
    void *mirror;
    in->roles = malloc(dec->cfg.plan->steps.max_rows * sizeof(*in->roles));
    if (!in->roles)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a step's rows");
    if (!ops->alloc_host)
        return 0;
    in->n_bytes = dec->mem.n_bytes - dec->mem.inputs_at;
    int rc = ops->alloc_host(dec->stream->device, in->n_bytes, &mirror, err);
    if (rc)
        return error_prefix(err, "step inputs");
    in->mirror = mirror;
    memset(in->mirror, 0, in->n_bytes);
    rc = ops->event_create(dec->stream->device, &in->uploaded, err);
    if (!rc) /* the stream reports a failure */
        (void)ops->upload(dec->stream, dec->memory + dec->mem.inputs_at, in->mirror, in->n_bytes);
    return rc ? rc : ops->stream_sync(dec->stream, err);
}

void decoder_inputs_fini(struct decoder *dec)
{
    const struct device_ops *ops = dec->stream->device->ops;
    if (dec->inputs.uploaded)
        ops->event_destroy(dec->inputs.uploaded);
    if (dec->inputs.mirror)
        ops->free_host(dec->stream->device, dec->inputs.mirror, dec->inputs.n_bytes);
    free(dec->inputs.roles);
}

/* Finds the runs of rows with the same role. */
static void find_roles(struct decoder *dec, const struct step_batch *batch)
{
    struct decoder_inputs *in = &dec->inputs;
    in->n_roles = 0;
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        bool generated = batch->is_generated[r];
        if (!in->n_roles || in->roles[in->n_roles - 1].generated != generated)
            in->roles[in->n_roles++] = (struct role_run){.begin = r, .generated = generated};
        in->roles[in->n_roles - 1].n_rows++;
    }
}

/* How many blocks of sequence s the step reads. */
static size_t blocks_of(const struct decoder *dec, const struct step_batch *batch, uint32_t s)
{
    uint32_t last = batch->positions[batch->seq_start[s + 1] - 1];
    return last / dec->cfg.plan->steps.block_size + 1;
}

/* --- upload by arrays --- */

static int upload_u32(struct decoder *dec, uint32_t *dst, const uint32_t *src, size_t n)
{
    return dec->stream->device->ops->upload(dec->stream, dst, src, n * sizeof(*src));
}

/* Copies the arrays. Tables are copied only as far as their sequences use them. */
static int upload_arrays(struct decoder *dec, const struct step_batch *batch)
{
    struct decoder_memory *mem = &dec->mem;
    size_t stride = batch->limits.max_blocks_per_seq;
    size_t to_stride = dec->cfg.plan->steps.max_blocks_per_seq;
    int rc = upload_u32(dec, mem->token_ids, batch->token_ids, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->positions, batch->positions, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->kv_slots, batch->kv_slots, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->seq_of_row, batch->seq_of_row, batch->n_rows);
    if (!rc && mem->rope_tables)
        rc = upload_u32(dec, mem->rope_tables, batch->rope_tables, batch->n_rows);
    if (!rc && mem->state_reads)
        rc = upload_u32(dec, mem->state_reads, batch->state_reads, batch->n_rows);
    if (!rc && mem->state_writes)
        rc = upload_u32(dec, mem->state_writes, batch->state_writes, batch->n_rows);
    if (!rc && mem->window_slots)
        rc = upload_u32(dec, mem->window_slots, batch->window_slots, batch->n_rows);
    if (!rc)
        rc = upload_u32(dec, mem->sample_rows, batch->sample_rows, batch->n_sample_rows);
    for (uint32_t s = 0; !rc && s < batch->n_seqs; s++) {
        size_t n = blocks_of(dec, batch, s);
        rc =
            upload_u32(dec, mem->block_tables + s * to_stride, batch->block_tables + s * stride, n);
        if (!rc && mem->window_tables)
            rc = upload_u32(dec, mem->window_tables + s * to_stride,
                            batch->window_tables + s * stride, n);
    }
    return rc;
}

/* --- upload by the mirror --- */

/* The mirror's copy of the device array `at`. */
static uint32_t *mirror_of(const struct decoder *dec, const uint32_t *at)
{
    const unsigned char *begin = dec->memory + dec->mem.inputs_at;
    return (uint32_t *)(void *)(dec->inputs.mirror + ((const unsigned char *)at - begin));
}

/* Writes n values into the mirror of `at`, and pads up to n_padded. */
static void write_mirror(const struct decoder *dec, const uint32_t *at, const uint32_t *src,
                         uint32_t n, uint32_t n_padded, uint32_t padding)
{
    uint32_t *dst = mirror_of(dec, at);
    memcpy(dst, src, n * sizeof(*src));
    for (uint32_t i = n; i < n_padded; i++)
        dst[i] = padding;
}

/* Copies the batch's tables `from` that differ from the device's `tables`. Up to FEW are copied one
 * by one, else the span that contains them. */
static int upload_tables(struct decoder *dec, const struct step_batch *batch, uint32_t *tables,
                         const uint32_t *from)
{
    enum { FEW = 4 };
    size_t stride = batch->limits.max_blocks_per_seq;
    size_t to_stride = dec->cfg.plan->steps.max_blocks_per_seq;
    uint32_t changed[FEW], n_changed = 0, first = 0, last = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        size_t n_bytes = blocks_of(dec, batch, s) * sizeof(*tables);
        uint32_t *mirror = mirror_of(dec, tables + s * to_stride);
        const uint32_t *src = from + s * stride;
        if (memcmp(mirror, src, n_bytes) == 0)
            continue;
        memcpy(mirror, src, n_bytes);
        first = n_changed ? first : s;
        last = s;
        if (n_changed < FEW)
            changed[n_changed] = s;
        n_changed++;
    }
    int rc = 0;
    if (n_changed > FEW)
        return upload_u32(dec, tables + first * to_stride,
                          mirror_of(dec, tables + first * to_stride),
                          (last - first + 1) * to_stride);
    for (uint32_t i = 0; !rc && i < n_changed; i++) {
        const uint32_t *at = tables + changed[i] * to_stride;
        rc = upload_u32(dec, tables + changed[i] * to_stride, mirror_of(dec, at),
                        blocks_of(dec, batch, changed[i]));
    }
    return rc;
}

/* Writes all inputs but the token ids into the mirror. */
static void write_rows(const struct decoder *dec, const struct step_batch *batch, uint32_t n_rows,
                       uint32_t n_sample_rows)
{
    const struct decoder_memory *mem = &dec->mem;
    write_mirror(dec, mem->positions, batch->positions, batch->n_rows, n_rows, 0);
    write_mirror(dec, mem->kv_slots, batch->kv_slots, batch->n_rows, n_rows, NO_SLOT);
    write_mirror(dec, mem->seq_of_row, batch->seq_of_row, batch->n_rows, n_rows, 0);
    if (mem->rope_tables)
        write_mirror(dec, mem->rope_tables, batch->rope_tables, batch->n_rows, n_rows, 0);
    if (mem->state_reads) {
        write_mirror(dec, mem->state_reads, batch->state_reads, batch->n_rows, n_rows,
                     STEP_STATE_NONE);
        write_mirror(dec, mem->state_writes, batch->state_writes, batch->n_rows, n_rows,
                     STEP_STATE_NONE);
    }
    if (mem->window_slots)
        write_mirror(dec, mem->window_slots, batch->window_slots, batch->n_rows, n_rows, NO_SLOT);
    write_mirror(dec, mem->sample_rows, batch->sample_rows, batch->n_sample_rows, n_sample_rows, 0);
}

/* Copies the arrays from `begin` on, and the changed tables. */
static int upload_from(struct decoder *dec, uint32_t *begin, const struct step_batch *batch)
{
    int rc = upload_u32(dec, begin, mirror_of(dec, begin), (size_t)(dec->mem.block_tables - begin));
    if (!rc)
        rc = upload_tables(dec, batch, dec->mem.block_tables, batch->block_tables);
    if (!rc && dec->mem.window_tables)
        rc = upload_tables(dec, batch, dec->mem.window_tables, batch->window_tables);
    return rc ? rc : dec->stream->device->ops->event_record(dec->stream, dec->inputs.uploaded);
}

static int wait_for_mirror(struct decoder *dec)
{
    struct error ignored; /* the stream keeps the error */
    return dec->stream->device->ops->event_wait(dec->inputs.uploaded, &ignored);
}

static int upload_mirror(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows,
                         uint32_t n_sample_rows)
{
    uint32_t *ids = dec->mem.token_ids;
    int rc = wait_for_mirror(dec);
    if (rc)
        return rc;
    write_mirror(dec, ids, batch->token_ids, batch->n_rows, n_rows, 0);
    write_rows(dec, batch, n_rows, n_sample_rows);
    return upload_from(dec, ids, batch);
}

int decoder_inputs_ahead(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows)
{
    int rc = wait_for_mirror(dec);
    if (rc)
        return rc;
    write_rows(dec, batch, n_rows, n_rows);
    return upload_from(dec, dec->mem.positions, batch);
}

/* The ids' part of the mirror is free. Its last copy is finished, and copies in flight do not read
 * it. */
int decoder_inputs_ids(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows)
{
    uint32_t *ids = dec->mem.token_ids;
    write_mirror(dec, ids, batch->token_ids, batch->n_rows, n_rows, 0);
    int rc = upload_u32(dec, ids, mirror_of(dec, ids), n_rows);
    return rc ? rc : dec->stream->device->ops->event_record(dec->stream, dec->inputs.uploaded);
}

int decoder_inputs_upload(struct decoder *dec, const struct step_batch *batch, uint32_t n_rows,
                          uint32_t n_sample_rows)
{
    find_roles(dec, batch);
    return dec->inputs.mirror ? upload_mirror(dec, batch, n_rows, n_sample_rows)
                              : upload_arrays(dec, batch);
}
