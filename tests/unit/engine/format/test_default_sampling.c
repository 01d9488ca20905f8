/* Default sampling from generation_config.json and from general.sampling.* of a GGUF file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/format/default_sampling.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"
#include "tests/unit/engine/support/support_gguf.h"

static struct test_folder folder;

static int make_folder(void **state)
{
    (void)state;
    folder_create(&folder);
    folder_write_model(&folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    folder_remove(&folder);
    return 0;
}

/* "t0.6 k20 p0.95 m0.05 y0.5 r1.1": the fields that are set. */
static void describe(const struct default_sampling *s, char out[128])
{
    size_t n = 0;
    const struct {
        bool has;
        char name;
        double value;
    } fields[] = {{s->has_temperature, 't', (double)s->temperature},
                  {s->has_top_k, 'k', s->top_k},
                  {s->has_top_p, 'p', (double)s->top_p},
                  {s->has_min_p, 'm', (double)s->min_p},
                  {s->has_typical_p, 'y', (double)s->typical_p},
                  {s->has_repetition_penalty, 'r', (double)s->repetition_penalty}};
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].has)
            n += (size_t)snprintf(out + n, 128 - n, "%s%c%g", n ? " " : "", fields[i].name,
                                  fields[i].value);
}

static void read_folder(const char *generation_config, struct default_sampling *out,
                        struct default_sampling_notes *out_notes)
{
    struct checkpoint *c = NULL;
    struct error err;
    folder_write_text(&folder, "generation_config.json", generation_config);
    if (checkpoint_open(folder.path, &c, &err) != 0)
        fail_msg("%s: %s", generation_config, err.message);
    default_sampling_read(c, out, out_notes);
    checkpoint_close(c);
}

static void test_folder_when_fields_are_given_then_they_are_the_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{}", ""},
        {"{\"eos_token_id\": 3, \"transformers_version\": \"4.40\"}", ""},
        {"{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": "
         "0.05, \"typical_p\": 0.5, \"repetition_penalty\": 1.1}",
         "t0.6 k20 p0.95 m0.05 y0.5 r1.1"},
        {"{\"temperature\": 0.6}", "t0.6"},
        {"{\"do_sample\": true}", "t1"},
        {"{\"do_sample\": true, \"temperature\": null, \"top_p\": 0.5}", "t1 p0.5"},
        {"{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": 0.9}", "t0 p0.9"},
        {"{\"top_p\": 0.9}", "p0.9"},
        {"{\"top_k\": -1, \"temperature\": 1, \"top_p\": 1}", "t1 k0 p1"},
        {"{\"top_k\": 0, \"temperature\": 0.0}", "t0 k0"},
        {"{\"max_new_tokens\": 512, \"num_beams\": 4, \"epsilon_cutoff\": \"odd\"}", ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct default_sampling s;
        struct default_sampling_notes notes;
        char text[128];
        read_folder(rows[i].text, &s, &notes);
        if (notes.n)
            fail_msg("%s: %s", rows[i].text, notes.texts[0]);
        describe(&s, text);
        if (strcmp(text, rows[i].want) != 0)
            fail_msg("%s gives \"%s\", not \"%s\"", rows[i].text, text, rows[i].want);
    }
}

/* A value outside the range refused the whole model, also for a load without default sampling.
 * "top_p" 1e-50 became 0, which every request then refused. */
