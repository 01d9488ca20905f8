#include "engine/forward/bench_run.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"

struct bench_run {
    struct executor *executor;
    struct engine_bench_config config;
    struct step_batch *batch;
    uint32_t seq_blocks;   /* blocks per sequence; sequence i has blocks from i times this on */
    uint32_t table_blocks; /* stride of the block tables */
    uint32_t vocab_size, depth;
    uint32_t *last;                /* [max_seqs] last token of each sequence */
    struct sample_params *params;  /* [max_seqs] */
    struct sample_result *results; /* [max_seqs] */
};

static uint32_t blocks_of(const struct engine_bench_config *config, uint32_t n_positions)
{
    return (n_positions + config->block_size - 1) / config->block_size;
}

uint64_t bench_run_kv_tokens(const struct engine_bench_config *config)
{
    return (uint64_t)config->max_seqs * blocks_of(config, config->max_positions) *
           config->block_size;
}

int bench_run_create(struct executor *executor, const struct engine_bench_config *config,
                     struct bench_run **out_run, struct error *err)
{
    const struct executor_plan *plan = executor_actual(executor);
    uint32_t table_blocks = blocks_of(config, plan->context_tokens);
    struct step_limits limits = {config->max_rows, config->max_seqs, table_blocks, 0, false};
    struct bench_run *run = calloc(1, sizeof(*run));
    if (!run)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    run->executor = executor;
    run->config = *config;
    run->seq_blocks = blocks_of(config, config->max_positions);
    run->table_blocks = table_blocks;
    run->vocab_size = executor_model_info(executor)->vocab_size;
    run->last = calloc(config->max_seqs, sizeof(*run->last));
    run->params = calloc(config->max_seqs, sizeof(*run->params));
    run->results = calloc(config->max_seqs, sizeof(*run->results));
    int rc = run->last && run->params && run->results
                 ? step_batch_create(&limits, &run->batch, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    for (uint32_t i = 0; !rc && i < config->max_seqs; i++)
        run->params[i] =
            (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    if (rc)
        bench_run_destroy(run);
    else
        *out_run = run;
    return rc;
}

void bench_run_destroy(struct bench_run *run)
{
    if (!run)
        return;
    step_batch_destroy(run->batch);
    free(run->results);
    free(run->params);
    free(run->last);
    free(run);
}

/* A pseudo-random prompt token. Any id will do, as long as no two sequences are alike. */
static uint32_t prompt_id(const struct bench_run *run, uint32_t seq, uint32_t position)
{
    uint32_t x = (seq * 0x9E3779B9U) ^ (position * 0x85EBCA6BU) ^ 0x5bd1e995U;
    x = (x ^ (x >> 15)) * 0x2C1B3C6DU;
    return (x ^ (x >> 12)) % run->vocab_size;
}

/* Adds rows of one sequence to the step: a piece of its prompt, or (generated) its last token. */
static void add_rows(struct bench_run *run, uint32_t seq, uint32_t position, uint32_t n,
                     bool generated, bool sample)
{
    struct step_batch *batch = run->batch;
    uint32_t s = batch->n_seqs++, first = seq * run->seq_blocks;
    uint32_t size = run->config.block_size;
    batch->seq_start[s] = batch->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = batch->n_rows++;
        batch->token_ids[row] = generated ? run->last[seq] : prompt_id(run, seq, position + i);
        batch->positions[row] = position + i;
        batch->kv_slots[row] = first * size + position + i;
        batch->seq_of_row[row] = s;
        batch->is_generated[row] = generated;
    }
    for (uint32_t i = 0; i < run->seq_blocks && i < run->table_blocks; i++)
        batch->block_tables[(size_t)s * run->table_blocks + i] = first + i;
    batch->seq_start[s + 1] = batch->n_rows;
    step_batch_use_slot(batch, s, seq, position == 0);
    if (sample)
        batch->sample_rows[batch->n_sample_rows++] = batch->n_rows - 1;
}

/* Runs the added rows, samples, and empties the batch. */
static int make_step(struct bench_run *run, struct error *err)
{
    uint32_t n = run->batch->n_sample_rows;
    int rc = 0;
    if (run->config.stop && *run->config.stop)
        rc = error_set(err, STATUS_CANCELLED, "bench: stopped");
    if (!rc)
        rc = executor_step(run->executor, run->batch, err);
    if (!rc && n)
        rc = executor_sample(run->executor, 0, n, run->params, run->results, err);
    for (uint32_t i = 0; i < n && !rc; i++)
        if (run->results[i].status)
            rc = error_set(err, run->results[i].status, "bench: a row of logits cannot be sampled");
    step_batch_clear(run->batch);
    return rc;
}

/* Computes positions [begin, begin + n_tokens) of sequences 0 to n_seqs - 1. Each step takes a
 * piece of each sequence, as far as the step has room. */
static int compute_positions(struct bench_run *run, uint32_t n_seqs, uint32_t begin,
                             uint32_t n_tokens, bool sample, struct error *err)
{
    uint32_t chunk = run->config.chunk;
    int rc = 0;
    for (uint32_t first = 0; first < n_seqs && !rc;) {
        /* Sequences first to first + n - 1 share their steps: n is how many pieces a step has room
         * for. */
        uint32_t piece = n_tokens < chunk ? n_tokens : chunk;
        uint32_t n = run->config.max_rows / piece;
        n = n < n_seqs - first ? n : n_seqs - first;
        for (uint32_t done = 0; done < n_tokens && !rc; done += piece) {
            uint32_t left = n_tokens - done;
            uint32_t rows = left < piece ? left : piece;
            for (uint32_t i = 0; i < n; i++)
                add_rows(run, first + i, begin + done, rows, false, sample && left <= piece);
            rc = make_step(run, err);
        }
        first += n;
    }
    return rc;
}

int bench_run_deepen(struct bench_run *run, uint32_t depth, struct error *err)
{
    uint32_t size = run->config.block_size;
    int rc = 0;
    if (depth > run->depth)
        rc = compute_positions(run, 1, run->depth, depth - run->depth, false, err);
    for (uint32_t block = run->depth / size; !rc && depth > run->depth && block * size < depth;
         block++)
        for (uint32_t seq = 1; seq < run->config.max_seqs && !rc; seq++)
            rc = executor_copy_block(run->executor, block, seq * run->seq_blocks + block, err);
    for (uint32_t seq = 1; !rc && depth > run->depth && seq < run->config.max_seqs; seq++)
        rc = executor_copy_state(run->executor, 0, seq, err);
    if (!rc && depth > run->depth)
        run->depth = depth;
    return rc;
}

int bench_run_prefill(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens, int64_t *out_ns,
                      struct error *err)
{
    int64_t start_ns = clock_now_ns();
    int rc = compute_positions(run, n_seqs, run->depth, n_tokens, true, err);
    if (!rc)
        *out_ns = clock_now_ns() - start_ns;
    return rc;
}

int bench_run_decode(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens,
                     int64_t *out_step_ns, struct error *err)
{
    int rc = 0;
    for (uint32_t seq = 0; seq < n_seqs; seq++)
        run->last[seq] = prompt_id(run, seq, run->depth);
    int64_t before_ns = clock_now_ns();
    for (uint32_t i = 0; i < n_tokens && !rc; i++) {
        for (uint32_t seq = 0; seq < n_seqs; seq++)
            add_rows(run, seq, run->depth + i, 1, true, true);
        rc = make_step(run, err);
        for (uint32_t seq = 0; seq < n_seqs && !rc; seq++)
            run->last[seq] = run->results[seq].id;
        int64_t now_ns = clock_now_ns();
        out_step_ns[i] = now_ns - before_ns;
        before_ns = now_ns;
    }
    return rc;
}
