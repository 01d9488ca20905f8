#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/settings/reload.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

struct settings {
    const char *name, *place;
    bool quick, quiet;
    uint64_t size, wait_ms;
    double ratio;
};

#define AT(field) offsetof(struct settings, field)
static const struct option_spec specs[] = {
    {"t-name", 0, OPTION_STRING, AT(name), "nobody", "NAME", "live", 0, 0},
    {"t-place", 0, OPTION_STRING, AT(place), "here", "PLACE", "at a start alone", 0, 0},
    {"t-quick", 0, OPTION_BOOL, AT(quick), "false", NULL, "live", 0, 0},
    {"t-quiet", 0, OPTION_BOOL, AT(quiet), "false", NULL, "at a start alone", 0, 0},
    {"t-size", 0, OPTION_U64, AT(size), "1", "N", "live", 1, 1000},
    {"t-wait", 0, OPTION_MS, AT(wait_ms), "10s", "TIME", "at a start alone", 10, 3600000},
    {"t-ratio", 0, OPTION_F64, AT(ratio), "0.5", "X", "live", 0, 0},
};
enum { N_SPECS = sizeof(specs) / sizeof(specs[0]) };
static const char *const live[] = {"t-name", "t-quick", "t-size", "t-ratio", NULL};

/* A program that was started with a config file of the given text. */
struct program {
    char path[32];
    const char *argv[5];
    struct settings settings;
    struct options *options;
    struct reload *reload;
    struct strbuf set, restart;
};

