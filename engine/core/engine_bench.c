/* Implements the engine_bench calls: opens an executor for the bench alone and runs bench_run.h on
 * it. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine_stats.h"
#include "engine/forward/bench_run.h"
#include "engine/forward/executor.h"

struct engine_bench {
    struct executor *executor;
    struct bench_run *run;
};

uint64_t engine_bench_kv_tokens(const struct engine_bench_config *config)
{
    return bench_run_kv_tokens(config);
}

int engine_bench_open(struct checkpoint *ckpt, const struct executor_config *executor,
                      const struct engine_bench_config *config, struct engine_bench **out_bench,
                      struct error *err)
{
    struct engine_bench *bench = calloc(1, sizeof(*bench));
    if (!bench)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    int rc = executor_open(ckpt, executor, NULL, NULL, NULL, &bench->executor, err);
    if (!rc)
        rc = bench_run_create(bench->executor, config, &bench->run, err);
    if (rc)
        engine_bench_close(bench);
    else
        *out_bench = bench;
    return rc;
}

void engine_bench_close(struct engine_bench *bench)
{
    if (!bench)
        return;
    bench_run_destroy(bench->run);
    executor_close(bench->executor);
    free(bench);
}

const struct executor_plan *engine_bench_memory(const struct engine_bench *bench)
{
    return executor_actual(bench->executor);
}

const char *engine_bench_numerics_id(const struct engine_bench *bench)
{
    return executor_numerics_id(bench->executor);
}

int engine_bench_deepen(struct engine_bench *bench, uint32_t depth, struct error *err)
{
    return bench_run_deepen(bench->run, depth, err);
}

int engine_bench_prefill(struct engine_bench *bench, uint32_t n_seqs, uint32_t n_tokens,
                         int64_t *out_ns, struct error *err)
{
    return bench_run_prefill(bench->run, n_seqs, n_tokens, out_ns, err);
}

int engine_bench_decode(struct engine_bench *bench, uint32_t n_seqs, uint32_t n_tokens,
                        int64_t *out_step_ns, struct error *err)
{
    return bench_run_decode(bench->run, n_seqs, n_tokens, out_step_ns, err);
}
