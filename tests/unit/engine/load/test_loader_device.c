/* Tests of loading a checkpoint to a device in slices. Each row arrives once, at its place, with
 * any number of threads. A slice is not written again before its copy is done. Slices are read and
 * packed while others are copied. A failure ends the load and leaves nothing allocated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/load/loader_device.h"
#include "kernels/ops.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_late_device.h"
#include "tests/unit/engine/support/support_tiny.h"

/* --- weights that are kept as the file has them --- */

static atomic_int n_packs;
static int fail_pack; /* packing the n-th slice fails; 0: none fails */

static size_t row_bytes(const struct weight_desc *desc)
{
    return dtype_row_bytes(desc->source, desc->k_total);
}

static size_t device_bytes(const struct weight_desc *desc, struct error *err)
{
    (void)err;
    return (desc->n_rows * row_bytes(desc) + 255) / 256 * 256;
}

static size_t slice_bytes(const struct weight_desc *desc, uint32_t n_rows)
{
    return n_rows * row_bytes(desc) + 64;
}

/* Packs a slice as two copies, the second half first. */
static int pack_slice(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                      const void *raw, void *slice, struct weight_copy copies[WEIGHT_MAX_COPIES],
                      uint32_t *out_n_copies, struct error *err)
{
    size_t n = n_rows * row_bytes(desc), half = n / 2, at = row_begin * row_bytes(desc);
    assert_int_equal(row_begin % WEIGHT_PACK_ROWS, 0);
    assert_true(n_rows > 0 && row_begin + n_rows <= desc->n_rows);
    if (atomic_fetch_add(&n_packs, 1) + 1 == fail_pack)
        return error_set(err, STATUS_FAILED_PRECONDITION, "row %u is not finite", row_begin);
    memcpy((char *)slice + 64, raw, half);
    memcpy(slice, (const char *)raw + half, n - half < 64 ? n - half : 64);
    memcpy((char *)slice + 64 + half, (const char *)raw + half, n - half);
    copies[0] = (struct weight_copy){64 + half, at + half, n - half};
    copies[1] = (struct weight_copy){64, at, half};
    *out_n_copies = 2;
    return 0;
}

static int bind(const struct weight_desc *desc, void *data, struct weight **out_weight,
                struct error *err)
{
    (void)desc, (void)err;
    *out_weight = data;
    return 0;
}

static void unbind(struct weight *weight)
{
    (void)weight;
}

/* --- a load --- */

struct loaded {
    struct checkpoint *ckpt;
    struct model model;
    struct op_table ops;
    struct rank_plan plan;
    unsigned char *memory;
    struct weight **weights;
    uint64_t told, total; /* by progress */
};

static void progress(void *ctx, uint32_t rank, uint64_t done, uint64_t total)
{
    struct loaded *l = ctx;
    assert_int_equal(rank, 3);
    assert_true(done >= l->told && done <= total);
    l->told = done;
    l->total = total;
}

/* Opens matrices that need several slices, and one slice. Some rows are so long that a slice holds
 * a single chunk of rows. */
static void open_loaded(struct loaded *l)
{
    struct error err = {0};
    struct tiny_spec spec = tiny_spec_default();
    struct step_sizes steps = {.max_rows = 8,
                               .max_seqs = 2,
                               .max_blocks_per_seq = 16,
                               .n_blocks = 16,
                               .block_size = 16,
                               .kv_dtype = DTYPE_F32};
    struct rank rank = {.tp = 1, .n_stages = 1};
    const struct op_table *cpu;
    spec.n_layers = 1;
    spec.vocab = 4096 * 4 + 37;
    spec.ffn = 16384;
    spec.biases = true;
    memset(l, 0, sizeof(*l));
    late_reset();
    atomic_store(&n_packs, 0);
    fail_pack = 0;
    l->ckpt = tiny_open(&spec);
    assert_int_equal(op_table_cpu("ref", &cpu, &err), 0);
    l->ops = *cpu;
    l->ops.weight_bytes = NULL;
    l->ops.weight_init = NULL;
    l->ops.weight_pack_rows = NULL;
    l->ops.weight_device_bytes = device_bytes;
    l->ops.weight_slice_bytes = slice_bytes;
    l->ops.weight_pack_slice = pack_slice;
    l->ops.weight_bind = bind;
    l->ops.weight_unbind = unbind;
    assert_int_equal(model_init(&l->model, l->ckpt, NULL, &err), 0);
    if (plan_rank_init(&l->plan, &l->model, &l->ops, &rank, WEIGHT_STORE_SOURCE, &steps, &err) != 0)
        fail_msg("%s", err.message);
    l->memory = malloc(l->plan.weights_bytes);
    l->weights = calloc(l->plan.n_places, sizeof(*l->weights));
    assert_true(l->memory && l->weights);
    memset(l->memory, 0xA5, l->plan.weights_bytes);
}

