/* Tests of a park copy: a rank's weights are kept in host memory and restored. The device copies
 * as late as allowed. An invalid image is refused. Failures and cancels leave nothing
 * allocated. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/load/loader.h"
#include "engine/load/loader_image.h"
#include "kernels/ops.h"
#include "tests/unit/engine/support/support_late_device.h"

enum { SLICE = 2 << 20, GUARD = 4096, I_RANK = 3, N_PLACES = 2 };
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

/* --- a rank on the device --- */

static int bind(const struct weight_desc *desc, void *data, struct weight **out_weight,
                struct error *err)
{
    (void)desc, (void)err;
    *out_weight = data;
    return 0;
}

static const struct op_table ops = {.weight_bind = bind};

struct kept {
    struct rank_plan plan;
    struct weight_place places[N_PLACES];
    struct weight *weights[N_PLACES];
    struct loader_device_job job;
    unsigned char *memory; /* the device's memory, with a guard zone behind */
    uint64_t told;         /* by progress */
    uint32_t n_told;
    struct packed_weights image;
    uint32_t n_fds; /* open descriptors before the image */
    bool cancels;   /* the first progress report cancels the job */
    atomic_bool cancel;
};

static void progress(void *ctx, uint32_t rank, uint64_t done, uint64_t total)
{
    struct kept *k = ctx;
    assert_int_equal(rank, I_RANK);
    assert_true(total == k->plan.weights_bytes && done > k->told && done <= total);
    k->told = done;
    k->n_told++;
    atomic_store(&k->cancel, k->cancels);
}

/* Byte i of the weights. Slices differ from each other and from their own shifted bytes. */
static unsigned char byte_at(uint64_t i)
{
    return (unsigned char)((i * 0x9E3779B97F4A7C15 ^ i >> 7) * 0xD6E8FEB86659FD93 >> 56);
}

static uint32_t count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void open_kept(struct kept *k, uint64_t n_bytes)
{
    memset(k, 0, sizeof(*k));
    k->n_fds = count_fds();
    k->plan.weights_bytes = n_bytes;
    k->plan.places = k->places;
    k->plan.n_places = N_PLACES;
    memset(k->plan.digest, 0x5D, SHA256_BYTES);
    for (uint32_t i = 0; i < N_PLACES; i++)
        k->places[i] =
            (struct weight_place){.offset_bytes = i * (n_bytes / N_PLACES),
                                  .desc = {.role = WEIGHT_VECTOR, .n_rows = 1, .k_total = 1}};
    k->memory = malloc(n_bytes + GUARD);
    assert_non_null(k->memory);
    for (uint64_t i = 0; i < n_bytes; i++)
        k->memory[i] = byte_at(i);
    memset(k->memory + n_bytes, 0xA5, GUARD);
    k->job = (struct loader_device_job){.plan = &k->plan,
                                        .device = &late_device,
                                        .memory = k->memory,
                                        .i_rank = I_RANK,
                                        .progress = progress,
                                        .progress_ctx = k,
                                        .cancel = &k->cancel};
}

static void assert_bytes(const unsigned char *at, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_bytes; i++)
        if (at[i] != byte_at(i))
            fail_msg("byte %llu of %llu", (unsigned long long)i, (unsigned long long)n_bytes);
}

/* Checks that the image is complete for a process that maps the packed memory. */
static void assert_kept(const struct kept *k)
{
    struct packed_weights mapped = {0};
    struct error err = {0};
    int fd = fcntl(k->image.fd, F_DUPFD_CLOEXEC, 0);
    if (loader_map_sealed(fd, &k->plan, &mapped, &err) != 0)
        fail_msg("%s", err.message);
    assert_bytes((const unsigned char *)mapped.base + PLAN_HEADER_BYTES, k->plan.weights_bytes);
    loader_unmap(&mapped);
}

/* fd -1: saves the device's weights to *out_image. Else loads the image in fd to the device. */
static int move(struct kept *k, uint32_t n_threads, int fd, struct packed_weights *out_image,
                struct error *err)
{
    k->told = k->n_told = 0;
    k->job.n_threads = n_threads;
    k->job.ops = fd < 0 ? NULL : &ops;
    memset(k->weights, 0, sizeof(k->weights));
    return fd < 0 ? loader_image_save(&k->job, out_image, err)
                  : loader_image_load(&k->job, fd, k->weights, err);
}

static void must_save(struct kept *k, uint32_t n_threads)
{
    struct error err = {0};
    late_reset();
    if (move(k, n_threads, -1, &k->image, &err) != 0)
        fail_msg("%s", err.message);
}

/* Loads the image to an empty device. Checks all bytes, and that the guard zone is unchanged. */
static void must_load(struct kept *k, uint32_t n_threads)
{
    struct error err = {0};
    late_reset();
    memset(k->memory, 0xA5, k->plan.weights_bytes);
    if (move(k, n_threads, k->image.fd, NULL, &err) != 0)
        fail_msg("%s", err.message);
    assert_bytes(k->memory, k->plan.weights_bytes);
    for (uint32_t i = 0; i < GUARD; i++)
        assert_int_equal(k->memory[k->plan.weights_bytes + i], 0xA5);
    for (uint32_t i = 0; i < N_PLACES; i++)
        assert_ptr_equal(k->weights[i], k->memory + k->places[i].offset_bytes);
}

