#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "clients/cli/bench/bench_prompts.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

enum { VOCAB = 800, ROOM = 256 };

static char dir[] = "/tmp/sluice_prompts_XXXXXX", path[128];

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

static struct bench_prompts_config drawn(uint64_t min, uint64_t max, uint64_t n_shared)
{
    return (struct bench_prompts_config){.path = "",
                                         .n_tokens = {min, max},
                                         .max_tokens = {3, 9},
                                         .n_shared = n_shared,
                                         .vocab_size = VOCAB,
                                         .seed = 11};
}

static struct bench_prompts *create(const struct bench_prompts_config *config)
{
    struct bench_prompts *prompts = NULL;
    struct error err;
    assert_int_equal(bench_prompts_create(config, &prompts, &err), 0);
    return prompts;
}

static void test_drawn_prompts_are_each_another_and_the_same_again(void **state)
{
    (void)state;
    enum { N = 200 };
    struct bench_prompts_config config = drawn(20, 60, 0);
    struct bench_prompts *prompts = create(&config), *again = create(&config);
    static uint32_t ids[N][ROOM], other[ROOM];
    bool short_one = false, long_one = false;
    assert_int_equal(bench_prompts_n_lines(prompts), 0);
    for (uint64_t i = 0; i < N; i++) {
        struct bench_prompt p, q;
        bench_prompts_get(prompts, i, ids[i], &p);
        bench_prompts_get(again, i, other, &q);
        assert_null(p.text);
        assert_in_range(p.n_ids, 20, 60);
        assert_in_range(p.max_tokens, 3, 9);
        assert_true(p.n_ids == q.n_ids && p.max_tokens == q.max_tokens);
        assert_memory_equal(ids[i], other, p.n_ids * sizeof(other[0]));
        short_one |= p.n_ids < 25;
        long_one |= p.n_ids > 55;
        for (uint32_t k = 0; k < p.n_ids;
             k++) /* special tokens lie at the ends of the vocabulary */
            assert_in_range(ids[i][k], VOCAB / 8, VOCAB - 1 - VOCAB / 8);
        for (uint64_t k = 0; k < i; k++)
            assert_memory_not_equal(ids[i], ids[k], 4 * sizeof(other[0]));
    }
    assert_true(short_one && long_one);
    bench_prompts_destroy(prompts);
    bench_prompts_destroy(again);
}

static void test_a_shared_prefix_is_shared_and_nothing_more(void **state)
{
    (void)state;
    struct bench_prompts_config config = drawn(40, 50, 32);
    struct bench_prompts *prompts = create(&config);
    uint32_t first[ROOM], next[ROOM];
    struct bench_prompt p;
    bench_prompts_get(prompts, 0, first, &p);
    for (uint64_t i = 1; i < 20; i++) {
        bench_prompts_get(prompts, i, next, &p);
        assert_memory_equal(first, next, 32 * sizeof(first[0]));
        assert_memory_not_equal(first + 32, next + 32, 8 * sizeof(first[0]));
    }
    bench_prompts_destroy(prompts);
}

/* Returns a config whose prompts come from a new file with this name and text. */
static struct bench_prompts_config from_file(const char *name, const char *text, size_t n)
{
    struct bench_prompts_config config = drawn(1, 1, 0);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    config.path = path;
    return config;
}

static void test_lines_are_prompts_in_turn(void **state)
{
    (void)state;
    static const char text[] = "Why?\n\n  How {\"prompt\": 1}?\r\nlast, without an end";
    static const char *const expected[] = {"Why?", "  How {\"prompt\": 1}?", "last, without an end",
                                           "Why?"};
    struct bench_prompts_config config = from_file("a.txt", text, strlen(text));
    struct bench_prompts *prompts = create(&config);
    assert_int_equal(bench_prompts_n_lines(prompts), 3);
    for (uint64_t i = 0; i < 4; i++) {
        struct bench_prompt p;
        bench_prompts_get(prompts, i, NULL, &p);
        assert_string_equal(p.text, expected[i]);
        assert_in_range(p.max_tokens, 3, 9);
    }
    bench_prompts_destroy(prompts);
    unlink(path);
}

static void test_objects_may_say_how_many_tokens(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\": \"a\\nb\", \"max_tokens\": 77, \"id\": 1}\n"
                               "{\"prompt\": \"c\"}\n";
    struct bench_prompts_config config = from_file("a.jsonl", text, strlen(text));
    struct bench_prompts *prompts = create(&config);
    struct bench_prompt p;
    bench_prompts_get(prompts, 2, NULL, &p);
    assert_string_equal(p.text, "a\nb");
    assert_int_equal(p.max_tokens, 77);
    bench_prompts_get(prompts, 1, NULL, &p);
    assert_string_equal(p.text, "c");
    assert_in_range(p.max_tokens, 3, 9);
    bench_prompts_destroy(prompts);
    unlink(path);
}

static void test_bad_files_are_refused_by_name_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        size_t n;
        const char *message; /* part of the error message */
    } cases[] = {
        {"x.txt", "", 0, "x.txt"},
        {"x.txt", "\n\r\n\n", 4, "x.txt"},
        {"x.txt", "ok\na\0b\n", 7, "x.txt|line 2"},
        {"x.txt", "ok\n\n\xff\n", 6, "x.txt|line 3|UTF-8"},
        {"x.jsonl", "{\"prompt\": \"a\"}\nplain", 21, "x.jsonl|line 2"},
        {"x.jsonl", "[]", 2, "x.jsonl|line 1|prompt"},
        {"x.jsonl", "{\"prompt\": 5}", 13, "x.jsonl|line 1|prompt"},
        {"x.jsonl", "{\"prompt\": \"\"}", 14, "x.jsonl|line 1|prompt"},
        {"x.jsonl", "{\"prompt\": \"a\", \"max_tokens\": 0}", 32, "x.jsonl|line 1|max_tokens"},
        {"x.jsonl", "{\"prompt\": \"a\", \"max_tokens\": \"9\"}", 34, "x.jsonl|line 1|max_tokens"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench_prompts_config config = from_file(cases[i].name, cases[i].text, cases[i].n);
        struct bench_prompts *prompts = NULL;
        struct error err;
        assert_int_equal(bench_prompts_create(&config, &prompts, &err), STATUS_INVALID_ARGUMENT);
        assert_null(prompts);
        if (!names_all(err.message, cases[i].message))
            fail_msg("\"%s\" instead of \"%s\"", err.message, cases[i].message);
        unlink(path);
    }
    struct bench_prompts_config config = drawn(1, 1, 0);
    struct bench_prompts *prompts = NULL;
    struct error err;
    config.path = "/nowhere/prompts.txt";
    assert_int_equal(bench_prompts_create(&config, &prompts, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "--prompts: /nowhere/prompts.txt: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drawn_prompts_are_each_another_and_the_same_again),
        cmocka_unit_test(test_a_shared_prefix_is_shared_and_nothing_more),
        cmocka_unit_test(test_lines_are_prompts_in_turn),
        cmocka_unit_test(test_objects_may_say_how_many_tokens),
        cmocka_unit_test(test_bad_files_are_refused_by_name_and_line),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
