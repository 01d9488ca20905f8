/* bench_stages: the gain of steps in flight on CPU stages. Usage: bench_stages MODEL [STAGES
 * [THREADS [REQUESTS [TOKENS]]]]. Defaults: 2 stages, a thread each, 8 requests, 64 tokens.
 *
 * Prints generated tokens per second: of one request, then of all requests. These have one step in
 * flight, then a step for each stage, then a single stage with the same threads. The runs take
 * turns, and the best of 5 counts. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"

enum { N_RUNS = 5, N_PROMPT = 16 };

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "bench_stages: %s: %s\n", what, err->message);
    exit(1);
}

static void submit(struct engine *engine, uint32_t seed, uint32_t n_tokens)
{
    uint32_t prompt[N_PROMPT];
    struct engine_request req;
    struct error err;
    uint64_t id;
    engine_request_init(&req);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + (seed * 31 + i * 7) % 250;
    req.prompt_ids = prompt;
    req.n_prompt_ids = N_PROMPT;
    req.stopping.max_tokens = n_tokens;
    req.stopping.ignore_eos = true;
    if (engine_submit(engine, &req, &id, &err))
        die("submit", &err);
}

/* Generated tokens per second. */
static double run(struct engine *engine, uint32_t n_requests, uint32_t n_tokens)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct engine_event *events;
    struct engine_event_buffer *buffer;
    struct error err;
    uint32_t left = n_requests;
    if (engine_event_buffer_create(&buffer, &err))
        die("events", &err);
    int64_t begin = clock_now_ns();
    for (uint32_t i = 0; i < n_requests; i++)
        submit(engine, i, n_tokens);
    while (left) {
        size_t n = engine_read_events(engine, buffer, &events);
        for (size_t i = 0; i < n; i++)
            left -= events[i].type == ENGINE_EVENT_FINISHED && events[i].last;
        nanosleep(&pause, NULL);
    }
    double seconds = (double)(clock_now_ns() - begin) / 1e9;
    engine_event_buffer_destroy(buffer);
    return n_requests * n_tokens / seconds;
}

static struct engine *open_engine(const char *path, uint32_t n_stages, uint32_t n_threads,
                                  uint32_t max_flights)
{
    struct engine_config cfg;
    struct engine *engine;
    struct error err;
    engine_config_init(&cfg);
    cfg.model_path = path;
    cfg.executor.pp = n_stages;
    cfg.executor.n_threads = n_threads;
    cfg.executor.kv_tokens = 16384;
    cfg.max_concurrent = 64;
    cfg.max_flights = max_flights;
    if (engine_open(&cfg, &engine, &err))
        die(path, &err);
    return engine;
}

static uint32_t number(char **argv, int argc, int i, uint32_t preset)
{
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : preset;
}

int main(int argc, char **argv)
{
    uint32_t n_stages = number(argv, argc, 2, 2), n_threads = number(argv, argc, 3, n_stages);
    uint32_t n = number(argv, argc, 4, 8), n_tokens = number(argv, argc, 5, 64);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_stages MODEL [STAGES [THREADS [REQUESTS [TOKENS]]]]\n");
        return 2;
    }
    struct engine *one = open_engine(argv[1], n_stages, n_threads, 1);
    struct engine *all = open_engine(argv[1], n_stages, n_threads, 0);
    struct engine *whole = open_engine(argv[1], 1, n_threads, 0);
    double best[4] = {0};
    for (uint32_t i = 0; i < N_RUNS; i++) {
        const double now[4] = {run(one, 1, n_tokens), run(one, n, n_tokens), run(all, n, n_tokens),
                               run(whole, n, n_tokens)};
        for (uint32_t k = 0; k < 4; k++)
            best[k] = now[k] > best[k] ? now[k] : best[k];
    }
    printf("%u stages, %u threads, tokens per second\n", n_stages, n_threads);
    printf("  1 request:                         %8.1f\n", best[0]);
    printf("  %u requests, one step in flight:    %8.1f\n", n, best[1]);
    printf(
        "  %u requests, %u steps in flight:     %8.1f, %.2f times one step, %.2f times 1 request\n",
        n, n_stages, best[2], best[2] / best[1], best[2] / best[0]);
    printf("  %u requests, a single stage:        %8.1f\n", n, best[3]);
    engine_close(one);
    engine_close(all);
    engine_close(whole);
    return 0;
}
