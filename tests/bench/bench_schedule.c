/* bench_schedule: the scheduler's time between the tokens of a decode step and the next decode
 * step, which a device waits for. Measures take, commit, schedule, and one read of the block tables
 * where they are not known (the executor makes two). Runs with and without the step written ahead,
 * for numbers of sequences and lengths of context. Prints medians of 400 steps, in CPU time of the
 * thread. Between two steps 2 MiB are written, as other work does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/model/step.h"
#include "engine/request/request.h"
#include "engine/schedule/scheduler.h"
#include "kernels/sample.h"

enum { BLOCK = 16, N_STEPS = 400, VOCAB = 1000, OTHER_BYTES = 2 << 20 };

struct bench {
    struct scheduler *sched;
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct request *requests[256];
    uint32_t n_seqs, n_blocks;
    uint64_t sum; /* sum of the bytes read */
};

static int64_t cpu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const struct error *err)
{
    fprintf(stderr, "bench_schedule: %s\n", err->message);
    exit(1);
}

static void add_requests(struct bench *b, uint32_t context, uint32_t max_tokens)
{
    uint32_t *prompt = calloc(context, sizeof(*prompt));
    const struct request_limits limits = {
        .vocab_size = VOCAB, .context_tokens = context + max_tokens, .max_concurrent = b->n_seqs};
    struct engine_request req;
    struct error err;
    if (!prompt)
        exit(1);
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = context;
    req.stopping.max_tokens = max_tokens;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        for (uint32_t k = 0; k < context; k++)
            prompt[k] = (i * 31 + k * 7) % VOCAB;
        req.arrived_ns = i + 1;
        if (request_create(&req, &limits, &b->requests[i], &err))
            die(&err);
        scheduler_add(b->sched, b->requests[i]);
    }
    free(prompt);
}

static void bench_open(struct bench *b, uint32_t n_seqs, uint32_t context)
{
    uint32_t chunk = 512, n_prompt_steps = n_seqs * (context / chunk + 1);
    uint32_t max_tokens = n_prompt_steps + 2 * N_STEPS;
    uint32_t stride = (context + max_tokens) / BLOCK + 1;
    struct scheduler_config cfg = {.max_rows = chunk + n_seqs,
                                   .max_seqs = n_seqs,
                                   .max_blocks_per_seq = stride,
                                   .n_blocks = n_seqs * stride,
                                   .block_size = BLOCK,
                                   .prefill_chunk_tokens = chunk,
                                   .max_requests = n_seqs,
                                   .prefix_cache = true};
    struct step_limits limits = {cfg.max_rows, n_seqs, stride, 0, false};
    struct error err;
    *b = (struct bench){.n_seqs = n_seqs, .n_blocks = cfg.n_blocks};
    if (scheduler_create(&cfg, &b->sched, &err) || step_batch_create(&limits, &b->batch, &err))
        die(&err);
    add_requests(b, context, max_tokens);
}

static void bench_close(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        scheduler_end_request(b->sched, b->requests[i]);
        request_release(b->requests[i]);
    }
    scheduler_destroy(b->sched);
    step_batch_destroy(b->batch);
}

static void read_tables(struct bench *b)
{
    const struct step_batch *t = b->batch;
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        const uint32_t *table = t->block_tables + (size_t)s * t->limits.max_blocks_per_seq;
        uint32_t n = t->positions[t->seq_start[s + 1] - 1] / BLOCK + 1;
        for (uint32_t i = 0; i < n; i++)
            b->sum += table[i] < b->n_blocks;
    }
}

/* Ends a step: takes a token for each sample, then commits. */
static void go_on(struct bench *b, uint32_t i_step)
{
    struct sample_result result = {.status = 0};
    for (uint32_t i = 0; i < b->plan.n_samples; i++) {
        result.id = (i + i_step) % VOCAB;
        scheduler_take(b->sched, i, &result);
    }
    scheduler_commit(b->sched);
    scheduler_saw_step(b->sched, 1000000);
    if (!scheduler_schedule(b->sched, b->batch, i_step, &b->plan))
        exit(1);
    if (!b->batch->is_ahead)
        read_tables(b);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double run(uint32_t n_seqs, uint32_t context, bool ahead)
{
    static unsigned char other[OTHER_BYTES];
    static int64_t ns[N_STEPS];
    struct bench b;
    bench_open(&b, n_seqs, context);
    if (!scheduler_schedule(b.sched, b.batch, 0, &b.plan))
        exit(1);
    for (uint32_t i = 1, n = 0; n < N_STEPS; i++) {
        memset(other, (int)i, sizeof(other));
        if (ahead && scheduler_schedule_ahead(b.sched, b.batch))
            read_tables(&b);
        bool decodes = !b.plan.n_prefill_rows;
        int64_t begin = cpu_now_ns();
        go_on(&b, i);
        if (decodes)
            ns[n++] = cpu_now_ns() - begin;
    }
    bench_close(&b);
    qsort(ns, N_STEPS, sizeof(*ns), compare);
    int64_t median = ns[N_STEPS / 2];
    return (double)median / 1e3;
}

int main(void)
{
    static const uint32_t seqs[] = {1, 8, 32, 64, 256}, contexts[] = {512, 4096};
    for (size_t c = 0; c < sizeof(contexts) / sizeof(contexts[0]); c++)
        for (size_t s = 0; s < sizeof(seqs) / sizeof(seqs[0]); s++) {
            double plain = run(seqs[s], contexts[c], false);
            double ahead = run(seqs[s], contexts[c], true);
            printf("%3u sequences of %4u tokens: %5.1f us, written ahead %5.1f us: %.2f\n", seqs[s],
                   contexts[c], plain, ahead, ahead / plain);
        }
    return 0;
}
