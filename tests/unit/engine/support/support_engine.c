#include "tests/unit/engine/support/support_engine.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "tests/unit/engine/support/support_golden.h"

/* Under a sanitizer, a step of 64 requests takes half a minute. On an emulated GPU, a step of one
 * request takes a few seconds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WAIT_S = 1000 };
#else
enum { WAIT_S = 120 };
#endif

static int64_t wait_s(void)
{
    return getenv("SLUICE_TEST_EMULATED_GPU") ? 1000 : WAIT_S;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static bool has_news;
static struct engine_event_buffer *buffer; /* all open engines share it */
static int n_open;
static _Atomic int64_t step_ns;

static void on_notify(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    has_news = true;
    pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
    struct timespec pause = {.tv_nsec = atomic_load(&step_ns)};
    if (pause.tv_nsec)
        nanosleep(&pause, NULL);
}

void run_slow_steps(int64_t ns)
{
    atomic_store(&step_ns, ns);
}

void run_pause(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100 * NS_PER_MS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    pthread_mutex_lock(&lock);
    if (!has_news)
        pthread_cond_timedwait(&news, &lock, &until);
    has_news = false;
    pthread_mutex_unlock(&lock);
}

struct engine_config run_config(const char *name)
{
    static char path[512];
    struct engine_config cfg;
    engine_config_init(&cfg);
    cfg.defer_text = getenv("SLUICE_TEST_DEFER") != NULL; /* ctest runs these tests both ways */
    if (getenv("SLUICE_TEST_STAGES"))                     /* and these in stages */
        cfg.executor.pp = (uint32_t)strtoul(getenv("SLUICE_TEST_STAGES"), NULL, 10);
    if (strchr(name, '/'))
        snprintf(path, sizeof(path), "%s", name);
    else
        snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s.gguf", golden_source_dir(), name);
    cfg.model_path = path;
    if (getenv("SLUICE_TEST_DEVICE")) /* tests/gpu sets cuda:0, real or emulated */
        cfg.executor.device = getenv("SLUICE_TEST_DEVICE");
    cfg.executor.n_threads = 2;
    cfg.executor.kv_block_size = 16;
    cfg.executor.kv_tokens = 4096;
    cfg.max_concurrent = 32;
    cfg.max_queued = 64;
    cfg.max_batch_tokens = 128;
    cfg.prefill_chunk_tokens = 32;
    return cfg;
}

struct engine *run_open(struct engine_config *cfg)
{
    struct engine *engine;
    struct error err;
    cfg->notify = on_notify;
    if (engine_open(cfg, &engine, &err))
        fail_msg("%s: %s", cfg->model_path, err.message);
    if (n_open++ == 0)
        assert_int_equal(engine_event_buffer_create(&buffer, &err), 0);
    return engine;
}

void run_close(struct engine *engine)
{
    run_slow_steps(0);
    engine_close(engine);
    if (--n_open > 0)
        return;
    engine_event_buffer_destroy(buffer);
    buffer = NULL;
}

void run_submit(struct engine *engine, struct engine_request *req, struct run_result *result)
{
    struct error err;
    memset(result, 0, sizeof(*result));
    result->n_choices = req->sampling.n;
    req->user_data = (uint64_t)(uintptr_t)result;
    if (engine_submit(engine, req, &result->id, &err))
        fail_msg("submit: %s", err.message);
}

static void *grown(void *array, size_t n, size_t elem_bytes)
{
    void *p = realloc(array, (n ? n : 1) * elem_bytes);
    assert_non_null(p);
    return p;
}