static void write_file(const struct program *p, const char *text)
{
    FILE *file = fopen(p->path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* The program's check: refuses odd sizes above 1. */
static int is_even(const void *settings, struct error *err)
{
    const struct settings *s = settings;
    return s->size == 1 || s->size % 2 == 0
               ? 0
               : error_set(err, STATUS_INVALID_ARGUMENT, "--t-size: %llu is odd",
                           (unsigned long long)s->size);
}

static void begin(struct program *p, const char *text, const char *flag)
{
    struct error err;
    *p = (struct program){.path = "/tmp/test_reload_XXXXXX"};
    int fd = mkstemp(p->path);
    assert_true(fd >= 0);
    close(fd);
    write_file(p, text);
    const char *argv[] = {"x", "--config", p->path, flag, NULL};
    memcpy(p->argv, argv, sizeof(argv));
    int argc = flag ? 4 : 3;
    char *const *words = (char *const *)(uintptr_t)p->argv;
    assert_int_equal(
        options_parse("unit", specs, N_SPECS, argc, words, &p->settings, &p->options, &err), 0);
    const struct reload_config config = {
        .section = "unit",
        .specs = specs,
        .n_specs = N_SPECS,
        .argc = argc,
        .argv = words,
        .settings = &p->settings,
        .settings_bytes = sizeof(p->settings),
        .check = is_even,
        .live = live,
    };
    p->reload = reload_create(&config);
    assert_non_null(p->reload);
    strbuf_init(&p->set, 0);
    strbuf_init(&p->restart, 0);
}

static void end(struct program *p)
{
    reload_destroy(p->reload);
    options_destroy(p->options);
    strbuf_fini(&p->set);
    strbuf_fini(&p->restart);
    unlink(p->path);
}

/* Writes the text to the file and reloads. p->set and p->restart get the result of this reload. */
static int again(struct program *p, const char *text, struct error *err)
{
    strbuf_fini(&p->set);
    strbuf_fini(&p->restart);
    strbuf_init(&p->set, 0);
    strbuf_init(&p->restart, 0);
    write_file(p, text);
    return reload_read(p->reload, &p->settings, &p->set, &p->restart, err);
}

static void test_reload_when_nothing_changed_then_nothing_is_told(void **state)
{
    (void)state;
    struct program p;
    struct error err;
    begin(&p, "t_name = a\nt_wait = 5s\n", NULL);
    assert_int_equal(again(&p, "# with a comment\nt_wait = 5000ms\n[unit]\nt_name = a\n", &err), 0);
    assert_string_equal(strbuf_str(&p.set), "");
    assert_string_equal(strbuf_str(&p.restart), "");
    end(&p);
}

static void test_reload_when_rows_changed_then_live_ones_are_set_and_others_named(void **state)
{
    (void)state;
    struct program p;
    struct error err;
    begin(&p, "", NULL);
    assert_int_equal(again(&p,
                           "t_name = a\nt_place = there\nt_quick = true\nt_quiet = true\n"
                           "t_size = 2\nt_wait = 1s\nt_ratio = 0.25\n",
                           &err),
                     0);
    assert_string_equal(strbuf_str(&p.set), "t-name t-quick t-size t-ratio");
    assert_string_equal(strbuf_str(&p.restart), "t-place t-quiet t-wait");
    assert_string_equal(p.settings.name, "a");
    assert_true(p.settings.quick && p.settings.size == 2);
    assert_true(p.settings.ratio > 0.24 && p.settings.ratio < 0.26);
    assert_string_equal(p.settings.place, "here");
    assert_true(!p.settings.quiet && p.settings.wait_ms == 10000);
    end(&p);
}

/* A reload names the setting as long as the program runs with another value than the file has. */
static void test_reload_when_a_restart_is_wanted_then_it_is_named_until_it_is_not(void **state)
{
    (void)state;
    struct program p;
    struct error err;
    begin(&p, "t_wait = 2s\n", NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(again(&p, "t_wait = 3s\nt_size = 4\n", &err), 0);
        assert_string_equal(strbuf_str(&p.set), i ? "" : "t-size");
        assert_string_equal(strbuf_str(&p.restart), "t-wait");
    }
    assert_int_equal(again(&p, "t_wait = 2s\n", &err), 0);
    assert_string_equal(strbuf_str(&p.set), "t-size"); /* t-size is back at its default */
    assert_string_equal(strbuf_str(&p.restart), "");
    assert_true(p.settings.wait_ms == 2000 && p.settings.size == 1);
    end(&p);
}

static void test_reload_when_it_cannot_be_read_then_nothing_changes(void **state)
{
    static const struct {
        const char *text;
        int status;
        const char *says;
    } cases[] = {
        {"t_name = b\n[unit]\nt_nome = 1\n", STATUS_INVALID_ARGUMENT, ":3"},
        {"t_name = b\nt_size = 2000\n", STATUS_INVALID_ARGUMENT, "--t-size"},
        {"t_name = b\nnonsense\n", STATUS_INVALID_ARGUMENT, ":2"},
        {"t_name = b\nt_size = 7\n", STATUS_INVALID_ARGUMENT, "7"}, /* by is_even */
    };
    (void)state;
    struct program p;
    struct error err;
    begin(&p, "t_name = a\n", NULL);
    const struct settings before = p.settings;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(again(&p, cases[i].text, &err), cases[i].status);
        if (!names_all(err.message, cases[i].says))
            fail_msg("case %zu: %s", i, err.message);
        assert_memory_equal(&p.settings, &before, sizeof(before));
        assert_string_equal(p.settings.name, "a");
        assert_string_equal(strbuf_str(&p.set), "");
        assert_string_equal(strbuf_str(&p.restart), "");
    }
    unlink(p.path);
    assert_int_equal(reload_read(p.reload, &p.settings, &p.set, &p.restart, &err),
                     STATUS_NOT_FOUND);
    assert_string_equal(p.settings.name, "a");
    assert_int_equal(again(&p, "t_name = b\n", &err), 0); /* a corrected file is read */
    assert_string_equal(strbuf_str(&p.set), "t-name");
    assert_string_equal(p.settings.name, "b");
    end(&p);
}

static void test_reload_when_a_flag_gives_it_then_the_file_changes_nothing(void **state)
{
    (void)state;
    struct program p;
    struct error err;
    begin(&p, "t_size = 2\n", "--t-size=8");
    assert_int_equal(again(&p, "t_size = 4\nt_name = a\n", &err), 0);
    assert_string_equal(strbuf_str(&p.set), "t-name");
    assert_int_equal(p.settings.size, 8);
    end(&p);
}

/* Strings of the settings stay valid through the next reload. A sanitizer reports a use after free
 * otherwise. */
static void test_reload_when_over_and_over_then_strings_live_until_the_next_but_one(void **state)
{
    (void)state;
    struct program p;
    struct error err;
    char text[64], name[32];
    begin(&p, "t_name = first\n", NULL);
    for (int i = 0; i < 50; i++) {
        const char *old = p.settings.name;
        char wanted[32];
        snprintf(wanted, sizeof(wanted), "%s", old);
        snprintf(name, sizeof(name), "a longer name %d",
                 i / 2); /* every second reload gives the same name again */
        snprintf(text, sizeof(text), "t_name = %s\n", name);
        assert_int_equal(again(&p, text, &err), 0);
        assert_string_equal(p.settings.name, name);
        assert_string_equal(old, wanted); /* a holder may still read the old value */
    }
    end(&p);
}

static void test_destroy_when_null_then_nothing_happens(void **state)
{
    (void)state;
    reload_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reload_when_nothing_changed_then_nothing_is_told),
        cmocka_unit_test(test_reload_when_rows_changed_then_live_ones_are_set_and_others_named),
        cmocka_unit_test(test_reload_when_a_restart_is_wanted_then_it_is_named_until_it_is_not),
        cmocka_unit_test(test_reload_when_it_cannot_be_read_then_nothing_changes),
        cmocka_unit_test(test_reload_when_a_flag_gives_it_then_the_file_changes_nothing),
        cmocka_unit_test(test_reload_when_over_and_over_then_strings_live_until_the_next_but_one),
        cmocka_unit_test(test_destroy_when_null_then_nothing_happens),
    };
    return cmocka_run_group_tests_name("reload", tests, NULL, NULL);
}
