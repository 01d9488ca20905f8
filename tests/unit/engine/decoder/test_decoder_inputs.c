/* Tests the inputs of a step on a device with memory of its own. An upload by the mirror leaves the
 * same bytes on the device as an upload by arrays. Windows have places and tables of their own. The
 * device copies at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

enum { MAX_ROWS = 24, MAX_SEQS = 8, N_ENTRIES = 16, BLOCK = 8, N_BLOCKS = 64, N_WINDOW_BLOCKS = 9 };

/* --- a device that copies at once --- */

static size_t n_copied;

static int alloc_host(struct device *dev, size_t n_bytes, void **out, struct error *err)
{
    (void)dev, (void)err;
    *out = malloc(n_bytes);
    return *out ? 0 : STATUS_RESOURCE_EXHAUSTED;
}

static void free_host(struct device *dev, void *memory, size_t n_bytes)
{
    (void)dev, (void)n_bytes;
    free(memory);
}

static int upload(struct stream *stream, void *dst, const void *src, size_t n_bytes)
{
    (void)stream;
    memcpy(dst, src, n_bytes);
    n_copied += n_bytes;
    return 0;
}

static int event_create(struct device *dev, struct event **out, struct error *err)
{
    (void)dev, (void)err;
    *out = malloc(1);
    return *out ? 0 : STATUS_RESOURCE_EXHAUSTED;
}

static void event_destroy(struct event *event)
{
    free(event);
}

static int event_record(struct stream *stream, struct event *event)
{
    (void)stream, (void)event;
    return 0;
}

static int event_wait(struct event *event, struct error *err)
{
    (void)event, (void)err;
    return 0;
}

static int stream_sync(struct stream *stream, struct error *err)
{
    (void)stream, (void)err;
    return 0;
}

static const struct device_ops with_mirror = {.name = "mirror",
                                              .alloc_host = alloc_host,
                                              .free_host = free_host,
                                              .upload = upload,
                                              .event_create = event_create,
                                              .event_destroy = event_destroy,
                                              .event_record = event_record,
                                              .event_wait = event_wait,
                                              .stream_sync = stream_sync};
static const struct device_ops by_arrays = {
    .name = "arrays", .upload = upload, .stream_sync = stream_sync};

/* --- decoders on it --- */

struct on_device {
    struct device device;
    struct stream stream;
    struct decoder decoder;
};

static const struct model_shape shape = {.hidden_dim = 64};

static void open_decoder(struct on_device *d, const struct device_ops *ops, struct rank_plan *plan)
{
    struct error err = {0};
    d->device = (struct device){.ops = ops};
    d->stream = (struct stream){.device = &d->device};
    d->decoder = (struct decoder){.cfg = {.plan = plan}, .shape = &shape, .stream = &d->stream};
    decoder_memory_layout(plan, &shape, NULL, &d->decoder.mem);
    d->decoder.memory = calloc(1, d->decoder.mem.n_bytes);
    assert_non_null(d->decoder.memory);
    decoder_memory_layout(plan, &shape, d->decoder.memory, &d->decoder.mem);
    assert_int_equal(decoder_inputs_init(&d->decoder, &err), 0);
}

static void close_decoder(struct on_device *d)
{
    decoder_inputs_fini(&d->decoder);
    free(d->decoder.memory);
}

/* A step of n_seqs sequences with a row each; numbers follow `seed`. */
static void fill(struct step_batch *b, uint32_t n_seqs, uint32_t seed)
{
    step_batch_clear(b);
    b->n_rows = b->n_seqs = b->n_sample_rows = n_seqs;
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t at = (seed * 7 + s * 13) % (N_ENTRIES * BLOCK);
        b->seq_start[s + 1] = s + 1;
        b->token_ids[s] = seed + s;
        b->positions[s] = at;
        b->seq_of_row[s] = b->sample_rows[s] = s;
        for (uint32_t i = 0; i < N_ENTRIES; i++) {
            b->block_tables[s * N_ENTRIES + i] = (seed / 2 + s * 5 + i) % N_BLOCKS;
            if (b->window_tables)
                b->window_tables[s * N_ENTRIES + i] = (seed / 2 + s * 3 + i) % N_WINDOW_BLOCKS;
        }
        b->kv_slots[s] = b->block_tables[s * N_ENTRIES + at / BLOCK] * BLOCK + at % BLOCK;
        if (b->window_slots)
            b->window_slots[s] = b->window_tables[s * N_ENTRIES + at / BLOCK] * BLOCK + at % BLOCK;
    }
}

