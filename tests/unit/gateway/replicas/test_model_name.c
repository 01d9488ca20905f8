/* Tests of model_name.h: the text of a name, and the model of a request without a name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/replicas/model_name.h"
#include "tests/unit/base/support_cmocka.h"

enum { MAX_ROUTES = 24 };

#define SIXTY_FOUR "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Makes a table with a route for each model, "a b". A model that begins with "-" is not loaded. */
static struct route_table *make(const char *models)
{
    Sluice__Manager__V1__RouteTable message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    static char names[MAX_ROUTES][80];
    route rows[MAX_ROUTES], *list[MAX_ROUTES];
    struct route_table *table;
    struct error err;
    size_t n = 0;
    for (const char *at = models; *at && n < MAX_ROUTES; n++) {
        bool loaded = *at != '-';
        at += !loaded;
        snprintf(names[n], sizeof(names[n]), "%.*s", (int)strcspn(at, " "), at);
        at += strcspn(at, " ");
        at += strspn(at, " ");
        rows[n] = (route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[n].model = names[n];
        rows[n].sequence = n + 1;
        rows[n].loaded = loaded;
        list[n] = &rows[n];
    }
    message.routes = list;
    message.n_routes = n;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    return table;
}

static void test_a_name_is_split_at_the_first_colon(void **state)
{
    (void)state;
    static const struct {
        const char *text, *model, *version; /* model NULL: refused */
    } rows[] = {
        {"a", "a", ""},
        {"a:1", "a", "1"},
        {"a:", "a", ""},
        {"a:1:2", "a", "1:2"},
        {SIXTY_FOUR ":" SIXTY_FOUR, SIXTY_FOUR, SIXTY_FOUR},
        {"", NULL, NULL},
        {":1", NULL, NULL},
        {SIXTY_FOUR "x", NULL, NULL},
        {"a:" SIXTY_FOUR "x", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct model_name name = {.model = "before", .version = "before"};
        struct error err;
        int rc = model_name_read(rows[i].text, "the-field", &name, &err);
        assert_int_equal(rc, rows[i].model ? 0 : STATUS_INVALID_ARGUMENT);
        assert_string_equal(name.model, rows[i].model ? rows[i].model : "before");
        assert_string_equal(name.version, rows[i].version ? rows[i].version : "before");
        if (rc)
            assert_string_equal(err.field, "the-field");
    }
}

static void test_without_a_name_the_only_loaded_model_is_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *models, *text, *model;
        int rc;
    } rows[] = {
        {"a", NULL, "a", 0},
        {"a a -b", NULL, "a", 0},
        {"a b", "b", "b", 0},
        {"a b", "c", "c", 0}, /* refused later, as for any request */
        {"a b", NULL, NULL, STATUS_INVALID_ARGUMENT},
        {"a b", "", NULL, STATUS_INVALID_ARGUMENT},
        {"-a", NULL, NULL, STATUS_FAILED_PRECONDITION},
        {"", NULL, NULL, STATUS_FAILED_PRECONDITION},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct route_table *table = make(rows[i].models);
        struct model_name name = {.model = ""};
        struct error err;
        error_clear(&err);
        assert_int_equal(model_name_choose(table, rows[i].text, "f", &name, &err), rows[i].rc);
        if (!rows[i].rc)
            assert_string_equal(name.model, rows[i].model);
        if (rows[i].rc == STATUS_INVALID_ARGUMENT)
            assert_string_equal(err.field, "f");
        if (rows[i].rc == STATUS_FAILED_PRECONDITION)
            assert_int_equal(err.reason, REASON_MODEL_NOT_LOADED);
        route_table_release(table);
    }
}

static void test_a_route_is_found_by_model_and_version(void **state)
{
    (void)state;
    static const struct {
        bool loaded;
        const char *model, *version;
        bool found;
    } rows[] = {{true, "a", "", true},
                {true, "a", "1", true},
                {true, "a", "2", false},
                {true, "b", "1", false},
                {false, "a", "1", false}};
    static char model[] = "a", version[] = "1";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        route r = SLUICE__MANAGER__V1__ROUTE__INIT;
        r.model = model;
        r.version = version;
        r.loaded = rows[i].loaded;
        assert_int_equal(model_name_is_loaded(&r, rows[i].model, rows[i].version), rows[i].found);
    }
}

/* The text must fit into an error, however many models there are and however long their names are.
 */
static void test_the_list_names_each_model_once_and_counts_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *models, *text;
    } rows[] = {
        {"", "no model is loaded"},
        {"b a b -c", "the loaded models are \"a\", \"b\""},
        {"i h g f e d c b a", "the loaded models are \"a\", \"b\", \"c\", \"d\", \"e\", \"f\", "
                              "\"g\", \"h\" and 1 more"},
        {"1" SIXTY_FOUR " 2" SIXTY_FOUR " 3" SIXTY_FOUR " 4" SIXTY_FOUR " 5" SIXTY_FOUR
         " 6" SIXTY_FOUR,
         "the loaded models are \"1" SIXTY_FOUR "\", \"2" SIXTY_FOUR "\", \"3" SIXTY_FOUR
         "\", \"4" SIXTY_FOUR "\" and 2 more"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct route_table *table = make(rows[i].models);
        struct strbuf out = {0};
        size_t n;
        const route **list = model_name_loaded(table, &n);
        assert_non_null(list);
        model_name_write_list(list, n, &out);
        assert_string_equal(strbuf_str(&out), rows[i].text);
        free(list);
        strbuf_fini(&out);
        route_table_release(table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_is_split_at_the_first_colon),
        cmocka_unit_test(test_without_a_name_the_only_loaded_model_is_chosen),
        cmocka_unit_test(test_a_route_is_found_by_model_and_version),
        cmocka_unit_test(test_the_list_names_each_model_once_and_counts_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
