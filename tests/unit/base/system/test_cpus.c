/* Tests of lists of CPUs, as users and the kernel write them, and of the affinity of threads. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/cpus.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static void test_lists_are_read_and_written_again(void **state)
{
    (void)state;
    static const struct {
        const char *text, *again;
        uint32_t n;
    } cases[] = {
        {"0", "0", 1},         {"0-7,16-23", "0-7,16-23", 16},
        {"3,1,2\n", "1-3", 3}, {"0,2,4", "0,2,4", 3},
        {"4095", "4095", 1},   {"0-4095", "0-4095", 4096},
        {"5-5", "5", 1},       {"63-64,127-128", "63-64,127-128", 4},
        {"", "", 0},           {"\n", "", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cpus set;
        struct error err;
        struct strbuf text;
        assert_int_equal(cpus_parse("--cpus", cases[i].text, &set, &err), 0);
        assert_int_equal(cpus_count(&set), cases[i].n);
        strbuf_init(&text, 0);
        cpus_format(&set, &text);
        assert_string_equal(strbuf_str(&text), cases[i].again);
        strbuf_fini(&text);
    }
}

static void test_what_is_no_list_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"x", "--cpus|x|byte 0"},
        {"1-", "--cpus|\"1-\"|byte 2"},
        {"-1", "--cpus|\"-1\"|byte 0"},
        {"1,", "--cpus|\"1,\"|byte 1"},
        {"1 2", "--cpus|1 2|byte 1"},
        {"1\n2", "--cpus|1\n2|byte 2"},
        {"0-1-2", "--cpus|0-1-2|byte 3"},
        {"7-3", "--cpus|7-3|byte 0|7|3"},
        {"0,4096", "--cpus|0,4096|byte 2|0|4095"},
        {"99999999999999999999", "--cpus|99999999999999999999|byte 0|0|4095"},
        {"0-18446744073709551616", "--cpus|0-18446744073709551616|byte 2|0|4095"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cpus set = {{7}};
        struct error err;
        assert_int_equal(cpus_parse("--cpus", cases[i].text, &set, &err), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, cases[i].message));
        assert_int_equal(set.words[0], 7); /* untouched */
    }
}

static void test_sets_are_counted_and_walked(void **state)
{
    (void)state;
    struct cpus a, b, c;
    struct error err;
    assert_int_equal(cpus_parse("a", "0-3,64,200", &a, &err), 0);
    assert_int_equal(cpus_parse("b", "2-5,200", &b, &err), 0);
    assert_int_equal(cpus_next(&a, 0), 0);
    assert_int_equal(cpus_next(&a, 4), 64);
    assert_int_equal(cpus_next(&a, 65), 200);
    assert_int_equal(cpus_next(&a, 201), CPUS_MAX);
    assert_int_equal(cpus_next(&a, CPUS_MAX), CPUS_MAX);
    c = a;
    cpus_and(&c, &b);
    assert_int_equal(cpus_count(&c), 3);
    c = a;
    cpus_or(&c, &b);
    assert_int_equal(cpus_count(&c), 8);
    cpus_remove(&c, &a);
    assert_true(cpus_has(&c, 4) && cpus_has(&c, 5) && !cpus_has(&c, 200));
    assert_false(cpus_has(&c, CPUS_MAX));
}

static void *see(void *arg)
{
    struct error err;
    assert_int_equal(cpus_allowed(arg, &err), 0);
    return NULL;
}

static void test_a_confined_thread_hands_its_cpus_on(void **state)
{
    (void)state;
    struct cpus all, one = {{0}}, seen, none = {{0}};
    struct error err;
    pthread_t thread;
    assert_int_equal(cpus_allowed(&all, &err), 0);
    assert_true(cpus_count(&all) > 0);
    cpus_add(&one, cpus_next(&all, 0));
    assert_int_equal(cpus_confine(&one, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, see, &seen), 0);
    pthread_join(thread, NULL);
    assert_true(cpus_equal(&seen, &one));
    assert_int_equal(cpus_confine_thread(pthread_self(), &all, &err), 0);
    assert_int_equal(cpus_allowed(&seen, &err), 0);
    assert_true(cpus_equal(&seen, &all));
    cpus_add(&none, CPUS_MAX - 1); /* no test machine has this CPU */
    assert_true(cpus_confine(&none, &err) < 0);
    assert_true(names_all(err.message, "4095"));
}

static sem_t go;

static void *see_later(void *arg)
{
    while (sem_wait(&go) != 0)
        ;
    return see(arg);
}

static void test_a_confined_process_has_no_thread_elsewhere(void **state)
{
    (void)state;
    struct cpus all, one = {{0}}, seen[3], none = {{0}};
    struct error err;
    pthread_t threads[3];
    assert_int_equal(cpus_allowed(&all, &err), 0);
    cpus_add(&one, cpus_next(&all, 0));
    cpus_add(&none, CPUS_MAX - 1);
    assert_int_equal(sem_init(&go, 0, 0), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, see_later, &seen[i]), 0);
    assert_true(cpus_confine_process(&none, &err) < 0);
    assert_int_equal(cpus_confine_process(&one, &err), 0);
    for (size_t i = 0; i < 3; i++)
        sem_post(&go);
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_true(cpus_equal(&seen[i], &one));
    }
    sem_destroy(&go);
    assert_int_equal(cpus_confine_process(&all, &err), 0);
    assert_int_equal(cpus_allowed(&seen[0], &err), 0);
    assert_true(cpus_equal(&seen[0], &all)); /* the calling thread too, not only the others */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_are_read_and_written_again),
        cmocka_unit_test(test_what_is_no_list_is_named),
        cmocka_unit_test(test_sets_are_counted_and_walked),
        cmocka_unit_test(test_a_confined_thread_hands_its_cpus_on),
        cmocka_unit_test(test_a_confined_process_has_no_thread_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