static void assert_u32(const uint32_t *a, const uint32_t *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof(*a));
}

static void assert_inputs(const struct decoder_memory *mem, const struct step_batch *b)
{
    assert_u32(mem->token_ids, b->token_ids, b->n_rows);
    assert_u32(mem->positions, b->positions, b->n_rows);
    assert_u32(mem->kv_slots, b->kv_slots, b->n_rows);
    assert_u32(mem->sample_rows, b->sample_rows, b->n_sample_rows);
    if (mem->window_slots)
        assert_u32(mem->window_slots, b->window_slots, b->n_rows);
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        size_t n = b->positions[s] / BLOCK + 1, at = (size_t)s * N_ENTRIES;
        assert_u32(mem->block_tables + at, b->block_tables + at, n);
        if (mem->window_tables)
            assert_u32(mem->window_tables + at, b->window_tables + at, n);
    }
}

static void check_uploads(uint32_t n_window_blocks)
{
    struct on_device d[2];
    struct step_batch *b;
    struct error err = {0};
    struct rank_plan plan = {
        .rank = {.tp = 1, .n_stages = 3, .stage = 1},
        .steps = {.max_rows = MAX_ROWS,
                  .max_seqs = MAX_SEQS,
                  .max_logits = MAX_ROWS,
                  .max_blocks_per_seq = N_ENTRIES,
                  .n_blocks = N_BLOCKS,
                  .n_window_blocks = n_window_blocks,
                  .block_size = BLOCK},
    };
    struct step_limits limits = {MAX_ROWS, MAX_SEQS, N_ENTRIES, 0, n_window_blocks > 0};
    assert_int_equal(step_batch_create(&limits, &b, &err), 0);
    open_decoder(&d[0], &by_arrays, &plan);
    open_decoder(&d[1], &with_mirror, &plan);
    assert_int_equal(d[0].decoder.mem.window_tables != NULL, n_window_blocks > 0);
    for (uint32_t seed = 0; seed < 40; seed++) {
        uint32_t n = 1 + seed * 3 % MAX_SEQS, padded = n + seed % 4;
        fill(b, n, seed);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(
                decoder_inputs_upload(&d[i].decoder, b, i ? padded : n, i ? padded : n), 0);
            assert_inputs(&d[i].decoder.mem, b);
        }
        const struct decoder_memory *mem = &d[1].decoder.mem;
        for (uint32_t r = n; r < padded; r++) { /* padding rows write nowhere */
            assert_int_equal(mem->kv_slots[r], UINT32_MAX);
            assert_true(!mem->window_slots || mem->window_slots[r] == UINT32_MAX);
        }
        fill(b, n, seed + 1); /* the step after: first all but the ids */
        assert_int_equal(decoder_inputs_ahead(&d[1].decoder, b, n), 0);
        assert_int_equal(decoder_inputs_ids(&d[1].decoder, b, n), 0);
        assert_inputs(&d[1].decoder.mem, b);
    }
    n_copied = 0; /* tables that did not change are not copied again */
    fill(b, MAX_SEQS, 8);
    assert_int_equal(decoder_inputs_upload(&d[1].decoder, b, MAX_SEQS, MAX_SEQS), 0);
    size_t whole = n_copied;
    n_copied = 0;
    assert_int_equal(decoder_inputs_upload(&d[1].decoder, b, MAX_SEQS, MAX_SEQS), 0);
    assert_true(n_copied < whole);
    close_decoder(&d[0]);
    close_decoder(&d[1]);
    step_batch_destroy(b);
}

static void test_mirror_brings_what_arrays_bring(void **state)
{
    (void)state;
    check_uploads(0);
}

static void test_mirror_brings_places_and_tables_of_windows(void **state)
{
    (void)state;
    check_uploads(N_WINDOW_BLOCKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mirror_brings_what_arrays_bring),
        cmocka_unit_test(test_mirror_brings_places_and_tables_of_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
