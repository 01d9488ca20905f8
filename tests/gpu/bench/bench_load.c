/* bench_load.c: loads of files with real bytes, from disk and from the page cache. The raw
 * speed of disk and bus stands beside. Also measures a park copy of the device's weights, and a
 * load from the copy. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor_private.h"
#include "kernels/thread_pool.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/bench/big_model.h"

/* same slices and threads as in the loader */
enum { PIECE = 2 << 20, READERS = 8, BUS_REPEATS = 7 };

/* Pinned memory to the device, bytes a second. */
static double bus_rate(struct bench *b)
{
    size_t n_bytes = b->small ? 1 << 16 : (size_t)256 << 20;
    const struct device_ops *ops = b->module.device_ops;
    struct error err = {0};
    void *host = NULL, *device = bench_allocate(b, n_bytes);
    double times[BUS_REPEATS];
    if (ops->alloc_host(b->device, n_bytes, &host, &err) != 0)
        bench_die(&err);
    memset(host, 0x5A, n_bytes);
    for (int r = 0; r < BUS_REPEATS; r++) {
        int64_t begin = clock_now_ns();
        bench_upload(b, device, host, n_bytes);
        times[r] = (double)(clock_now_ns() - begin) * 1e-9;
    }
    ops->free_host(b->device, host, n_bytes);
    bench_drop(b, device, n_bytes);
    return (double)n_bytes / bench_time_of(times, BUS_REPEATS).median;
}

struct reading {
    int fd;
    size_t n_bytes;
    atomic_size_t next;
    atomic_bool failed;
};

static void read_pieces(void *ctx, uint32_t index, uint32_t n_threads)
{
    struct reading *r = ctx;
    unsigned char *piece = aligned_alloc(4096, PIECE);
    (void)index, (void)n_threads;
    for (;;) {
        size_t at = atomic_fetch_add(&r->next, PIECE);
        if (at >= r->n_bytes)
            break;
        if (piece == NULL || pread(r->fd, piece, PIECE, (off_t)at) <= 0) {
            atomic_store(&r->failed, true);
            break;
        }
    }
    free(piece);
}

/* The whole file by the loader's threads and pieces, and nothing else; bytes a second. */
static double read_rate(const char *path)
{
    struct reading r = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    struct error err = {0};
    struct thread_pool *pool = NULL;
    struct stat st;
    if (r.fd < 0 || fstat(r.fd, &st) != 0 || thread_pool_create(READERS, &pool, &err) != 0)
        bench_die(&err);
    r.n_bytes = (size_t)st.st_size;
    int64_t begin = clock_now_ns();
    thread_pool_run(pool, read_pieces, &r);
    double s = (double)(clock_now_ns() - begin) * 1e-9;
    thread_pool_destroy(pool);
    close(r.fd);
    return atomic_load(&r.failed) ? 0.0 : (double)r.n_bytes / s;
}

/* Drops the file from the page cache, as far as the file system can. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* from: an earlier park copy of the model, or NULL. The outputs
 * out_kept and out_keep_s get a new park copy, owned by the caller, and its time; or are NULL. */
static double load_seconds(const struct bench_format *format, const char *path,
                           const struct executor_packed *from, struct executor_packed *out_kept,
                           double *out_keep_s)
{
    struct executor_config cfg = {.device = "cuda:0",
                                  .kernels = "auto",
                                  .tp = 1,
                                  .gpu_layers = EXECUTOR_GPU_LAYERS_AUTO,
                                  .store = format->store,
                                  .kv_dtype = DTYPE_BF16,
                                  .kv_block_size = 32,
                                  .kv_tokens = 256,
                                  .max_rows = 64,
                                  .max_seqs = 1,
                                  .max_context_tokens = 256,
                                  .packed_fds = from ? from->fds : NULL,
                                  .n_packed_fds = from ? from->n_ranks : 0};
    struct checkpoint *ckpt = NULL;
    struct executor *ex = NULL;
    struct error err = {0};
    struct executor_packed used;
    int64_t begin = clock_now_ns();
    if (checkpoint_open(path, &ckpt, &err) != 0 ||
        executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err) != 0)
        bench_die(&err);
    double s = (double)(clock_now_ns() - begin) * 1e-9;
    executor_get_packed(ex, &used);
    if (used.mapped != (from != NULL)) {
        fprintf(stderr, "bench_load: what was kept is not used: %s\n", used.why);
        exit(1);
    }
    begin = clock_now_ns();
    if (out_kept && executor_keep(ex, &(struct executor_keep){.n_threads = 0}, out_kept, &err) != 0)
        bench_die(&err);
    if (out_keep_s)
        *out_keep_s = (double)(clock_now_ns() - begin) * 1e-9;
    executor_close(ex);
    checkpoint_close(ckpt);
    return s;
}

