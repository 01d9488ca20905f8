/* The first 32 greedy tokens of each golden checkpoint are those of transformers
 * (tests/golden/greedy.bin). The prompt runs in pieces, the answer token by token. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_model.h"

struct answer {
    char name[64];
    uint32_t n_prompt, n_steps;
    uint32_t *ids; /* prompt, then answer; owned */
};

static void read_answer(struct golden *g, struct answer *a)
{
    uint32_t n_name = golden_u32(g);
    a->n_prompt = golden_u32(g);
    a->n_steps = golden_u32(g);
    assert_true(n_name < sizeof(a->name));
    memcpy(a->name, golden_take(g, n_name), n_name);
    a->name[n_name] = '\0';
    a->ids = golden_copy(g, a->n_prompt + a->n_steps);
}

static uint32_t greatest(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (!(x[i] <= x[best]))
            best = i;
    return best;
}

/* Feeds the prompt and then each generated token; every new token must be that of transformers. */
static void check_answer(const struct answer *a, const char *path, uint32_t chunk)
{
    struct executor_config cfg = model_run_config("f32");
    struct model_run run;
    model_run_open(&run, path, &cfg);
    uint32_t vocab = executor_model_info(run.ex)->vocab_size;
    uint32_t seq = model_run_add(&run, a->ids, a->n_prompt + a->n_steps);
    for (uint32_t done = 0; done < a->n_prompt + a->n_steps - 1;) {
        bool is_prompt = done < a->n_prompt;
        uint32_t left = is_prompt ? a->n_prompt - done : 1, n = left < chunk ? left : chunk;
        run.generated = !is_prompt;
        model_run_push(&run, seq, n, 1);
        model_run_step(&run);
        done += n;
        if (done < a->n_prompt)
            continue;
        uint32_t token = greatest(executor_logits(run.ex, 0), vocab);
        if (token != a->ids[done])
            fail_msg("%s: token %u is %u, want %u", path, done - a->n_prompt, token, a->ids[done]);
    }
    model_run_close(&run);
}

static bool is_there(const char *name, const char *suffix, char *path, size_t n_path)
{
    snprintf(path, n_path, "%s/tests/golden/tiny/%s%s", golden_source_dir(), name, suffix);
    return access(path, R_OK) == 0;
}

static void test_greedy_answers_are_those_of_transformers(void **state)
{
    struct golden g;
    (void)state;
    golden_open(&g, "greedy.bin", "SLGT");
    uint32_t n = golden_u32(&g), n_files = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct answer a;
        char path[512];
        read_answer(&g, &a);
        bool in_folder = is_there(a.name, "", path, sizeof(path));
        if (in_folder)
            check_answer(&a, path, 7);
        bool in_file = is_there(a.name, ".gguf", path, sizeof(path));
        if (in_file)
            check_answer(&a, path, 16);
        if (!in_folder && !in_file)
            print_message("greedy.bin has an answer of %s, which has no files\n", a.name);
        n_files += in_folder + in_file;
        free(a.ids);
    }
    assert_int_equal(g.at, g.n_bytes);
    golden_close(&g);
    print_message("%u answers, %u checkpoints\n", n, n_files);
    assert_true(n_files >= 100);
}

static bool has_answer(const char *name)
{
    struct golden g;
    bool found = false;
    golden_open(&g, "greedy.bin", "SLGT");
    for (uint32_t n = golden_u32(&g); n > 0 && !found; n--) {
        struct answer a;
        read_answer(&g, &a);
        found = strcmp(a.name, name) == 0;
        free(a.ids);
    }
    golden_close(&g);
    return found;
}

static void test_every_folder_has_a_greedy_answer(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny", golden_source_dir());
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (!strchr(e->d_name, '.') && !has_answer(e->d_name))
            fail_msg("%s has no greedy answer: run tests/golden/regen.sh greedy", e->d_name);
    closedir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_answers_are_those_of_transformers),
        cmocka_unit_test(test_every_folder_has_a_greedy_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
