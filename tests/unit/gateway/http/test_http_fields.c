/* Tests of http_fields.h: how a table reads an object, and how errors and ignored fields are named.
 * The bodies of the surfaces have tests of their own. */
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/http/http_fields.h"
#include "tests/unit/base/support_cmocka.h"

enum { FIRST = 1, SECOND = 2 };

struct item {
    char *text;
    uint32_t count;
};

struct target {
    bool is_on;
    protobuf_c_boolean flag, has_flag, has_count, has_big, has_share, has_item;
    uint32_t count;
    uint64_t big;
    float share;
    char *text, *json;
    char **words;
    size_t n_words;
    uint32_t *ids;
    size_t n_ids;
    struct item items[2];
    size_t n_items;
};

static const struct http_field item_fields[] = {
    {"text", HTTP_FIELD(struct item, text)},
    {"count", HTTP_FIELD(struct item, count)},
};

static const struct http_table item_table = {HTTP_TABLE(item_fields)};

static int read_item(struct http_fields *r, const struct http_field *field)
{
    struct target *target = r->out;
    (void)field;
    if (target->n_items == 2)
        return http_fields_bad(r, "is too much");
    return http_fields_read(r, &item_table, &target->items[target->n_items++]);
}

static int read_items(struct http_fields *r, const struct http_field *field)
{
    int rc = http_fields_list(r, field, "must be a list", read_item);
    return rc || r->body.cursor.depth == 1 ? rc : http_fields_bad(r, "is at the wrong depth");
}

static int read_other(struct http_fields *r, const struct http_field *field)
{
    struct target *target = r->out;
    return field->name[0] == 'x' ? http_body_u32(&r->body, r->label, &target->count)
                                 : http_fields_ignore(r, field);
}

#define AT(member)  HTTP_FIELD(struct target, member)
#define HAS(member) HTTP_FIELD_HAS(struct target, , member)

static const struct http_field flat_fields[] = {{"share", HAS(share)}};

static const struct http_table flat = {HTTP_TABLE(flat_fields), .is_flat = true,
                                       .other = read_other};
static const struct http_table nested = {HTTP_TABLE(flat_fields)};

static const struct http_field fields[] = {
    {"on", AT(is_on)},
    {"flag", HAS(flag)},
    {"count", HAS(count)},
    {"number", HAS(count)},
    {"big", HAS(big)},
    {"text", AT(text)},
    {"label", AT(text)},
    {"words", HTTP_FIELD_LIST(struct target, , words)},
    {"ids", HTTP_FIELD_LIST(struct target, , ids)},
    {"json", http_fields_json, .at = offsetof(struct target, json)},
    {"items", read_items, .has = offsetof(struct target, has_item)},
    {"flat", http_fields_object, .table = &flat},
    {"nested", http_fields_object, .table = &nested},
    {"first", AT(is_on), .paths = FIRST},
    {"skipped", http_fields_skip, .at = 0},
    {"refused", http_fields_refuse, .neutral = 7},
};

static const struct http_table table = {HTTP_TABLE(fields)};

static int read_body(const char *text, unsigned path, bool is_strict, struct target *out,
                     struct arena *arena, struct strbuf *ignored, struct error *err)
{
    struct http_fields r = {.body = {.arena = arena, .err = err},
                            .ignored = ignored,
                            .is_strict = is_strict,
                            .path = path,
                            .out = out};
    *out = (struct target){.n_items = 0};
    arena_init(arena, 0, 0);
    strbuf_init(ignored, 0);
    error_clear(err);
    return http_fields_read_body(&r, text, strlen(text), &table);
}

static void test_each_row_sets_its_place(void **state)
{
    static const char body[] =
        "{\"on\":true,\"flag\":false,\"count\":3.0,\"number\":3,\"big\":18446744073709551615,"
        "\"text\":\"a\",\"label\":\"a\",\"words\":[\"b\",\"c\"],\"ids\":[5],\"json\":{\"x\": 1},"
        "\"items\":[{\"text\":\"d\"},{\"count\":9,\"text\":null}],\"flat\":{\"share\":0.5},"
        "\"skipped\":{\"on\":1},\"refused\":7}";
    struct target t;
    struct arena arena;
    struct strbuf ignored;
    struct error err;
    (void)state;
    if (read_body(body, FIRST, true, &t, &arena, &ignored, &err) != 0)
        fail_msg("%s", err.message);
    assert_true(t.is_on && t.has_flag && !t.flag && t.has_count && t.has_big && t.has_share);
    assert_int_equal(t.count, 3);
    assert_true(t.big == UINT64_MAX && t.share == 0.5f);
    assert_string_equal(t.text, "a");
    assert_int_equal(t.n_words, 2);
    assert_string_equal(t.words[1], "c");
    assert_int_equal(t.n_ids, 1);
    assert_int_equal(t.ids[0], 5);
    assert_string_equal(t.json, "{\"x\": 1}");
    assert_true(t.has_item && t.n_items == 2);
    assert_string_equal(t.items[0].text, "d");
    assert_int_equal(t.items[1].count, 9);
    strbuf_fini(&ignored);
    arena_fini(&arena);
}