static void print_load(double bytes, double seconds, double read, double bus)
{
    double bound = read < bus ? read : bus;
    printf(" %.2f | %.2f s, %.0f %% |", read * 1e-9, seconds, bytes / seconds / bound * 100);
    fflush(stdout);
}

static void load_format(struct bench *b, const struct bench_format *format, double bus,
                        const char *path)
{
    struct big_spec spec = b->small ? big_spec_small(format->type) : big_spec_8b(format->type);
    struct error err = {0};
    struct stat st;
    spec.n_layers = b->small ? 2 : 8;
    if (big_write(&spec, path, true, &err) != 0 || stat(path, &st) != 0)
        bench_die(&err);
    double bytes = (double)st.st_size, keep_s, cold_s, warm_s;
    struct executor_packed kept;
    printf("| %s | %.2f |", format->name, bytes * 1e-9);
    forget(path);
    double disk = read_rate(path);
    forget(path);
    cold_s = load_seconds(format, path, NULL, NULL, NULL);
    print_load(bytes, cold_s, disk, bus);
    read_rate(path);
    double memory = read_rate(path);
    warm_s = load_seconds(format, path, NULL, &kept, &keep_s);
    print_load(bytes, warm_s, memory, bus);
    double wake_s = load_seconds(format, path, &kept, NULL, NULL);
    double kept_bytes = 0;
    for (uint32_t r = 0; r < kept.n_ranks; r++) {
        kept_bytes += (double)kept.n_bytes[r];
        close(kept.fds[r]);
    }
    printf(" %.2f s, %.0f %% | %.2f s, %.0f %% | %.0f %% | %.0f %% |\n", keep_s,
           kept_bytes / keep_s / bus * 100, wake_s, kept_bytes / wake_s / bus * 100,
           wake_s / cold_s * 100, wake_s / warm_s * 100);
    unlink(path);
}

void bench_load(struct bench *b)
{
    static const struct bench_format formats[] = {{"bf16", DTYPE_BF16, WEIGHT_STORE_SOURCE},
                                                  {"q8_0", DTYPE_Q8_0, WEIGHT_STORE_SOURCE},
                                                  {"q4_k", DTYPE_Q4_K, WEIGHT_STORE_SOURCE},
                                                  {"int8", DTYPE_BF16, WEIGHT_STORE_INT8}};
    char path[512];
    struct statvfs fs;
    double bus = bus_rate(b);
    if (!b->small && statvfs(b->directory, &fs) == 0 && fs.f_bavail * fs.f_frsize < 6ULL << 30) {
        printf("Loads: left out, %s has less than 6 GiB.\n\n", b->directory);
        return;
    }
    snprintf(path, sizeof(path), "%s/bench_load.%ld.gguf", b->directory, (long)getpid());
    printf(
        "Loads of eight layers of an 8B Llama's shape, real bytes: %% of the slower of reading "
        "(GB/s) and the bus (%.1f GB/s). Reading is by the loader's threads and pieces, the bus is "
        "pinned memory to the device. The first load is after the file was dropped from the "
        "machine's memory. Parking: the park copy and a load from the copy, each with its %% of "
        "the bus. The last columns are that load in %% of the first two loads.\n\n"
        "| weights | GB | disk | load | memory | load | kept | woken | %% of disk | %% of memory "
        "|\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        bus * 1e-9);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        load_format(b, &formats[i], bus, path);
    printf("\n");
}
