#include "kernels/cuda/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/host/device_cuda.h"

enum {
    FIRST_GENERATION = 9,
    FIRST_RUNTIME = 12030, /* older runtimes do not support such edges in a captured graph */
    PROBE_WORDS = 2048,    /* per multiprocessor: 8 blocks */
    PROBE_OPS = 8,
    PROBE_REPLAYS = 4
};

static _Thread_local bool on_this_thread;

bool overlap_of_thread(void)
{
    return on_this_thread;
}

void overlap_set_thread(bool on)
{
    on_this_thread = on;
}

struct probe {
    cudaStream_t stream;
    cudaGraph_t captured;
    cudaGraphExec_t exec;
    uint32_t *words; /* [n] on the device */
    uint32_t *found; /* [n] */
    uint32_t n;
};

static int capture_ops(struct probe *p)
{
    int code = (int)cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal);
    if (code != 0)
        return code;
    for (uint32_t i = 0; code == 0 && i < PROBE_OPS; i++)
        code = cuda_launch_overlap_probe(p->stream, p->words, p->n, i);
    int ended = (int)cudaStreamEndCapture(p->stream, &p->captured);
    return code != 0 ? code : ended;
}

static int run_ops(struct probe *p)
{
    const size_t n_bytes = p->n * sizeof(*p->words);
    int code = (int)cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking);
    if (code == 0)
        code = (int)cudaMalloc((void **)&p->words, n_bytes);
    if (code == 0)
        code = (int)cudaMemsetAsync(p->words, 0, n_bytes, p->stream);
    if (code == 0)
        code = capture_ops(p);
    if (code == 0)
        code = (int)cudaGraphInstantiate(&p->exec, p->captured, 0);
    for (uint32_t i = 0; code == 0 && i < PROBE_REPLAYS; i++)
        code = (int)cudaGraphLaunch(p->exec, p->stream);
    if (code == 0)
        code = (int)cudaMemcpyAsync(p->found, p->words, n_bytes, cudaMemcpyDeviceToHost, p->stream);
    return code == 0 ? (int)cudaStreamSynchronize(p->stream) : code;
}

static void release(struct probe *p, uint32_t index)
{
    if (p->exec != NULL)
        cuda_note(index, cudaGraphExecDestroy(p->exec));
    if (p->captured != NULL)
        cuda_note(index, cudaGraphDestroy(p->captured));
    if (p->stream != NULL)
        cuda_note(index, cudaStreamDestroy(p->stream));
    if (p->words != NULL)
        cuda_note(index, cudaFree(p->words));
}

/* Returns the problem found in the results; NULL: none. */
static const char *find_problem(const struct probe *p)
{
    uint32_t expected = 0;
    for (uint32_t i = 0; i < PROBE_REPLAYS * PROBE_OPS; i++)
        expected = overlap_probe_next(expected, i % PROBE_OPS);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->found[i] != expected)
            return "ops that overlap did not keep their order";
    return NULL;
}

static int probe(uint32_t index, const char **out_why_not, struct error *err)
{
    struct probe p = {.n = 0};
    int n_sms = 0;
    int rc = cuda_check(err, index, "its size",
                        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, (int)index));
    if (rc != 0)
        return rc;
    p.n = (uint32_t)n_sms * PROBE_WORDS;
    p.found = calloc(p.n, sizeof(*p.found));
    if (p.found == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    overlap_set_thread(true);
    int code = run_ops(&p);
    overlap_set_thread(false);
    if (code == 0)
        *out_why_not = find_problem(&p);
    else if (cuda_check(err, index, "ops that overlap", code) != 0 && cuda_is_lost(index))
        rc = err->status;
    else
        *out_why_not = "the driver does not support ops that overlap";
    if (rc == 0) {
        error_clear(err);
        release(&p, index);
    }
    free(p.found);
    return rc;
}

static bool driver_is_new(void)
{
    int driver = 0, runtime = 0;
    return cudaDriverGetVersion(&driver) == cudaSuccess &&
           cudaRuntimeGetVersion(&runtime) == cudaSuccess && driver >= FIRST_RUNTIME &&
           runtime >= FIRST_RUNTIME;
}

int device_overlap_check(int major, const char **out_why_not, struct error *err)
{
    const char *wanted = getenv("SLUICE_CUDA_OVERLAP");
    bool is_off = wanted != NULL && strcmp(wanted, "off") == 0;
    if (wanted != NULL && wanted[0] != '\0' && !is_off && strcmp(wanted, "auto") != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "SLUICE_CUDA_OVERLAP: \"%s\" is invalid; give auto or off", wanted);
    *out_why_not = NULL;
    if (is_off)
        *out_why_not = "SLUICE_CUDA_OVERLAP=off";
    else if (major < FIRST_GENERATION)
        *out_why_not = "compute capability below 9.0";
    else if (!driver_is_new())
        *out_why_not = "CUDA older than 12.3";
    return 0;
}

int overlap_open(uint32_t index, int major, bool *out_on, const char **out_why_not,
                 struct error *err)
{
    int rc = device_overlap_check(major, out_why_not, err);
    if (rc == 0 && *out_why_not == NULL)
        rc = probe(index, out_why_not, err);
    *out_on = rc == 0 && *out_why_not == NULL;
    return rc;
}
