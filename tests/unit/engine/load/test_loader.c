/* Tests of packed memory: a sealed memfd per rank. A process that maps the memory again checks its
 * header. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/load/loader.h"
#include "engine/load/loader_memory.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_tiny.h"

struct loaded {
    struct checkpoint *ckpt;
    struct model model;
    const struct op_table *ops;
    struct rank_plan plans[8];
    struct packed_weights weights[8];
    uint32_t tp;
};

static void make_plans(struct loaded *l, struct checkpoint *ckpt, const char *kernels, uint32_t tp)
{
    struct error err = {0};
    struct step_sizes steps = {.max_rows = 8,
                               .max_seqs = 2,
                               .max_blocks_per_seq = 16,
                               .n_blocks = 16,
                               .block_size = 16,
                               .kv_dtype = DTYPE_F32};
    memset(l, 0, sizeof(*l));
    l->ckpt = ckpt;
    l->tp = tp;
    assert_int_equal(op_table_cpu(kernels, &l->ops, &err), 0);
    assert_int_equal(model_init(&l->model, ckpt, NULL, &err), 0);
    for (uint32_t r = 0; r < tp; r++) {
        struct rank rank = {.index = r, .tp = tp, .n_stages = 1};
        if (plan_rank_init(&l->plans[r], &l->model, l->ops, &rank, WEIGHT_STORE_SOURCE, &steps,
                           &err) != 0)
            fail_msg("%s", err.message);
    }
}

static int load_shared(struct loaded *l, uint32_t n_threads, const int *fds, struct error *out_why,
                       struct error *err)
{
    struct thread_pool *pool;
    assert_int_equal(thread_pool_create(n_threads, &pool, err), 0);
    struct loader_job job = {.model = &l->model,
                             .ops = l->ops,
                             .plans = l->plans,
                             .n_ranks = l->tp,
                             .pool = pool,
                             .shared_fds = fds};
    int rc = loader_load(&job, l->weights, out_why, err);
    thread_pool_destroy(pool);
    return rc;
}

static int load(struct loaded *l, uint32_t n_threads, struct error *err)
{
    struct error why;
    return load_shared(l, n_threads, NULL, &why, err);
}

static void close_loaded(struct loaded *l)
{
    for (uint32_t r = 0; r < l->tp; r++) {
        loader_unmap(&l->weights[r]);
        plan_rank_fini(&l->plans[r]);
    }
    model_fini(&l->model);
    checkpoint_close(l->ckpt);
}

static struct checkpoint *quantized(void)
{
    struct tiny_spec spec = tiny_spec_default();
    spec.matrix_type = GGML_Q4_1;
    spec.biases = true;
    spec.vocab = 5000; /* several chunks of the embedding */
    return tiny_open(&spec);
}

/* The kernel may give any number of huge pages. The memory is zero before writes, and holds the
 * written bytes after. Its end is no multiple of the page sizes. */
static void test_huge_pages_hold_what_small_ones_would(void **state)
{
    (void)state;
    enum { STEP = 2 << 20 };
    struct rank_plan plan = {.weights_bytes = 3 * (uint64_t)STEP + 12 * 4096 + 64};
    struct loader_memory memory;
    struct packed_weights weights;
    struct error err = {0};
    assert_int_equal(loader_memory_init(&memory, &plan, -1, &err), 0);
    loader_memory_make_huge(&memory, 0, 2 * (uint64_t)STEP);
    loader_memory_make_huge(&memory, 2 * (uint64_t)STEP, 8 * (uint64_t)STEP);
    loader_memory_make_huge(&memory, 10 * (uint64_t)STEP, STEP); /* beyond the end: no effect */
    for (uint64_t i = 0; i < plan.weights_bytes; i++) {
        assert_int_equal(memory.base[i], 0);
        memory.base[i] = (unsigned char)(i % 251);
    }
    assert_int_equal(loader_memory_seal(&memory, &plan, &err), 0);
    assert_int_equal(loader_memory_map(&memory, &weights, &err), 0);
    const unsigned char *base = weights.base;
    for (uint64_t i = PLAN_HEADER_BYTES; i < plan.weights_bytes; i++)
        assert_int_equal(base[i], i % 251);
    assert_true(weights.huge_bytes % STEP == 0 && weights.huge_bytes <= 3 * (uint64_t)STEP);
    loader_unmap(&weights);
    loader_memory_fini(&memory);
}

