/* Tests of the engine's costs: an idle engine costs nothing; decode makes no allocation and waits
 * for no lock. This program's own malloc() and pthread_mutex_lock() count both. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/engine/support/support_engine.h"

/* Allocations of the whole process while `counting`; the sanitizers bring hooks of their own. */
static atomic_bool counting;
static atomic_uint n_allocations;

static void count_allocation(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add(&n_allocations, 1);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
static void on_malloc(const volatile void *p, size_t n)
{
    (void)p;
    (void)n;
    count_allocation();
}
static void on_free(const volatile void *p)
{
    (void)p;
}
static void install_counter(void)
{
    assert_true(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) != 0);
}
#else
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    count_allocation();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    count_allocation();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    count_allocation();
    return __libc_realloc(p, n);
}
static void install_counter(void)
{
}
#endif

/* Locks that the engine thread had to wait for while `watching`. */
static atomic_bool watching;
static atomic_uint n_lock_waits;

#if defined(__SANITIZE_THREAD__)
enum { LOCKS_ARE_COUNTED = 0 }; /* the thread sanitizer brings its own pthread_mutex_lock() */
#else
enum { LOCKS_ARE_COUNTED = 1 };

static bool is_engine_thread(void)
{
    char name[16];
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           strcmp(name, "sluice-engine") == 0;
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static _Atomic(void *) found;
    int (*real)(pthread_mutex_t *);
    void *symbol = atomic_load(&found);
    if (atomic_load(&watching) && is_engine_thread()) {
        if (pthread_mutex_trylock(mutex) == 0)
            return 0;
        atomic_fetch_add(&n_lock_waits, 1);
    }
    if (!symbol) {
        symbol = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        atomic_store(&found, symbol);
    }
    memcpy(&real, &symbol, sizeof(real));
    return real(mutex);
}
#endif

