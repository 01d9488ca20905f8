/* bench_stages: the gain of steps in flight on CPU stages. Usage: bench_stages MODEL [STAGES
 * [THREADS [REQUESTS [TOKENS]]]]. Defaults: 2 stages, a thread each, 8 requests, 64 tokens.
 *
 * Prints generated tokens per second: of one request, then of all requests. These have one step in
 * flight, then a step for each stage, then a single stage with the same threads. The runs take
 * turns, and the best of 5 counts. Where others use the processors, stages cannot work at once.
 * Then the processor time of a token tells the most that steps in flight could bring. */
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

struct result {
    double rate;   /* generated tokens per second */
    double cpu_ms; /* processor time of a token, all threads together */
};

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct result run(struct engine *engine, uint32_t n_requests, uint32_t n_tokens)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct engine_event *events;
    struct engine_event_buffer *buffer;
    struct error err;
    uint32_t left = n_requests;
    if (engine_event_buffer_create(&buffer, &err))
        die("events", &err);
    int64_t begin = clock_now_ns();
    double cpu_begin = cpu_ns(), n_all = (double)n_requests * n_tokens;
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
    return (struct result){n_all / seconds, (cpu_ns() - cpu_begin) / 1e6 / n_all};
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
    const char *const names[4] = {"1 request", "one step in flight", "a step for each stage",
                                  "a single stage"};
    struct result best[4] = {{0}};
    for (uint32_t i = 0; i < N_RUNS; i++) {
        const struct result now[4] = {run(one, 1, n_tokens), run(one, n, n_tokens),
                                      run(all, n, n_tokens), run(whole, n, n_tokens)};
        for (uint32_t k = 0; k < 4; k++) {
            best[k].rate = now[k].rate > best[k].rate ? now[k].rate : best[k].rate;
            if (!i || now[k].cpu_ms < best[k].cpu_ms)
                best[k].cpu_ms = now[k].cpu_ms;
        }
    }
    printf("%u stages, %u threads, %u requests\n", n_stages, n_threads, n);
    for (uint32_t k = 0; k < 4; k++)
        printf("  %-22s %9.1f tokens/s, %7.3f ms of processor time per token\n", names[k],
               best[k].rate, best[k].cpu_ms);
    printf("  a step for each stage: %.2f times one step in flight, %.2f times 1 request\n",
           best[2].rate / best[1].rate, best[2].rate / best[0].rate);
    printf("  by processor time:     %.2f times one step in flight\n",
           n_stages * best[1].cpu_ms / best[2].cpu_ms);
    engine_close(one);
    engine_close(all);
    engine_close(whole);
    return 0;
}
