/* The limits that bench_kernels compares with: memory bandwidth and the dot rate. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/thread_pool.h"
#include "tests/bench/kernels/bench_kernels.h"

struct read_job {
    const uint64_t *data;
    uint32_t n; /* in units of 4 KiB */
    uint64_t sum[64];
};

static void read_share(void *arg, uint32_t index, uint32_t n_threads)
{
    struct read_job *job = arg;
    uint32_t begin, end;
    uint64_t s[8] = {0};
    thread_pool_share(job->n, 1, index, n_threads, &begin, &end);
    for (const uint64_t *p = job->data + (size_t)begin * 512, *e = job->data + (size_t)end * 512;
         p < e; p += 8)
        for (int i = 0; i < 8; i++)
            s[i] += p[i];
    for (int i = 1; i < 8; i++)
        s[0] += s[i];
    job->sum[index % 64] += s[0];
}

static void update_share(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct read_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->n, 1, index, n_threads, &begin, &end);
    uint64_t *p = (uint64_t *)(uintptr_t)job->data;
    for (size_t i = (size_t)begin * 512; i < (size_t)end * 512; i++)
        p[i] += index + 1;
}

double bench_update_bandwidth(const struct bench *b, size_t n_bytes)
{
    struct read_job job = {.data = bench_alloc(n_bytes), .n = (uint32_t)(n_bytes / 4096)};
    struct thread_pool *pool = NULL;
    struct error err = {0};
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        bench_die(&err);
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double begin = bench_seconds(b);
        thread_pool_run(pool, update_share, &job);
        double rate = 2.0 * (double)n_bytes / (bench_seconds(b) - begin) * 1e-9;
        best = rate > best ? rate : best;
    }
    thread_pool_destroy(pool);
    free((void *)(uintptr_t)job.data);
    return best;
}

double bench_read_bandwidth(const struct bench *b, size_t n_bytes)
{
    struct error err = {0};
    struct thread_pool *pool = NULL;
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        bench_die(&err);
    struct read_job job = {.data = bench_alloc(n_bytes), .n = (uint32_t)(n_bytes / 4096)};
    memset((void *)(uintptr_t)job.data, 1, n_bytes);
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double begin = bench_seconds(b);
        thread_pool_run(pool, read_share, &job);
        double rate = (double)n_bytes / (bench_seconds(b) - begin) * 1e-9;
        best = rate > best ? rate : best;
    }
    volatile uint64_t keep = job.sum[0]; /* the sums are used */
    (void)keep;
    free((void *)(uintptr_t)job.data);
    thread_pool_destroy(pool);
    return best;
}

#ifdef __x86_64__
enum { DOT_TURNS = 4000000, DOT_CHAINS = 12 };

const char *bench_dot_name(void)
{
    return __builtin_cpu_supports("avx512vnni") ? "vpdpbusd"
           : __builtin_cpu_supports("avx2")     ? "vpmaddubsw + vpaddw"
                                                : "no dot";
}

__attribute__((target("avx2"))) static void dot_share_avx2(void *arg, uint32_t index,
                                                           uint32_t n_threads)
{
    (void)arg, (void)index, (void)n_threads;
    __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n"
                     "1:\n"
                     ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
                     "vpmaddubsw %%ymm14, %%ymm14, %%ymm15\n"
                     "vpaddw %%ymm15, %%ymm\\i, %%ymm\\i\n"
                     ".endr\n"
                     "dec %0\n"
                     "jnz 1b\n"
                     :
                     : "r"(DOT_TURNS)
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
}

__attribute__((target("avx512f,avx512vnni"))) static void dot_share(void *arg, uint32_t index,
                                                                    uint32_t n_threads)
{
    (void)arg, (void)index, (void)n_threads;
    __asm__ volatile("vpternlogd $0xff, %%zmm30, %%zmm30, %%zmm30\n"
                     "1:\n"
                     ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
                     "vpdpbusd %%zmm30, %%zmm30, %%zmm\\i\n"
                     ".endr\n"
                     "dec %0\n"
                     "jnz 1b\n"
                     :
                     : "r"(DOT_TURNS)
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm30");
}

double bench_dot_rate(const struct bench *b)
{
    struct error err = {0};
    struct thread_pool *pool = NULL;
    const bool avx512 = __builtin_cpu_supports("avx512vnni") != 0;
    if (!avx512 && !__builtin_cpu_supports("avx2"))
        return 0;
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        bench_die(&err);
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double begin = bench_seconds(b);
        thread_pool_run(pool, avx512 ? dot_share : dot_share_avx2, NULL);
        double rate = (avx512 ? 128e-9 : 64e-9) * DOT_CHAINS * DOT_TURNS * b->n_threads /
                      (bench_seconds(b) - begin);
        best = rate > best ? rate : best;
    }
    thread_pool_destroy(pool);
    return best;
}
#else
const char *bench_dot_name(void)
{
    return "no dot";
}

double bench_dot_rate(const struct bench *b)
{
    (void)b;
    return 0;
}
#endif