static void close_kept(struct kept *k)
{
    loader_image_close(&k->image);
    free(k->memory);
}

/* --- leaks --- */

/* Asserts that only the image, if there is one, is still open, and that nothing is mapped. */
static void assert_left(const struct kept *k)
{
    char line[512];
    assert_int_equal(count_fds(), k->n_fds + (k->image.n_bytes > 0));
    FILE *file = fopen("/proc/self/maps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (strstr(line, "memfd:sluice-weights"))
            fail_msg("mapped: %s", line);
    fclose(file);
    assert_int_equal(atomic_load(&late.n_live), 0);
}

static void assert_failed(const struct kept *k, const struct packed_weights *out_image)
{
    const struct packed_weights untouched = {.fd = -77};
    assert_memory_equal(out_image, &untouched, sizeof(untouched));
    for (uint32_t i = 0; i < N_PLACES; i++)
        assert_null(k->weights[i]);
    assert_left(k);
}

/* --- tests --- */

/* Checks that each slice was copied once, with a progress report for each. All but a thread's first
 * copy overlap the copy before. */
static void assert_moved(const struct kept *k, enum late_call copies, uint32_t n_threads)
{
    uint32_t n = (uint32_t)((k->plan.weights_bytes + SLICE - 1) / SLICE);
    uint32_t most = n < 8 ? n : 8, n_hands = n_threads < most ? n_threads : most;
    assert_int_equal(atomic_load(&late.n_calls[copies]), n);
    assert_in_range(atomic_load(&late.n_beside), n - n_hands, n - 1);
    assert_int_equal(atomic_load(&late.n_calls[LATE_ALLOC_HOST]), 2 * n_hands);
    assert_true(k->told == k->plan.weights_bytes && k->n_told == n);
}

static void check_round_trip(uint64_t n_bytes, uint32_t n_threads)
{
    struct kept k;
    open_kept(&k, n_bytes);
    must_save(&k, n_threads);
    assert_left(&k);
    assert_moved(&k, LATE_DOWNLOAD, n_threads);
    assert_kept(&k);
    must_load(&k, n_threads);
    assert_left(&k);
    assert_moved(&k, LATE_UPLOAD, n_threads);
    close_kept(&k);
    assert_left(&k);
}

static void test_every_byte_comes_back_by_any_number_of_threads(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 8, 20};
    static const uint64_t sizes[] = {
        1, 4097, SLICE - 1, SLICE, SLICE + 1, 3ULL * SLICE, 19ULL * SLICE + 12345};
    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
            check_round_trip(sizes[s], threads[t]);
}

/* The job has no progress callback and no cancel flag, as in executor_keep(). */
static void test_an_image_is_sealed_memory_of_header_and_weights(void **state)
{
    struct kept k;
    (void)state;
    open_kept(&k, SLICE + 100);
    k.job.progress = NULL;
    k.job.cancel = NULL;
    must_save(&k, 2);
    assert_true(k.image.n_bytes == SLICE + 100 + PLAN_HEADER_BYTES);
    assert_true(loader_image_bytes(&k.plan) == k.image.n_bytes);
    assert_true((uint64_t)lseek(k.image.fd, 0, SEEK_END) == k.image.n_bytes);
    assert_null(k.image.base);
    assert_int_equal(fcntl(k.image.fd, F_GET_SEALS), SEALS | F_SEAL_SEAL);
    assert_int_equal(fcntl(k.image.fd, F_GETFD), FD_CLOEXEC);
    assert_true(pwrite(k.image.fd, "", 1, PLAN_HEADER_BYTES) == -1 && errno == EPERM);
    assert_kept(&k);
    loader_image_close(&k.image);
    k.image.fd = 0; /* a zeroed struct has no image */
    close_kept(&k);
    assert_left(&k);
}