static void test_folder_when_a_value_is_wrong_then_a_note_names_its_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *named, *want;
    } rows[] = {
        {"{\"temperature\": \"0.6\"}", "generation_config.temperature", ""},
        {"{\"temperature\": -0.1}", "generation_config.temperature|-0.1|100", ""},
        {"{\"temperature\": 1e9}", "generation_config.temperature|100", ""},
        {"{\"temperature\": 1e300}", "generation_config.temperature|100", ""},
        {"{\"temperature\": NaN, \"top_p\": 0.5}", "generation_config.temperature", "p0.5"},
        {"{\"do_sample\": true, \"temperature\": -1}", "generation_config.temperature|-1", "t1"},
        {"{\"top_p\": 0}", "generation_config.top_p", ""},
        {"{\"top_p\": 1e-50}", "generation_config.top_p|1e-50", ""},
        {"{\"top_p\": 1.5, \"min_p\": 0.25}", "generation_config.top_p|1.5", "m0.25"},
        {"{\"top_p\": [0.5]}", "generation_config.top_p", ""},
        {"{\"min_p\": 2}", "generation_config.min_p|2", ""},
        {"{\"typical_p\": 0}", "generation_config.typical_p|0", ""},
        {"{\"typical_p\": 1e-46}", "generation_config.typical_p|1e-46", ""},
        {"{\"repetition_penalty\": 0}", "generation_config.repetition_penalty|0", ""},
        {"{\"repetition_penalty\": 1e-60}", "generation_config.repetition_penalty|1e-60", ""},
        {"{\"repetition_penalty\": 11}", "generation_config.repetition_penalty|11", ""},
        {"{\"top_k\": 2.5}", "generation_config.top_k|2.5", ""},
        {"{\"top_k\": 1e12}", "generation_config.top_k", ""},
        {"{\"top_k\": true}", "generation_config.top_k", ""},
        {"{\"do_sample\": 1, \"temperature\": 0.5}", "generation_config.do_sample", "t0.5"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct default_sampling s = {.top_k = 77};
        struct default_sampling_notes notes;
        char text[128];
        read_folder(rows[i].text, &s, &notes);
        describe(&s, text);
        if (notes.n != 1 || !names_all(notes.texts[0], rows[i].named))
            fail_msg("%s: %u notes, \"%s\" in: %s", rows[i].text, notes.n, rows[i].named,
                     notes.n ? notes.texts[0] : "");
        if (strcmp(text, rows[i].want) != 0)
            fail_msg("%s gives \"%s\", not \"%s\"", rows[i].text, text, rows[i].want);
    }
}

/* A file may have a wrong value for every key. */
static void test_folder_when_all_values_are_wrong_then_each_has_a_note(void **state)
{
    (void)state;
    struct default_sampling s;
    struct default_sampling_notes notes;
    char text[128];
    read_folder(
        "{\"do_sample\": 0, \"temperature\": -1, \"top_k\": 0.5, \"top_p\": 2, \"min_p\": -1, "
        "\"typical_p\": 9, \"repetition_penalty\": -1.7976931348623157e308, "
        "\"suppress_tokens\": 5}",
        &s, &notes);
    describe(&s, text);
    assert_string_equal(text, "");
    assert_int_equal(notes.n, DEFAULT_SAMPLING_MAX_NOTES);
    for (uint32_t i = 0; i < notes.n; i++)
        assert_in_range(strlen(notes.texts[i]), 20, DEFAULT_SAMPLING_NOTE_BYTES - 2);
}

/* Symptom: Gemma 4 drew the ends of images and sounds in answers of text alone. */
static void test_folder_when_tokens_are_suppressed_then_their_ids_are_read(void **state)
{
    (void)state;
    struct default_sampling s;
    struct default_sampling_notes notes;
    char text[2048] = "{\"suppress_tokens\": [0";
    read_folder("{\"suppress_tokens\": [258883, 258882], \"top_k\": 64}", &s, &notes);
    assert_int_equal(notes.n, 0);
    assert_int_equal(s.n_suppressed, 2);
    assert_int_equal(s.suppressed_ids[0], 258883);
    assert_int_equal(s.suppressed_ids[1], 258882);
    assert_true(default_sampling_reads("generation_config.suppress_tokens"));
    read_folder("{\"suppress_tokens\": [-1, 7, 4294967296, 4294967295]}", &s, &notes);
    assert_int_equal(s.n_suppressed, 2);
    assert_int_equal(s.suppressed_ids[0], 7);
    assert_int_equal(s.suppressed_ids[1], UINT32_MAX);
    read_folder("{\"suppress_tokens\": []}", &s, &notes);
    assert_int_equal(s.n_suppressed + notes.n, 0);
    read_folder("{\"suppress_tokens\": null}", &s, &notes);
    assert_int_equal(s.n_suppressed + notes.n, 0);
    for (int i = 1; i <= DEFAULT_SAMPLING_MAX_SUPPRESSED; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ",%d", i);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "]}");
    read_folder(text, &s, &notes);
    assert_int_equal(s.n_suppressed, 0);
    assert_true(notes.n == 1 && names_all(notes.texts[0], "suppress_tokens|257|256"));
}