static void close_loaded(struct loaded *l)
{
    assert_int_equal(atomic_load(&late.n_live), 0);
    loader_device_unload(&l->ops, &l->plan, l->weights);
    plan_rank_fini(&l->plan);
    model_fini(&l->model);
    checkpoint_close(l->ckpt);
    free(l->memory);
    free(l->weights);
}

static int load(struct loaded *l, uint32_t n_threads, const atomic_bool *cancel, struct error *err)
{
    struct loader_device_job job = {.model = &l->model,
                                    .ops = &l->ops,
                                    .plan = &l->plan,
                                    .device = &late_device,
                                    .memory = l->memory,
                                    .n_threads = n_threads,
                                    .i_rank = 3,
                                    .progress = progress,
                                    .progress_ctx = l,
                                    .cancel = cancel};
    return loader_device_load(&job, l->weights, err);
}

/* A slice: 2 MiB of rows, a multiple of 64 of them, at least 64. */
static uint32_t slices_of(const struct weight_place *place)
{
    size_t rows = ((size_t)2 << 20) / row_bytes(&place->desc) / 64 * 64;
    rows = rows < 64 ? 64 : rows;
    return (uint32_t)((place->desc.n_rows + rows - 1) / rows);
}

static void test_every_row_is_brought_once_by_any_number_of_threads(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 20};
    (void)state;
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        struct loaded l;
        struct error err = {0};
        uint32_t n_slices = 0, most = 0;
        open_loaded(&l);
        if (load(&l, threads[t], NULL, &err) != 0)
            fail_msg("%s", err.message);
        for (uint32_t i = 0; i < l.plan.n_places; i++) {
            const struct weight_place *p = &l.plan.places[i];
            size_t n_bytes = p->desc.n_rows * row_bytes(&p->desc);
            unsigned char *wanted = malloc(n_bytes), *at = l.memory + p->offset_bytes;
            assert_non_null(wanted);
            assert_int_equal(checkpoint_read_tensor_rows(l.ckpt, p->tensor, p->first,
                                                         p->desc.n_rows, wanted, &err),
                             0);
            assert_memory_equal(at, wanted, n_bytes);
            for (size_t b = n_bytes; b < p->n_bytes; b++)
                assert_int_equal(at[b], 0xA5);
            assert_ptr_equal(l.weights[i], at);
            n_slices += slices_of(p);
            most = slices_of(p) > most ? slices_of(p) : most;
            free(wanted);
        }
        assert_true(most >= 3); /* a matrix has more slices than a thread has buffers */
        assert_int_equal(atomic_load(&n_packs), n_slices);
        assert_int_equal(atomic_load(&late.n_calls[LATE_ALLOC_HOST]),
                         2 * (threads[t] < 8 ? threads[t] : 8));
        assert_int_equal(late.slice_bytes, (4 << 20) + 64); /* 64 rows of the widest */
        uint32_t n_first =
            threads[t] < 8 ? threads[t] : 8; /* most slices that overlap no other copy */
        assert_true(n_first < n_slices && late.n_beside >= 2 * (int)(n_slices - n_first));
        assert_true(l.total == l.plan.weights_bytes && l.told <= l.total && l.told > l.total / 2);
        close_loaded(&l);
    }
}

static void test_a_failure_ends_the_load_and_leaves_nothing(void **state)
{
    static const struct {
        int upload, host, pack, status;
        const char *text;
    } rows[] = {
        {1, 0, 0, STATUS_INTERNAL, "upload"},
        {6, 0, 0, STATUS_INTERNAL, "upload"},
        {0, 1, 0, STATUS_RESOURCE_EXHAUSTED, ""},
        {0, 4, 0, STATUS_RESOURCE_EXHAUSTED, ""},
        {0, 0, 1, STATUS_FAILED_PRECONDITION, "tensor"},
        {0, 0, 5, STATUS_FAILED_PRECONDITION, "tensor"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct loaded l;
        struct error err = {0};
        open_loaded(&l);
        late.fail_at[LATE_UPLOAD] = rows[i].upload;
        late.fail_at[LATE_ALLOC_HOST] = rows[i].host;
        fail_pack = rows[i].pack;
        assert_int_equal(load(&l, 2, NULL, &err), rows[i].status);
        if (!names_all(err.message, rows[i].text))
            fail_msg("\"%s\" has no \"%s\"", err.message, rows[i].text);
        if (rows[i].pack)
            assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        for (uint32_t p = 0; p < l.plan.n_places; p++)
            assert_null(l.weights[p]);
        close_loaded(&l);
    }
}

static void test_a_load_that_is_cancelled_ends(void **state)
{
    struct loaded l;
    struct error err = {0};
    atomic_bool cancel = true;
    (void)state;
    open_loaded(&l);
    assert_int_equal(load(&l, 2, &cancel, &err), STATUS_CANCELLED);
    assert_int_equal(atomic_load(&n_packs), 0);
    close_loaded(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_brought_once_by_any_number_of_threads),
        cmocka_unit_test(test_a_failure_ends_the_load_and_leaves_nothing),
        cmocka_unit_test(test_a_load_that_is_cancelled_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