static int copy_of(const struct packed_weights *image, uint64_t n_bytes, int seals)
{
    int fd = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    off_t at = 0;
    assert_int_equal(sendfile(fd, image->fd, &at, n_bytes), n_bytes);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Takes fd. */
static void check_image(int fd, const struct rank_plan *plan, bool good)
{
    struct error err = {0};
    assert_int_equal(loader_image_check(fd, plan, &err), good ? 0 : STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, good ? REASON_NONE : REASON_PACKED_MISMATCH);
    close(fd);
}

static void test_what_is_no_image_of_the_plan_is_refused(void **state)
{
    struct kept k;
    (void)state;
    open_kept(&k, SLICE / 2 + 3);
    must_save(&k, 1);
    struct rank_plan digest = k.plan, longer = k.plan, header = k.plan;
    digest.digest[31] ^= 1;
    longer.weights_bytes++;
    header.header_bytes =
        PLAN_HEADER_BYTES; /* the header is part of the weights' bytes, as in a plan for a CPU */
    check_image(dup(k.image.fd), &k.plan, true);
    check_image(dup(k.image.fd), &digest, false);
    check_image(dup(k.image.fd), &longer, false);
    check_image(dup(k.image.fd), &header, false);
    uint64_t n = k.image.n_bytes;
    check_image(copy_of(&k.image, n, SEALS), &k.plan, true);
    check_image(copy_of(&k.image, n - 1, SEALS), &k.plan, false);
    check_image(copy_of(&k.image, n, 0), &k.plan, false);
    check_image(copy_of(&k.image, n, F_SEAL_SHRINK | F_SEAL_GROW), &k.plan, false);
    check_image(open("/dev/zero", O_RDONLY | O_CLOEXEC), &k.plan, false);
    close_kept(&k);
}

/* No call of the device is made if there is no memory to copy from or to. */
static void test_memory_that_is_not_there_is_told(void **state)
{
    struct kept k;
    struct packed_weights none = {.fd = -77};
    struct error err = {0};
    (void)state;
    open_kept(&k, 100);
    must_save(&k, 1);
    late_reset();
    k.plan.weights_bytes = 1ULL << 60;
    assert_int_equal(move(&k, 1, -1, &none, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(move(&k, 1, k.image.fd, &none, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(atomic_load(&late.n_calls[LATE_STREAM_CREATE]), 0);
    assert_failed(&k, &none);
    close_kept(&k);
}

/* Lets the at-th call fail, which fails the whole job. The thread makes no further call. Returns
 * false if the job makes fewer calls. */
static bool check_failure(struct kept *k, uint32_t n_threads, int fd, enum late_call call, int at)
{
    struct packed_weights none = {.fd = -77};
    struct error err = {0};
    const struct late_failure *failure = &late_failures[call];
    late_reset();
    late.fail_at[call] = at;
    int rc = move(k, n_threads, fd, &none, &err), n = atomic_load(&late.n_calls[call]);
    if (n < at) {
        assert_int_equal(rc, 0);
        loader_image_close(&none);
        return false;
    }
    assert_true(n == at || n_threads > 1);
    if (rc != failure->status || err.status != rc || !strstr(err.message, failure->text))
        fail_msg("%s, call %d: %d, \"%s\"", failure->text, at, rc, err.message);
    assert_failed(k, &none);
    return true;
}

/* An image of six slices: each call of the device fails once. */
static void test_a_failure_of_the_device_ends_it_and_leaves_nothing(void **state)
{
    struct kept k;
    (void)state;
    open_kept(&k, 5ULL * SLICE + 77);
    must_save(&k, 1);
    for (int i = 0; i < 4; i++) {
        int t = 1 + i / 2, loads = i % 2, fd = loads ? k.image.fd : -1;
        const int n_calls[N_LATE_CALLS] = {
            t, 2 * t, 2 * t, loads ? 6 : 0, loads ? 0 : 6, 6, loads ? 6 : 6 + 2 * t, t};
        for (int call = 0; call < N_LATE_CALLS; call++) {
            int n = 0;
            while (check_failure(&k, (uint32_t)t, fd, (enum late_call)call, n + 1))
                n++;
            assert_int_equal(n, n_calls[call]);
        }
    }
    must_load(&k, 2); /* the image is still intact after all failures */
    close_kept(&k);
}

/* Cancels before the start, or when the first slice is done. Then no thread takes another slice. */
static void check_cancel(struct kept *k, int fd, uint32_t n_threads, bool before)
{
    struct packed_weights none = {.fd = -77};
    struct error err = {0};
    late_reset();
    k->cancels = !before;
    atomic_store(&k->cancel, before);
    assert_int_equal(move(k, n_threads, fd, &none, &err), STATUS_CANCELLED);
    /* A thread reports a download when it queues its third, and an upload at once. */
    int n = atomic_load(&late.n_calls[fd < 0 ? LATE_DOWNLOAD : LATE_UPLOAD]);
    int most = before ? 0 : (int)n_threads * (fd < 0 ? 3 : 1);
    assert_true(n <= most && (n_threads > 1 || n == most));
    assert_true(before ? k->told == 0 : k->told > 0 && k->told < k->plan.weights_bytes);
    assert_failed(k, &none);
}

static void test_a_cancel_before_or_amid_ends_it_and_leaves_nothing(void **state)
{
    struct kept k;
    (void)state;
    open_kept(&k, 11ULL * SLICE + 1);
    must_save(&k, 1);
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++)
        for (int i = 0; i < 4; i++)
            check_cancel(&k, i % 2 ? k.image.fd : -1, n_threads, i < 2);
    close_kept(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_comes_back_by_any_number_of_threads),
        cmocka_unit_test(test_an_image_is_sealed_memory_of_header_and_weights),
        cmocka_unit_test(test_what_is_no_image_of_the_plan_is_refused),
        cmocka_unit_test(test_memory_that_is_not_there_is_told),
        cmocka_unit_test(test_a_failure_of_the_device_ends_it_and_leaves_nothing),
        cmocka_unit_test(test_a_cancel_before_or_amid_ends_it_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