static void take_tokens(struct run_choice *c, const struct engine_event *event)
{
    assert_false(c->finished);
    c->ids = grown(c->ids, c->n_ids + event->n_ids, sizeof(*c->ids));
    c->text = grown(c->text, c->n_text + event->n_text_bytes + 1, 1);
    if (event->n_ids)
        memcpy(c->ids + c->n_ids, event->ids, event->n_ids * sizeof(*c->ids));
    memcpy(c->text + c->n_text, event->text, event->n_text_bytes);
    c->n_text += event->n_text_bytes;
    c->text[c->n_text] = '\0';
    assert_true(utf8_valid(event->text, event->n_text_bytes, NULL));
    if (event->logprobs) {
        c->logprobs = grown(c->logprobs, c->n_logprobs + event->n_ids, sizeof(*c->logprobs));
        memcpy(c->logprobs + c->n_logprobs, event->logprobs, event->n_ids * sizeof(*c->logprobs));
        c->n_logprobs += event->n_ids;
    }
    c->n_ids += event->n_ids;
    /* A resume's first event begins where the earlier run's text ended. */
    assert_true(event->n_released >= c->n_released + event->n_text_shares);
    assert_true(!c->n_cuts || event->n_released == c->n_released + event->n_text_shares);
    c->n_released = event->n_released;
    uint64_t n_text = 0;
    for (uint32_t i = 0; i < event->n_text_shares; i++)
        n_text += event->text_shares[i];
    assert_int_equal(n_text, event->n_text_bytes);
    c->cuts = grown(c->cuts, c->n_cuts + 1u, sizeof(*c->cuts));
    c->cuts[c->n_cuts++] = (struct run_cut){c->n_ids, c->n_released, c->n_text};
}

static void take_prompt(struct run_result *r, const struct engine_event *event)
{
    assert_true(r->started && !r->choices[0].n_ids);
    if (!r->n_prompt_logprobs)
        r->first_prompt_logprob = event->first_prompt_token;
    assert_int_equal(event->first_prompt_token, r->first_prompt_logprob + r->n_prompt_logprobs);
    r->prompt_logprobs =
        grown(r->prompt_logprobs, r->n_prompt_logprobs + event->n_ids, sizeof(*r->prompt_logprobs));
    memcpy(r->prompt_logprobs + r->n_prompt_logprobs, event->logprobs,
           event->n_ids * sizeof(*r->prompt_logprobs));
    r->n_prompt_logprobs += event->n_ids;
}

static void take_event(const struct engine_event *event)
{
    struct run_result *r = (struct run_result *)(uintptr_t)event->user_data;
    assert_int_equal(event->id, r->id);
    assert_false(r->done);
    assert_true(event->choice < r->n_choices);
    struct run_choice *c = &r->choices[event->choice];
    r->n_events++;
    switch (event->type) {
    case ENGINE_EVENT_STARTED:
        assert_false(r->started);
        r->started = true;
        break;
    case ENGINE_EVENT_PROMPT:
        take_prompt(r, event);
        break;
    case ENGINE_EVENT_TOKENS:
        if (!r->first_ns)
            r->first_ns = clock_now_ns();
        take_tokens(c, event);
        break;
    case ENGINE_EVENT_FINISHED:
        assert_false(c->finished);
        c->finished = true;
        c->reason = event->reason;
        c->status = event->status;
        c->matched_stop_id = event->matched_stop_id;
        snprintf(c->message, sizeof(c->message), "%s", event->message);
        if (event->matched_stop)
            snprintf(c->matched_stop, sizeof(c->matched_stop), "%s", event->matched_stop);
        r->n_finished++;
        assert_int_equal(event->last, r->n_finished == r->n_choices);
        if (event->last) {
            r->done = true;
            r->done_ns = clock_now_ns();
            r->usage = event->usage;
        }
        break;
    }
}

void run_poll(struct engine *engine)
{
    const struct engine_event *events;
    size_t n = engine_read_events(engine, buffer, &events);
    for (size_t i = 0; i < n; i++)
        take_event(&events[i]);
}

void run_wait(struct engine *engine, struct run_result *results, size_t n)
{
    int64_t end = clock_now_ns() + wait_s() * NS_PER_S;
    for (;;) {
        size_t n_done = 0;
        run_poll(engine);
        for (size_t i = 0; i < n; i++)
            n_done += results[i].done;
        if (n_done == n)
            return;
        if (clock_now_ns() > end) {
            struct engine_stats s;
            engine_get_stats(engine, &s);
            fail_msg("%zu of %zu requests ended in %d s (queued %u, running %u, %llu steps)",
                     n_done, n, (int)wait_s(), s.n_queued, s.n_running,
                     (unsigned long long)s.n_steps);
        }
        run_pause();
    }
}

void run_wait_ids(struct engine *engine, struct run_result *result, uint32_t n)
{
    int64_t end = clock_now_ns() + wait_s() * NS_PER_S;
    for (run_poll(engine); !result->done && result->choices[0].n_ids < n; run_poll(engine)) {
        if (clock_now_ns() > end)
            fail_msg("%u of %u ids in %d s", result->choices[0].n_ids, n, (int)wait_s());
        run_pause();
    }
}