static void test_load_any_threads_same_bytes(void **state)
{
    struct loaded one, three;
    struct error err = {0};
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp *= 2) {
        make_plans(&one, quantized(), "auto", tp);
        make_plans(&three, quantized(), "auto", tp);
        assert_int_equal(load(&one, 1, &err), 0);
        assert_int_equal(load(&three, 3, &err), 0);
        for (uint32_t r = 0; r < tp; r++) {
            assert_true(one.weights[r].n_bytes == three.weights[r].n_bytes);
            assert_memory_equal(one.weights[r].base, three.weights[r].base, one.weights[r].n_bytes);
            /* The digests of two ranks differ. */
            assert_memory_not_equal(one.plans[r].digest, one.plans[(r + 1) % 4].digest,
                                    SHA256_BYTES);
        }
        close_loaded(&one);
        close_loaded(&three);
    }
}

static uint64_t bytes_read(void)
{
    FILE *file = fopen("/proc/self/io", "re");
    uint64_t n = 0;
    char line[64];
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, "rchar: ", 7) == 0)
            n = strtoull(line + 7, NULL, 10);
    fclose(file);
    return n;
}

static struct checkpoint *untied(void)
{
    struct tiny_spec spec = tiny_spec_default();
    spec.matrix_type = GGML_Q4_1;
    spec.vocab = 30000; /* the sanitizers read up to 400 KB of their own */
    spec.untied = true;
    return tiny_open(&spec);
}

/* Symptom: each rank read the whole rows of weights that are split by columns, and of the
 * embedding. Two ranks read one and a half times the file. */
static void test_load_of_several_ranks_reads_common_rows_once(void **state)
{
    struct loaded l;
    struct error err = {0};
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp *= 2) {
        make_plans(&l, untied(), "auto", tp);
        uint64_t n_file = 0, before = bytes_read();
        for (uint64_t i = 0; i < checkpoint_n_tensors(l.ckpt); i++)
            n_file += checkpoint_tensor_at(l.ckpt, i)->n_bytes;
        assert_int_equal(load(&l, 2, &err), 0);
        uint64_t n = bytes_read() - before;
        if (n < n_file || n > n_file + n_file / 4)
            fail_msg("%u ranks read %llu bytes of a file of %llu", tp, (unsigned long long)n,
                     (unsigned long long)n_file);
        close_loaded(&l);
    }
}

static void test_load_is_sealed(void **state)
{
    struct loaded l;
    struct error err = {0};
    (void)state;
    make_plans(&l, quantized(), "auto", 1);
    assert_int_equal(load(&l, 2, &err), 0);
    int fd = l.weights[0].fd;
    int seals = fcntl(fd, F_GET_SEALS);
    assert_int_equal(seals & (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK),
                     F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(ftruncate(fd, 1), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal((uintptr_t)l.weights[0].base % (2 << 20), 0);
    close_loaded(&l);
}

static void test_map_sealed_shows_same_bytes(void **state)
{
    struct loaded l;
    struct packed_weights again = {0};
    struct error err = {0};
    (void)state;
    make_plans(&l, quantized(), "auto", 1);
    assert_int_equal(load(&l, 2, &err), 0);
    int fd = dup(l.weights[0].fd);
    assert_int_equal(loader_map_sealed(fd, &l.plans[0], &again, &err), 0);
    assert_ptr_not_equal(again.base, l.weights[0].base);
    assert_memory_equal(again.base, l.weights[0].base, again.n_bytes);
    const struct weight_place *place = &l.plans[0].places[3];
    assert_int_equal(weight_n_rows(loader_weight(&again, place)), place->desc.n_rows);
    loader_unmap(&again);
    loader_unmap(&again);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* loader_unmap() has closed the descriptor */
    close_loaded(&l);
}

/* A copy of the packed memory with one thing changed, sealed or not. */
static int doctored(const struct packed_weights *from, size_t offset, unsigned char flip,
                    uint64_t n_bytes, bool seal)
{
    int fd = memfd_create("doctored", MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, from->base, n_bytes), (ssize_t)n_bytes);
    unsigned char byte = (unsigned char)(((const unsigned char *)from->base)[offset] ^ flip);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    if (seal)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), 0);
    return fd;
}

