#include "engine/model/step.h"

#include <stdlib.h>

#include "base/error.h"

enum { ARRAY_ALIGN = 64 };

static size_t place_array(size_t *offset, size_t n, size_t elem_bytes)
{
    size_t at = *offset;
    size_t bytes = n * elem_bytes;
    *offset = at + (bytes + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
    return at;
}

int step_batch_create(const struct step_limits *limits, struct step_batch **out_batch,
                      struct error *err)
{
    size_t rows = limits->max_rows, seqs = limits->max_seqs, stride = limits->max_blocks_per_seq;
    if (!rows || !seqs || !stride)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "step limits: %zu rows, %zu sequences, %zu blocks: all must be at least 1",
                         rows, seqs, stride);
    size_t end = 0;
    size_t head = place_array(&end, 1, sizeof(struct step_batch));
    size_t tokens = place_array(&end, rows, sizeof(uint32_t));
    size_t positions = place_array(&end, rows, sizeof(uint32_t));
    size_t slots = place_array(&end, rows, sizeof(uint32_t));
    size_t seq_of_row = place_array(&end, rows, sizeof(uint32_t));
    size_t tables_of_rows = place_array(&end, rows, sizeof(uint32_t));
    size_t reads = place_array(&end, rows, sizeof(uint32_t));
    size_t writes = place_array(&end, rows, sizeof(uint32_t));
    size_t generated = place_array(&end, rows, sizeof(uint8_t));
    size_t starts = place_array(&end, seqs + 1, sizeof(uint32_t));
    size_t tables = place_array(&end, seqs * stride, sizeof(uint32_t));
    size_t window_rows = place_array(&end, limits->has_windows ? rows : 0, sizeof(uint32_t));
    size_t window_tables =
        place_array(&end, limits->has_windows ? seqs * stride : 0, sizeof(uint32_t));
    size_t sample = place_array(&end, seqs + limits->n_score_rows, sizeof(uint32_t));
    unsigned char *memory = aligned_alloc(ARRAY_ALIGN, end);
    if (!memory)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a step of %zu bytes",
                         end);
    for (size_t i = 0; i < end; i++)
        memory[i] = 0;
    struct step_batch *batch = (struct step_batch *)(void *)(memory + head);
    batch->limits = *limits;
    batch->token_ids = (uint32_t *)(void *)(memory + tokens);
    batch->positions = (uint32_t *)(void *)(memory + positions);
    batch->kv_slots = (uint32_t *)(void *)(memory + slots);
    batch->seq_of_row = (uint32_t *)(void *)(memory + seq_of_row);
    batch->rope_tables = (uint32_t *)(void *)(memory + tables_of_rows);
    batch->is_generated = memory + generated;
    batch->seq_start = (uint32_t *)(void *)(memory + starts);
    batch->block_tables = (uint32_t *)(void *)(memory + tables);
    batch->state_reads = (uint32_t *)(void *)(memory + reads);
    batch->state_writes = (uint32_t *)(void *)(memory + writes);
    batch->sample_rows = (uint32_t *)(void *)(memory + sample);
    if (limits->has_windows) {
        batch->window_slots = (uint32_t *)(void *)(memory + window_rows);
        batch->window_tables = (uint32_t *)(void *)(memory + window_tables);
    }
    *out_batch = batch;
    return 0;
}

void step_batch_destroy(struct step_batch *batch)
{
    free(batch);
}

void step_batch_clear(struct step_batch *batch)
{
    batch->n_rows = 0;
    batch->n_seqs = 0;
    batch->n_sample_rows = 0;
    batch->is_ahead = false;
    batch->seq_start[0] = 0;
}

void step_batch_use_slot(struct step_batch *batch, uint32_t s, uint32_t slot, bool is_new)
{
    uint32_t begin = batch->seq_start[s], end = batch->seq_start[s + 1];
    for (uint32_t row = begin; row < end; row++) {
        batch->state_reads[row] = row > begin ? STEP_STATE_PREVIOUS
                                  : is_new    ? STEP_STATE_NONE
                                              : slot;
        batch->state_writes[row] = row + 1 < end ? STEP_STATE_NONE : slot;
    }
}