void run_result_fini(struct run_result *result)
{
    for (uint32_t i = 0; i < RUN_MAX_CHOICES; i++) {
        free(result->choices[i].ids);
        free(result->choices[i].text);
        free(result->choices[i].logprobs);
        free(result->choices[i].cuts);
    }
    free(result->prompt_logprobs);
    memset(result, 0, sizeof(*result));
}

void run_random_prompt(uint32_t seed, uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint32_t x = seed * 2654435761u + 17;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = 3 + (x >> 8) % (vocab - 3);
    }
}

void run_assert_same(const struct run_result *a, const struct run_result *b, const char *what)
{
    assert_int_equal(a->n_choices, b->n_choices);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct run_choice *x = &a->choices[i], *y = &b->choices[i];
        uint32_t n = x->n_ids < y->n_ids ? x->n_ids : y->n_ids, at = 0;
        while (at < n && x->ids[at] == y->ids[at])
            at++;
        if (x->n_ids != y->n_ids || at < n)
            fail_msg("%s: choice %u: ids part at %u of %u and %u", what, i, at, x->n_ids, y->n_ids);
        if (x->n_text != y->n_text || (x->n_text && memcmp(x->text, y->text, x->n_text)))
            fail_msg("%s: choice %u: texts differ: \"%s\" and \"%s\"", what, i, x->text, y->text);
        if (x->reason != y->reason || x->n_released != y->n_released)
            fail_msg("%s: choice %u: ends %d after %u and %d after %u", what, i, (int)x->reason,
                     x->n_released, (int)y->reason, y->n_released);
        if (x->n_logprobs != y->n_logprobs ||
            (x->n_logprobs && memcmp(x->logprobs, y->logprobs, n * sizeof(*x->logprobs))))
            fail_msg("%s: choice %u: log-probabilities differ", what, i);
    }
    /* the first value is NaN, so the comparison is by bits */
    if (a->n_prompt_logprobs != b->n_prompt_logprobs ||
        (a->n_prompt_logprobs && memcmp(a->prompt_logprobs, b->prompt_logprobs,
                                        a->n_prompt_logprobs * sizeof(*a->prompt_logprobs))))
        fail_msg("%s: %u and %u prompt log-probabilities differ", what, a->n_prompt_logprobs,
                 b->n_prompt_logprobs);
}

struct engine_request run_request(const uint32_t *prompt, uint32_t n_prompt, uint32_t max_tokens)
{
    struct engine_request req;
    engine_request_init(&req);
    req.prompt_ids = prompt;
    req.n_prompt_ids = n_prompt;
    req.stopping.max_tokens = max_tokens;
    req.stopping.ignore_eos = true;
    return req;
}

struct engine_request run_simple(uint32_t n_prompt, uint32_t max_tokens)
{
    static uint32_t prompt[512];
    if (!prompt[0])
        run_random_prompt(1, prompt, 512, 280);
    return run_request(prompt, n_prompt, max_tokens);
}

struct engine_stats run_stats(struct engine *engine)
{
    struct engine_stats s;
    engine_get_stats(engine, &s);
    return s;
}

void run_disturb(struct engine *engine, struct run_result *results, uint32_t n)
{
    struct error err;
    for (uint32_t i = 0; i < n; i++) {
        run_wait_ids(engine, &results[i], 1 + i);
        if (i % 3 == 0)
            engine_cancel(engine, results[i].id);
        else if (i % 3 == 1)
            engine_pause(engine, results[i].id, true);
        else /* the request may have ended already */
            (void)engine_update(engine, results[i].id, &(struct engine_update){.max_tokens = 100},
                                &err);
    }
    for (uint32_t i = 1; i < n; i += 3)
        engine_pause(engine, results[i].id, false);
    run_wait(engine, results, n);
}

void run_wait_idle(struct engine *engine)
{
    int64_t end = clock_now_ns() + 60 * NS_PER_S;
    while (!engine_is_idle(engine) || run_stats(engine).n_running || run_stats(engine).n_queued) {
        assert_true(clock_now_ns() < end);
        run_poll(engine);
        run_pause();
    }
}

void run_sleep_ms(int64_t ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * NS_PER_MS};
    nanosleep(&ts, NULL);
}
