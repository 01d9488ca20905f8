/* States of recurrent layers. Slot s has the states of all layers of the rank, so a slot is one
 * piece of memory. A new sequence reads no slot, so slots need no clearing. */
#include "base/error.h"
#include "engine/decoder/decoder_private.h"

enum { ALIGN_FLOATS = 16 };

static uint64_t aligned(uint64_t n_floats)
{
    return (n_floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

void decoder_memory_state(const struct rank_plan *plan, const struct model_shape *shape,
                          uint32_t i_layer, struct decoder_state_layout *out)
{
    const struct model_state *s = &shape->state;
    uint64_t end = 0;
    for (uint32_t i = 0; i <= i_layer; i++) {
        const struct state_split *own = &plan->split.layers[i].state;
        uint64_t n_keys = (uint64_t)own->n_keys * s->key_dim;
        const uint64_t floats[N_DECODER_STATES] = {
            [DECODER_STATE_Q] = own->n_values ? (s->width - 1) * n_keys : 0,
            [DECODER_STATE_K] = own->n_values ? (s->width - 1) * n_keys : 0,
            [DECODER_STATE_V] = own->n_values ? (uint64_t)(s->width - 1) * own->n_values : 0,
            [DECODER_STATE_HEADS] = (uint64_t)own->n_heads * s->key_dim * s->head_dim,
        };
        for (uint32_t p = 0; p < N_DECODER_STATES; p++) {
            out->parts[p] = end;
            end += aligned(floats[p]);
        }
    }
    out->end = end;
}

uint64_t decoder_state_bytes(const struct rank_plan *plan, const struct model_shape *shape)
{
    struct decoder_state_layout layout = {.end = 0};
    if (plan->split.n_layers)
        decoder_memory_state(plan, shape, plan->split.n_layers - 1, &layout);
    return layout.end * sizeof(float);
}

int decoder_state_open(struct decoder *dec, struct error *err)
{
    const struct rank_plan *plan = dec->cfg.plan;
    uint32_t n_slots = plan->steps.n_state_slots;
    void *data;
    dec->state_slot_bytes = decoder_state_bytes(plan, dec->shape);
    dec->state_bytes = dec->state_slot_bytes * n_slots;
    if (!dec->state_bytes)
        return 0;
    int rc = dec->stream->device->ops->alloc(dec->stream->device, dec->state_bytes, &data, err);
    if (rc)
        return error_prefix(err, "states of recurrent layers");
    dec->state_memory = data;
    for (uint32_t i = 0; i < dec->split.n_layers; i++) {
        struct decoder_state_layout layout;
        decoder_memory_state(plan, dec->shape, i, &layout);
        for (uint32_t p = 0; p < N_DECODER_STATES; p++)
            dec->layers[i].states[p] = (struct state_view){
                .base = (float *)data + layout.parts[p],
                .stride = dec->state_slot_bytes / sizeof(float),
                .n_slots = n_slots,
            };
    }
    return 0;
}

void decoder_state_close(struct decoder *dec)
{
    if (dec->state_memory)
        dec->stream->device->ops->free(dec->stream->device, dec->state_memory, dec->state_bytes);
}

/* Waits for a copy that was queued with status rc. The device's error is more precise. */
static int finish(struct decoder *dec, int rc, const char *what, uint32_t slot, struct error *err)
{
    error_clear(err);
    int failed = dec->stream->device->ops->stream_sync(dec->stream, err);
    if (rc && !failed)
        error_set(err, rc, "rank %u: state slot %u cannot be %s", dec->cfg.plan->rank.index, slot,
                  what);
    return rc || failed ? err->status : 0;
}

static unsigned char *slot_of(const struct decoder *dec, uint32_t slot)
{
    return dec->state_memory + slot * dec->state_slot_bytes;
}

int decoder_copy_state(struct decoder *dec, uint32_t from, uint32_t to, struct error *err)
{
    if (!dec->state_bytes)
        return 0;
    int rc = dec->stream->device->ops->copy(dec->stream, slot_of(dec, to), slot_of(dec, from),
                                            dec->state_slot_bytes);
    return finish(dec, rc, "copied", from, err);
}

int decoder_save_state(struct decoder *dec, uint32_t slot, void *host, struct error *err)
{
    if (!dec->state_bytes)
        return 0;
    int rc = dec->stream->device->ops->download(dec->stream, host, slot_of(dec, slot),
                                                dec->state_slot_bytes);
    return finish(dec, rc, "saved", slot, err);
}

int decoder_load_state(struct decoder *dec, uint32_t slot, const void *host, struct error *err)
{
    if (!dec->state_bytes)
        return 0;
    int rc = dec->stream->device->ops->upload(dec->stream, slot_of(dec, slot), host,
                                              dec->state_slot_bytes);
    return finish(dec, rc, "loaded", slot, err);
}
