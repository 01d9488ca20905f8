/* bench_between: how long a device waits for the host between two decode steps. The time runs
 * from the tokens of a step until the next step is queued. Usage: bench_between MODEL [DEVICE
 * [TOKENS [PROMPT]]]. Runs 1, 8, 32 and 64 requests at once, each with a prompt of PROMPT tokens
 * and TOKENS generated ones. Prints the least mean of 5 runs. The figure includes the time of a
 * driver, or an emulated GPU, to queue a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/engine.h"

enum { N_COUNTS = 4, N_RUNS = 5, MAX_PROMPT = 1024 };

static const uint32_t counts[N_COUNTS] = {1, 8, 32, 64};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "bench_between: %s: %s\n", what, err->message);
    exit(1);
}

static void read_all(struct engine *engine, struct engine_event_buffer *buffer, uint32_t n)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct engine_event *events;
    while (n) {
        size_t n_events = engine_read_events(engine, buffer, &events);
        for (size_t i = 0; i < n_events; i++)
            n -= events[i].type == ENGINE_EVENT_FINISHED && events[i].last;
        nanosleep(&pause, NULL);
    }
}

static void submit(struct engine *engine, uint32_t seed, uint32_t n_prompt, uint32_t n_tokens)
{
    uint32_t prompt[MAX_PROMPT];
    struct engine_request req;
    struct error err;
    uint64_t id;
    engine_request_init(&req);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = 3 + (seed * 31 + i * 7) % 250;
    req.prompt_ids = prompt;
    req.n_prompt_ids = n_prompt;
    req.stopping.max_tokens = n_tokens;
    req.stopping.ignore_eos = true;
    if (engine_submit(engine, &req, &id, &err))
        die("submit", &err);
}

/* Mean time between two steps, in us. */
static double run(struct engine *engine, uint32_t n, uint32_t n_prompt, uint32_t n_tokens)
{
    struct engine_event_buffer *buffer;
    struct engine_stats before, after;
    struct error err;
    if (engine_event_buffer_create(&buffer, &err))
        die("events", &err);
    engine_get_stats(engine, &before);
    for (uint32_t i = 0; i < n; i++)
        submit(engine, n * 100 + i, n_prompt, n_tokens);
    read_all(engine, buffer, n);
    engine_get_stats(engine, &after);
    engine_event_buffer_destroy(buffer);
    uint64_t n_steps = after.n_between - before.n_between;
    return n_steps ? (double)(after.between_ns - before.between_ns) / 1e3 / (double)n_steps : 0;
}

int main(int argc, char **argv)
{
    struct engine_config cfg;
    struct engine *engine;
    struct error err;
    uint32_t n_tokens = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 64;
    uint32_t n_prompt = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 128;
    if (argc < 2 || !n_prompt || n_prompt > MAX_PROMPT) {
        fprintf(stderr, "usage: bench_between MODEL [DEVICE [TOKENS [PROMPT]]]\n");
        return 2;
    }
    engine_config_init(&cfg);
    cfg.model_path = argv[1];
    cfg.executor.device = argc > 2 ? argv[2] : "cuda:0";
    cfg.executor.kv_block_size = 16;
    cfg.executor.kv_tokens = (uint64_t)counts[N_COUNTS - 1] * (n_prompt + n_tokens + 16);
    cfg.max_concurrent = counts[N_COUNTS - 1];
    if (engine_open(&cfg, &engine, &err))
        die(argv[1], &err);
    for (int i = 0; i < N_COUNTS; i++) {
        double least = run(engine, counts[i], n_prompt, n_tokens);
        for (int k = 1; k < N_RUNS; k++) {
            double us = run(engine, counts[i], n_prompt, n_tokens);
            least = us < least ? us : least;
        }
        printf("%3u sequences: %6.1f us between steps\n", counts[i], least);
    }
    engine_close(engine);
    return 0;
}
