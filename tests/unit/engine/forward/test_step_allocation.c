/* Tests that a step allocates no memory. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/support/count_allocations.h"
#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_observe.h"
#include "tests/unit/engine/support/support_tiny.h"

static bool has_begun(const char *thread)
{
    char path[64], name[32] = "", mine[32] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", thread);
    FILE *file = fopen(path, "re");
    if (file && !fgets(name, sizeof(name), file))
        name[0] = '\0';
    if (file)
        fclose(file);
    name[strcspn(name, "\n")] = '\0';
    pthread_getname_np(pthread_self(), mine, sizeof(mine));
    return strcmp(name, mine) != 0;
}

/* A thread has its creator's name until it runs. A sanitizer allocates memory for the thread then.
 */
static void wait_for_threads(void)
{
    enum { PATIENCE_S = 20 };
    int64_t until_ns = clock_now_ns() + PATIENCE_S * NS_PER_S;
    unsigned n_waiting;
    do {
        assert_true(clock_now_ns() < until_ns);
        DIR *threads = opendir("/proc/self/task");
        const struct dirent *entry;
        assert_non_null(threads);
        n_waiting = 0;
        while ((entry = readdir(threads)) != NULL)
            n_waiting += entry->d_name[0] != '.' && !has_begun(entry->d_name);
        closedir(threads);
    } while (n_waiting > 1); /* this one */
}

/* Runs pieces of two sequences, and samples. Takes ckpt. */
static void check_steps(struct checkpoint *ckpt, const struct executor_config *cfg)
{
    static const uint32_t pieces[] = {64, 1, 40, 1, 1};
    static uint32_t ids[200];
    struct model_run run;
    struct error err = {0};
    struct sample_params params[2];
    struct sample_result results[2];
    model_run_open_ckpt(&run, ckpt, cfg);
    for (uint32_t i = 0; i < 200; i++)
        ids[i] = (i * 31) % executor_model_info(run.ex)->vocab_size;
    uint32_t a = model_run_add(&run, ids, 200), b = model_run_add(&run, ids + 1, 199);
    for (int i = 0; i < 2; i++)
        params[i] = (struct sample_params){.temperature = 0.8F,
                                           .top_k = 40,
                                           .top_p = 0.9F,
                                           .typical_p = 1,
                                           .repetition_penalty = 1,
                                           .seed = 5};
    wait_for_threads();
    /* The first step does not allocate either. */
    for (int i = 0; i < 5; i++) {
        model_run_push(&run, a, pieces[i], 1);
        model_run_push(&run, b, pieces[4 - i], 1);
        unsigned before = atomic_load(&n_allocations);
        if (executor_step(run.ex, run.batch, &err) != 0)
            fail_msg("%s", err.message);
        assert_int_equal(executor_sample(run.ex, 0, 2, params, results, &err), 0);
        assert_int_equal(atomic_load(&n_allocations) - before, 0);
        step_batch_clear(run.batch);
    }
    model_run_close(&run);
}

static void test_step_and_sample_allocate_nothing(void **state)
{
    static const char *const kernels[] = {"f32", "ref", "auto"};
    struct tiny_spec spec = tiny_spec_default();
    (void)state;
    spec.matrix_type = GGML_Q8_0;
    for (size_t k = 0; k < 3; k++) {
        for (uint32_t tp = 1; tp <= 2; tp++) {
            struct executor_config cfg = model_run_config(kernels[k]);
            cfg.tp = tp;
            check_steps(tiny_open(&spec), &cfg);
        }
    }
}

/* The mixers with states, latent attention, shared K and V, experts beside a dense FFN, chunks. */
static void test_step_of_other_layers_allocates_nothing(void **state)
{
    static const char *const goldens[] = {"qwen35",           "mamba2", "lfm2moe",    "falcon_h1",
                                          "deepseek_v2_lite", "gemma4", "gemma4_moe", "llama4"};
    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        struct executor_config cfg = model_run_config("auto");
        check_steps(observe_open(goldens[i]), &cfg);
    }
}

static void test_allocations_are_counted(void **state)
{
    unsigned before = atomic_load(&n_allocations);
    (void)state;
    void *volatile p = malloc(10);
    assert_true(atomic_load(&n_allocations) > before);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_are_counted),
        cmocka_unit_test(test_step_and_sample_allocate_nothing),
        cmocka_unit_test(test_step_of_other_layers_allocates_nothing),
    };
    start_counting();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
