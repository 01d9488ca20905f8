/* Tests that count the bytes that a load reads, and drops from the page cache. pread() and
 * posix_fadvise() below stand before libc's. The folders are golden ones of gpt-oss, where the rows
 * of gate and up alternate. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/load/loader.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

static atomic_ullong n_read, n_drops, n_dropped;

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    ssize_t got = syscall(SYS_pread64, fd, data, n, offset);
    if (got > 0)
        atomic_fetch_add(&n_read, (unsigned long long)got);
    return got;
}

int posix_fadvise(int fd, off_t offset, off_t n, int advice)
{
    (void)fd, (void)offset, (void)advice;
    atomic_fetch_add(&n_drops, 1);
    atomic_fetch_add(&n_dropped, (unsigned long long)n);
    return 0;
}

/* Loads the folder for tp ranks, and counts. Returns the bytes that the ranks need. */
static uint64_t load(const char *name, uint32_t tp)
{
    struct error err = {0}, why;
    struct checkpoint *ckpt = NULL;
    struct model model;
    struct rank_plan plans[2];
    struct packed_weights weights[2];
    const struct op_table *ops;
    struct thread_pool *pool;
    const struct step_sizes steps = {.max_rows = 8,
                                     .max_seqs = 2,
                                     .max_blocks_per_seq = 16,
                                     .n_blocks = 16,
                                     .block_size = 16,
                                     .kv_dtype = DTYPE_F32};
    char path[512];
    uint64_t n_bytes = 0;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", SLUICE_SOURCE_DIR, name);
    assert_int_equal(checkpoint_open(path, &ckpt, &err), 0);
    assert_int_equal(op_table_cpu("ref", &ops, &err), 0);
    assert_int_equal(model_init(&model, ckpt, NULL, &err), 0);
    for (uint32_t r = 0; r < tp; r++) {
        struct rank rank = {.index = r, .tp = tp, .n_stages = 1};
        assert_int_equal(
            plan_rank_init(&plans[r], &model, ops, &rank, WEIGHT_STORE_SOURCE, &steps, &err), 0);
        n_bytes += plans[r].source_bytes;
    }
    assert_int_equal(thread_pool_create(2, &pool, &err), 0);
    const struct loader_job job = {
        .model = &model, .ops = ops, .plans = plans, .n_ranks = tp, .pool = pool};
    n_read = n_drops = n_dropped = 0;
    assert_int_equal(loader_load(&job, weights, &why, &err), 0);
    thread_pool_destroy(pool);
    for (uint32_t r = 0; r < tp; r++) {
        loader_unmap(&weights[r]);
        plan_rank_fini(&plans[r]);
    }
    model_fini(&model);
    checkpoint_close(ckpt);
    return n_bytes;
}

/* symptom: gate and up of gpt-oss were read one after the other, each with the rows of both */
static void test_rows_that_alternate_are_read_once(void **state)
{
    static const char *const names[] = {"gpt_oss", "gpt_oss_mxfp4", "gpt_oss_wide", "qwen3moe"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (uint32_t tp = 1; tp <= 2; tp++) {
            uint64_t share = load(names[i], tp);
            print_message("%s, tp %u: %llu bytes read of %llu\n", names[i], tp,
                          (unsigned long long)n_read, (unsigned long long)share);
            assert_true(n_read > 0 && n_read * 10 <= share * 11);
        }
}

/* symptom: a drop of each row by itself, which no kernel honours below a page */
static void test_pages_are_dropped_in_large_stretches(void **state)
{
    (void)state;
    uint64_t share = load("gpt_oss_mxfp4", 1);
    print_message("%llu drops of %llu bytes\n", (unsigned long long)n_drops,
                  (unsigned long long)n_dropped);
    assert_true(n_dropped >= share);
    assert_true(n_drops < 200); /* weights and vectors; the rows of gate and up alone are 1,536 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_that_alternate_are_read_once),
        cmocka_unit_test(test_pages_are_dropped_in_large_stretches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