static void test_map_sealed_foreign_memory_refused(void **state)
{
    struct loaded l, other;
    struct error err = {0};
    struct packed_weights out = {0};
    (void)state;
    make_plans(&l, quantized(), "auto", 1);
    assert_int_equal(load(&l, 2, &err), 0);
    uint64_t n = l.weights[0].n_bytes;
    const struct {
        size_t offset;
        unsigned char flip;
        uint64_t n_bytes;
        bool seal;
        const char *text;
    } rows[] = {
        {n - 1, 0, n, false, ""},
        {n - 1, 0, n - 64, true, ""},
        {offsetof(struct packed_header, magic), 1, n, true, ""},
        {offsetof(struct packed_header, version), 4, n, true, "5|1"},
        {offsetof(struct packed_header, n_weights), 1, n, true, ""},
        {offsetof(struct packed_header, total_bytes), 1, n, true, ""},
        {offsetof(struct packed_header, digest) + 31, 1, n, true, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd = doctored(&l.weights[0], rows[i].offset < rows[i].n_bytes ? rows[i].offset : 0,
                          rows[i].flip, rows[i].n_bytes, rows[i].seal);
        assert_int_equal(loader_map_sealed(fd, &l.plans[0], &out, &err),
                         STATUS_FAILED_PRECONDITION);
        assert_int_equal(err.reason, REASON_PACKED_MISMATCH);
        if (!names_all(err.message, rows[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.message, rows[i].text);
        assert_null(out.base);
        close(fd);
    }
    /* Another kernel set's memory has another digest or size. */
    make_plans(&other, quantized(), "f32", 1);
    int fd = dup(l.weights[0].fd);
    assert_int_equal(loader_map_sealed(fd, &other.plans[0], &out, &err),
                     STATUS_FAILED_PRECONDITION);
    close(fd);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(loader_map_sealed(pipes[0], &l.plans[0], &out, &err),
                     STATUS_FAILED_PRECONDITION);
    close(pipes[0]);
    close(pipes[1]);
    close_loaded(&other);
    close_loaded(&l);
}

static ino_t inode_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

static void test_load_when_memory_is_handed_in_then_filled_once_and_mapped(void **state)
{
    struct error err = {0}, why = {0};
    (void)state;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        struct loaded filler, second;
        int fds[2];
        for (uint32_t r = 0; r < tp; r++)
            fds[r] = memfd_create("shared", MFD_ALLOW_SEALING);
        make_plans(&filler, quantized(), "auto", tp);
        assert_int_equal(load_shared(&filler, 2, fds, &why, &err), 0);
        assert_int_equal(why.status, 0);
        make_plans(&second, quantized(), "auto", tp);
        assert_int_equal(load_shared(&second, 2, fds, &why, &err), 0);
        assert_int_equal(why.status, 0);
        for (uint32_t r = 0; r < tp; r++) {
            assert_int_equal(filler.weights[r].origin, LOADER_FILLED);
            assert_int_equal(second.weights[r].origin, LOADER_MAPPED);
            assert_true(inode_of(fds[r]) == inode_of(filler.weights[r].fd));
            assert_true(inode_of(fds[r]) == inode_of(second.weights[r].fd));
            assert_memory_equal(filler.weights[r].base, second.weights[r].base,
                                filler.weights[r].n_bytes);
        }
        close_loaded(&filler); /* the second load still maps the memory */
        assert_int_equal(loader_memory_check(fds[0], &second.plans[0], &err), 0);
        close_loaded(&second);
        for (uint32_t r = 0; r < tp; r++)
            close(fds[r]);
    }
}

static void test_load_when_shared_memory_is_not_right_then_packs_its_own_and_says_why(void **state)
{
    struct loaded l, right;
    struct error err = {0}, why = {0};
    (void)state;
    make_plans(&right, quantized(), "auto", 1);
    assert_int_equal(load(&right, 2, &err), 0);
    uint64_t n = right.weights[0].n_bytes;
    int half = memfd_create(
        "half", MFD_ALLOW_SEALING); /* memory whose filling process died or has not finished */
    assert_int_equal(ftruncate(half, (off_t)n), 0);
    const struct {
        int fd;
        const char *text;
    } rows[] = {
        {half, ""},
        {doctored(&right.weights[0], offsetof(struct packed_header, digest), 1, n, true), ""},
        {doctored(&right.weights[0], 0, 0, n - 4096, true), ""},
        {open("/dev/null", O_RDONLY), ""},
        {-1, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_plans(&l, quantized(), "auto", 1);
        assert_int_equal(load_shared(&l, 2, &rows[i].fd, &why, &err), 0);
        assert_int_equal(why.status, STATUS_FAILED_PRECONDITION);
        if (why.reason != REASON_PACKED_MISMATCH)
            fail_msg("%s %s", error_reason_name(&why), why.message);
        assert_int_equal(l.weights[0].origin, LOADER_OWN);
        assert_memory_equal(l.weights[0].base, right.weights[0].base, n);
        close_loaded(&l);
        if (rows[i].fd >= 0)
            close(rows[i].fd);
    }
    close_loaded(&right);
}

static void test_load_not_finite_names_tensor(void **state)
{
    static const struct {
        const char *tensor;
        uint32_t type;
    } rows[] = {{"blk.1.ffn_down.weight", GGML_F32}, {"blk.0.attn_norm.weight", GGML_F32}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tiny_spec spec = tiny_spec_default();
        struct gguf_writer w = {0};
        struct checkpoint *ckpt = NULL;
        struct loaded l;
        struct error err = {0};
        const unsigned char nan_bytes[4] = {0, 0, 0xC0, 0x7F};
        tiny_write(&spec, &w);
        assert_int_equal(gguf_open(&w, &ckpt, &err), 0);
        uint64_t at = checkpoint_tensor_find(ckpt, rows[i].tensor)->offset_bytes + 64;
        checkpoint_close(ckpt);
        memcpy(w.bytes.data + at, nan_bytes, 4);
        assert_int_equal(gguf_open(&w, &ckpt, &err), 0);
        make_plans(&l, ckpt, "auto", 1);
        assert_int_equal(load(&l, 2, &err), STATUS_FAILED_PRECONDITION);
        if (!strstr(err.message, rows[i].tensor))
            fail_msg("\"%s\" does not name %s", err.message, rows[i].tensor);
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        assert_null(l.weights[0].base);
        close_loaded(&l);
        gguf_writer_fini(&w);
    }
}

/* If the file changes while it is read, the load fails. */
static void test_load_changed_file_refused(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct gguf_writer w = {0};
    struct error err = {0};
    struct checkpoint *ckpt = NULL;
    struct loaded l;
    char path[] = "/tmp/sluice-loader-XXXXXX";
    (void)state;
    tiny_write(&spec, &w);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, w.bytes.data, w.bytes.n_bytes), (ssize_t)w.bytes.n_bytes);
    assert_int_equal(checkpoint_open(path, &ckpt, &err), 0);
    make_plans(&l, ckpt, "auto", 1);
    const struct timespec times[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(load(&l, 2, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    assert_null(l.weights[0].base);
    close(fd);
    unlink(path);
    close_loaded(&l);
    gguf_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_huge_pages_hold_what_small_ones_would),
        cmocka_unit_test(test_load_any_threads_same_bytes),
        cmocka_unit_test(test_load_of_several_ranks_reads_common_rows_once),
        cmocka_unit_test(test_load_is_sealed),
        cmocka_unit_test(test_map_sealed_shows_same_bytes),
        cmocka_unit_test(test_map_sealed_foreign_memory_refused),
        cmocka_unit_test(test_load_when_memory_is_handed_in_then_filled_once_and_mapped),
        cmocka_unit_test(test_load_when_shared_memory_is_not_right_then_packs_its_own_and_says_why),
        cmocka_unit_test(test_load_not_finite_names_tensor),
        cmocka_unit_test(test_load_changed_file_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
