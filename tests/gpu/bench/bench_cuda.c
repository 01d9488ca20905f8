/* bench_cuda: speed of the GPU backend against the limits of the card. Measures copies and matrix
 * products first, then each kernel as a share of its bound. Then measures the sampler, and loads
 * beside disk and bus. Then measures tokens/s of an 8B-Llama shape with random weights, a file for
 * each (bench_*.c). Prints Markdown tables; tests/gpu/run.sh bench puts them into RESULTS.md.
 *
 *     bench_cuda [--small] [--once] [--parts LIST] [--models LIST] [--formats LIST] [--directory
 * DIR] bench_cuda --write q8_0|bf16 FILE    the 8B shape without its bytes, for bench_between
 *
 *     --parts: of linears,rows,paths,attention,sampler,pack,load,models; default all
 *     --models: of bf16,q8_0,q4_k,fp8; default all
 *     --formats: formats of weights, in "linears"; default all
 *     --small: tiny shapes, once, to see that the bench runs, also on tests/simt
 *     --once: each op once, under a profiler */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/bench/big_model.h"

/* --- the card --- */

struct copy_job {
    unsigned char *a, *b;
    size_t n_bytes;
};

static int call_copy(struct bench *b, void *ctx, uint32_t i)
{
    struct copy_job *job = ctx;
    unsigned char *from = i % 2 ? job->b : job->a, *to = i % 2 ? job->a : job->b;
    return b->module.device_ops->copy(b->stream, to, from, job->n_bytes);
}

static void measure_copy(struct bench *b)
{
    struct copy_job job = {.n_bytes = b->small ? 1 << 16 : (size_t)2 << 30};
    job.a = bench_allocate(b, job.n_bytes);
    job.b = bench_allocate(b, job.n_bytes);
    /* A card that was idle takes a while until its clocks are up. */
    for (int64_t begin = clock_now_ns();
         !b->small && !b->once && clock_now_ns() - begin < NS_PER_S / 2;)
        bench_time_captured(b, call_copy, &job, 2);
    double s = bench_time_captured(b, call_copy, &job, 2);
    b->copy_bytes_per_s = 2 * (double)job.n_bytes / s;
    bench_drop(b, job.b, job.n_bytes);
    bench_drop(b, job.a, job.n_bytes);
    printf("Device copy: %.2f TB/s (read + written).\n", b->copy_bytes_per_s * 1e-12);
}

static bool has_part(const struct bench *b, const char *name)
{
    return strstr(b->parts, name) != NULL;
}

static int write_model(const struct bench *b, const char *format, const char *path)
{
    struct error err = {0};
    enum dtype type = strcmp(format, "bf16") == 0 ? DTYPE_BF16 : DTYPE_Q8_0;
    struct big_spec spec = b->small ? big_spec_small(type) : big_spec_8b(type);
    if (big_write(&spec, path, false, &err) != 0)
        bench_die(&err);
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_cuda [--small] [--once] [--parts LIST] [--models LIST] "
                    "[--formats LIST] [--directory DIR] [--write FORMAT FILE]\n");
    return 2;
}

static void run_kernels(struct bench *b)
{
    measure_copy(b);
    bench_product(b);
    if (has_part(b, "linears"))
        bench_linears(b);
    if (has_part(b, "rows"))
        bench_row_ops(b);
    if (has_part(b, "paths"))
        bench_paths(b);
    if (has_part(b, "attention"))
        bench_attention(b);
    if (has_part(b, "sampler"))
        bench_sampler(b);
    if (has_part(b, "pack"))
        bench_pack(b);
    if (has_part(b, "load"))
        bench_load(b);
}

int main(int argc, char **argv)
{
    struct bench b = {.parts = "linears,rows,paths,attention,sampler,pack,load,models",
                      .models = "bf16,q8_0,q4_k,fp8",
                      .formats = "",
                      .directory = "/tmp"};
    struct error err = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            b.small = true;
        else if (strcmp(argv[i], "--once") == 0)
            b.once = true;
        else if (strcmp(argv[i], "--parts") == 0 && i + 1 < argc)
            b.parts = argv[++i];
        else if (strcmp(argv[i], "--models") == 0 && i + 1 < argc)
            b.models = argv[++i];
        else if (strcmp(argv[i], "--formats") == 0 && i + 1 < argc)
            b.formats = argv[++i];
        else if (strcmp(argv[i], "--directory") == 0 && i + 1 < argc)
            b.directory = argv[++i];
        else if (strcmp(argv[i], "--write") == 0 && i + 2 < argc)
            return write_model(&b, argv[i + 1], argv[i + 2]);
        else
            return usage();
    }
    if (backend_cuda(&b.module, &err) != 0 || b.module.device_ops->open(0, &b.device, &err) != 0 ||
        b.module.device_ops->stream_create(b.device, 1, &b.stream, &err) != 0)
        bench_die(&err);
    run_kernels(&b);
    b.module.device_ops->stream_destroy(b.stream);
    b.module.device_ops->close(b.device);
    if (has_part(&b, "models"))
        bench_models(&b);
    return 0;
}