static void f32(struct gguf_writer *w, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    gguf_kv(w, key, GGUF_F32);
    gguf_u32(w, bits);
}

static void i32(struct gguf_writer *w, const char *key, int32_t value)
{
    gguf_kv(w, key, GGUF_I32);
    gguf_u32(w, (uint32_t)value);
}

/* Reads a file and ends the writer. */
static void read_gguf(struct gguf_writer *w, struct default_sampling *out,
                      struct default_sampling_notes *out_notes)
{
    struct checkpoint *c = NULL;
    struct error err;
    gguf_finish(w);
    if (gguf_open(w, &c, &err) != 0)
        fail_msg("%s", err.message);
    default_sampling_read(c, out, out_notes);
    checkpoint_close(c);
    gguf_writer_fini(w);
}

static void test_gguf_when_keys_are_given_then_they_are_the_defaults(void **state)
{
    (void)state;
    struct default_sampling s;
    struct default_sampling_notes notes;
    char text[128];
    struct gguf_writer w = {0};
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    read_gguf(&w, &s, &notes);
    assert_int_equal(notes.n, 0);
    describe(&s, text);
    assert_string_equal(text, "");
    w = (struct gguf_writer){0};
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    gguf_kv_string(&w, "general.sampling.sequence", "edskypmxt");
    i32(&w, "general.sampling.top_k", 64);
    f32(&w, "general.sampling.top_p", 0.5f);
    f32(&w, "general.sampling.min_p", 0.25f);
    f32(&w, "general.sampling.temp", 0.75f);
    f32(&w, "general.sampling.penalty_repeat", 1.5f);
    i32(&w, "general.sampling.mirostat", 0);
    read_gguf(&w, &s, &notes);
    assert_int_equal(notes.n, 0);
    describe(&s, text);
    assert_string_equal(text, "t0.75 k64 p0.5 m0.25 r1.5");
}

static void test_gguf_when_a_value_is_wrong_then_a_note_names_its_key(void **state)
{
    (void)state;
    struct default_sampling s;
    struct default_sampling_notes notes;
    char text[128];
    struct gguf_writer w = {0};
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    f32(&w, "general.sampling.temp", -1);
    read_gguf(&w, &s, &notes);
    assert_int_equal(notes.n, 1);
    describe(&s, text);
    assert_string_equal(text, "");
    assert_true(names_all(notes.texts[0], "general.sampling.temp|-1"));
    w = (struct gguf_writer){0};
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    gguf_kv_string(&w, "general.sampling.top_p", "0.5");
    read_gguf(&w, &s, &notes);
    assert_int_equal(notes.n, 1);
    describe(&s, text);
    assert_string_equal(text, "");
    assert_true(names_all(notes.texts[0], "general.sampling.top_p"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_folder_when_fields_are_given_then_they_are_the_defaults),
        TEST(test_folder_when_a_value_is_wrong_then_a_note_names_its_key),
        TEST(test_folder_when_all_values_are_wrong_then_each_has_a_note),
        TEST(test_folder_when_tokens_are_suppressed_then_their_ids_are_read),
        cmocka_unit_test(test_gguf_when_keys_are_given_then_they_are_the_defaults),
        cmocka_unit_test(test_gguf_when_a_value_is_wrong_then_a_note_names_its_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