static void test_idle_engine_burns_no_cpu(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r;
    struct engine_request req = run_simple(10, 20);
    struct rusage before, after;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    int64_t us = INT64_MAX;
    for (int i = 0; i < 10 && us >= 15000; i++) {
        run_sleep_ms(50); /* threads of the pool spin before they sleep, longer on a busy machine */
        getrusage(RUSAGE_SELF, &before);
        run_sleep_ms(300);
        getrusage(RUSAGE_SELF, &after);
        us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec -
             before.ru_utime.tv_usec + (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
             after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    }
    assert_true(us < 15000);
    run_result_fini(&r);
    run_close(engine);
}

/* A single request: its prompt takes path P, its generated tokens path D, and no step has both.
 * Beside a generating request there are mixed steps. */
static void test_rows_are_counted_by_role(void **state)
{
    enum { PROMPT = 40, TOKENS = 300 };
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r[2];
    struct engine_request req = run_simple(PROMPT, TOKENS);
    run_submit(engine, &req, &r[0]);
    run_wait(engine, r, 1);
    run_result_fini(&r[0]);
    struct engine_stats alone = run_stats(engine);
    assert_int_equal(alone.n_path_p_rows, PROMPT);
    assert_int_equal(alone.n_path_d_rows, TOKENS - 1);
    assert_int_equal(alone.n_mixed_steps, 0);
    run_slow_steps(NS_PER_MS /
                   5); /* the first request must still generate when the second arrives */
    run_submit(engine, &req, &r[0]);
    run_wait_ids(engine, &r[0], 2);
    req.cache_salt = "apart"; /* another salt: the prompt is computed, not cached */
    run_submit(engine, &req, &r[1]);
    run_wait(engine, r, 2);
    struct engine_stats both = run_stats(engine);
    uint64_t n_steps = both.n_steps - alone.n_steps;
    assert_in_range(both.n_mixed_steps, 1, n_steps - 1);
    assert_int_equal(both.n_path_d_rows - alone.n_path_d_rows, 2 * (TOKENS - 1));
    assert_int_equal(both.n_path_p_rows + both.n_prefix_hit_tokens, 3 * PROMPT);
    run_result_fini(&r[0]);
    run_result_fini(&r[1]);
    run_close(engine);
}

static void *lock_as_the_engine(void *mutex)
{
    pthread_setname_np(pthread_self(), "sluice-engine");
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

static void test_locks_waited_for_are_counted(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    if (!LOCKS_ARE_COUNTED)
        return;
    atomic_store(&watching, true);
    pthread_mutex_lock(&mutex);
    assert_int_equal(pthread_create(&thread, NULL, lock_as_the_engine, &mutex), 0);
    int64_t end = clock_now_ns() + 60 * NS_PER_S;
    while (!atomic_load(&n_lock_waits) && clock_now_ns() < end)
        run_sleep_ms(1);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    atomic_store(&watching, false);
    assert_int_equal(atomic_exchange(&n_lock_waits, 0), 1);
}

/* 16 sequences with penalties, stops and logprobs decode 100 steps and more. This thread meanwhile
 * reads statistics and events, and holds the engine's locks for as long as possible. */
static void check_steps(const char *draft_path)
{
    static struct run_result results[16];
    static const char *const stops[] = {"no such text", "abcabcabcabc"};
    static const uint32_t word[] = {60, 61, 62};
    static const struct engine_bad_word bad_words[] = {{word, 1, 0}, {word, 2, 1}, {word, 3, 2}};
    static uint32_t allowed[200];
    for (uint32_t i = 0; i < 200; i++)
        allowed[i] = 40 + i;
    struct engine_config cfg = run_config("q4_1");
    cfg.draft_path = draft_path;
    cfg.draft_always = true;
    struct engine *engine = run_open(&cfg);
    struct engine_event_buffer *reader;
    struct error err;
    uint64_t n_reads = 0;
    assert_int_equal(engine_event_buffer_create(&reader, &err), 0);
    run_slow_steps(NS_PER_MS / 2);
    for (uint32_t i = 0; i < 16; i++) {
        struct engine_request req = run_simple(10 + i, 400);
        req.sampling.temperature = 1.0f;
        req.sampling.top_p = 0.9f;
        req.sampling.top_k = i % 2 ? 40 : 0;
        req.sampling.repetition_penalty = 1.1f;
        req.stopping.stop = stops;
        req.stopping.n_stop = 2;
        req.want_logprobs = i % 2;
        req.n_top_logprobs = i % 2 ? 5 : 0;
        req.sampling.watermark = i % 3 == 0;
        req.sampling.bad_words = bad_words;
        req.sampling.n_bad_words = i % 4 ? 3 : 0;
        req.sampling.allowed_ids = allowed;
        req.sampling.n_allowed_ids = i % 5 ? 0 : 200;
        req.sampling.typical_p = i % 6 ? 1.0f : 0.9f;
        req.speculate.drafter = ENGINE_DRAFTER_NONE;
        if (i % 2)
            req.speculate = (struct engine_speculate){ENGINE_DRAFTER_NGRAM, 8};
        else if (draft_path)
            req.speculate = (struct engine_speculate){ENGINE_DRAFTER_MODEL, 2};
        run_submit(engine, &req, &results[i]);
    }
    for (uint32_t i = 0; i < 16; i++)
        run_wait_ids(engine, &results[i], 2);
    run_poll(engine); /* read now, because the text buffer of unread events would grow */
    uint64_t n_steps = run_stats(engine).n_decode_steps;
    int64_t end = clock_now_ns() + 60 * NS_PER_S;
    atomic_store(&counting, true);
    while (run_stats(engine).n_decode_steps < n_steps + 50 && clock_now_ns() < end)
        run_sleep_ms(1);
    atomic_store(&counting, false); /* reading may allocate */
    atomic_store(&watching, true);
    while (run_stats(engine).n_decode_steps < n_steps + 100 && clock_now_ns() < end) {
        const struct engine_event *events;
        engine_read_events(engine, reader, &events);
        engine_pause(engine, 1 << 30, true); /* an unknown id: only takes the registry's lock */
        n_reads++;
    }
    atomic_store(&watching, false);
    assert_true(run_stats(engine).n_decode_steps >= n_steps + 100);
    assert_int_equal(run_stats(engine).n_running, 16);
    assert_int_equal(atomic_load(&n_allocations), 0);
    assert_int_equal(atomic_load(&n_lock_waits), 0);
    assert_true(n_reads > 100);
    if (draft_path)
        assert_true(run_stats(engine).n_draft_rows > 16 * 20 && run_stats(engine).n_drafted_tokens);
    engine_event_buffer_destroy(reader);
    run_close(engine);
    for (uint32_t i = 0; i < 16; i++)
        run_result_fini(&results[i]);
}

static void test_decode_steps_allocate_nothing_and_wait_for_no_lock(void **state)
{
    (void)state;
    check_steps(NULL);
}

static void test_nor_do_steps_of_a_draft_model(void **state)
{
    (void)state;
    check_steps(SLUICE_SOURCE_DIR "/tests/golden/tiny/q4_1.gguf");
}

static int install(void **state)
{
    (void)state;
    install_counter();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_engine_burns_no_cpu),
        cmocka_unit_test(test_rows_are_counted_by_role),
        cmocka_unit_test(test_locks_waited_for_are_counted),
        cmocka_unit_test(test_decode_steps_allocate_nothing_and_wait_for_no_lock),
        cmocka_unit_test(test_nor_do_steps_of_a_draft_model),
    };
    return cmocka_run_group_tests(tests, install, NULL);
}