/* A null counts as absent: the flag of the field stays off. */
static void test_null_sets_nothing(void **state)
{
    struct target t;
    struct arena arena;
    struct strbuf ignored;
    struct error err;
    (void)state;
    assert_int_equal(read_body("{\"count\":null,\"items\":null,\"flat\":null,\"foo\":null}", FIRST,
                               true, &t, &arena, &ignored, &err),
                     0);
    assert_false(t.has_count || t.has_item || t.has_share);
    strbuf_fini(&ignored);
    arena_fini(&arena);
}

/* Each row has a body, the status and the field of its error, and the names of ignored fields. */
static const struct {
    unsigned path;
    bool is_strict;
    int status;
    const char *field, *ignored, *body;
} rows[] = {
    {FIRST, false, 0, "", "foo, items[].foo, bar",
     "{\"foo\":1,\"foo\":2,\"items\":[{\"foo\":1}],"
     "\"flat\":{\"bar\":1,\"x1\":2,\"x1\":3}}"},
    {FIRST, true, STATUS_INVALID_ARGUMENT, "foo", "", "{\"foo\":1}"},
    {FIRST, true, STATUS_INVALID_ARGUMENT, "items[].foo", "", "{\"items\":[{\"foo\":1}]}"},
    {FIRST, false, 0, "", "a[1]", "{\"a[1]\":1}"},
    {FIRST, false, 0, "", "", "{\"first\":true}"},
    {SECOND, false, 0, "", "first", "{\"first\":true}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "count", "", "{\"count\":1,\"on\":true,\"count\":1}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "count", "", "{\"count\":null,\"count\":1}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "number", "", "{\"count\":1,\"number\":2}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "text", "", "{\"label\":\"a\",\"text\":\"b\"}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "skipped", "", "{\"skipped\":1,\"skipped\":1}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "nested", "", "{\"nested\":{},\"nested\":{}}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "nested.share", "",
     "{\"nested\":{\"share\":1,\"share\":1}}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "share", "", "{\"flat\":{\"share\":\"a\"}}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "flat", "", "{\"flat\":3}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "items", "", "{\"items\":{}}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "items[1]", "", "{\"items\":[{},3]}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "items[2]", "", "{\"items\":[{},{\"count\":1},{}]}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "items[1].text", "",
     "{\"items\":[{\"text\":\"a\"},{\"text\":\"a\",\"text\":\"a\"}]}"},
    /* the label of a field after an object */
    {FIRST, false, STATUS_INVALID_ARGUMENT, "count", "",
     "{\"nested\":{\"share\":1},\"items\":[{\"count\":1}],\"flat\":{},\"count\":-1}"},
    {FIRST, false, 0, "", "", "{\"refused\":{}}"},
    {FIRST, false, 0, "", "", "{\"refused\":-0.0}"},
    {FIRST, false, STATUS_UNIMPLEMENTED, "refused", "", "{\"refused\":8}"},
    {FIRST, false, STATUS_UNIMPLEMENTED, "refused", "", "{\"refused\":\"a\"}"},
    {FIRST, false, STATUS_INVALID_ARGUMENT, "", "", "{\"on\":true} 1"},
};

static void test_errors_and_ignored_fields_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct target t;
        struct arena arena;
        struct strbuf ignored;
        struct error err;
        int rc =
            read_body(rows[i].body, rows[i].path, rows[i].is_strict, &t, &arena, &ignored, &err);
        if (rc != rows[i].status || strcmp(err.field, rows[i].field) != 0)
            fail_msg("%s: status %d, field \"%s\"", rows[i].body, rc, err.field);
        assert_string_equal(strbuf_str(&ignored), rows[i].ignored);
        strbuf_fini(&ignored);
        arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_row_sets_its_place),
        cmocka_unit_test(test_null_sets_nothing),
        cmocka_unit_test(test_errors_and_ignored_fields_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
