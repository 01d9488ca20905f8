#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "server/gateway/route_table.h"
#include "tests/unit/base/support_cmocka.h"

typedef Sluice__Manager__V1__RouteTable table_message;

enum { MAX = 8 };
static route rows[MAX];
static route *list[MAX];

/* A table of rows "model version weight default loaded". */
static struct route_table *make(size_t n, const char *const (*spec)[2], const int (*flags)[3])
{
    table_message message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    struct route_table *table;
    struct error err;
    for (size_t i = 0; i < n; i++) {
        rows[i] = (route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[i].model = (char *)(uintptr_t)spec[i][0];
        rows[i].version = (char *)(uintptr_t)spec[i][1];
        rows[i].traffic_weight = (uint32_t)flags[i][0];
        rows[i].is_default = flags[i][1];
        rows[i].loaded = flags[i][2];
        rows[i].sequence = i;
        list[i] = &rows[i];
    }
    message.generation = 42;
    message.routes = list;
    message.n_routes = n;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    return table;
}

static void test_named_version_and_its_errors(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}, {"m", "2"}};
    static const int flags[][3] = {{0, 0, 1}, {0, 0, 0}};
    struct route_table *table = make(2, spec, flags);
    const route *found;
    struct error err;
    assert_int_equal(route_table_pick(table, "m", "1", "", 0, &found, &err), 0);
    assert_string_equal(found->version, "1");
    assert_int_equal(route_table_pick(table, "m", "2", "", 0, &found, &err),
                     STATUS_FAILED_PRECONDITION);
    assert_string_equal(err.reason, "MODEL_NOT_LOADED");
    assert_int_equal(route_table_pick(table, "m", "3", "", 0, &found, &err), STATUS_NOT_FOUND);
    assert_string_equal(err.reason, "VERSION_NOT_FOUND");
    assert_int_equal(route_table_pick(table, "x", "", "", 0, &found, &err), STATUS_NOT_FOUND);
    assert_string_equal(err.reason, "MODEL_NOT_FOUND");
    assert_int_equal(route_table_pick(table, "m", "", "", 0, &found, &err), 0);
    assert_string_equal(found->version, "1"); /* the loaded one, though registered first */
    route_table_release(table);
}

static void test_weights_share_the_draws_in_their_ratio(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}, {"o", "9"}, {"m", "2"}, {"m", "3"}};
    static const int flags[][3] = {{1, 0, 1}, {5, 0, 1}, {3, 0, 1}, {7, 0, 0}};
    struct route_table *table = make(4, spec, flags);
    int n1 = 0, n2 = 0;
    for (uint64_t draw = 0; draw < 400; draw++) {
        const route *found;
        struct error err;
        assert_int_equal(route_table_pick(table, "m", "", "", draw, &found, &err), 0);
        n1 += strcmp(found->version, "1") == 0;
        n2 += strcmp(found->version, "2") == 0;
    }
    assert_int_equal(n1, 100);
    assert_int_equal(n2, 300);
    route_table_release(table);
}

static void test_table_survives_the_disk(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}};
    static const int flags[][3] = {{0, 1, 1}};
    char path[] = "/tmp/sluice-routes-XXXXXX";
    struct route_table *table = make(1, spec, flags), *back;
    struct error err;
    int fd = mkstemp(path);
    assert_int_equal(route_table_save(table, path, &err), 0);
    assert_int_equal(route_table_load(path, &back, &err), 0);
    assert_int_equal(route_table_message(back)->generation, 42);
    assert_string_equal(route_table_message(back)->routes[0]->model, "m");
    route_table_release(back);
    assert_int_equal(truncate(path, 3), 0);
    assert_int_equal(route_table_load(path, &back, &err), STATUS_INVALID_ARGUMENT);
    close(fd);
    unlink(path);
    assert_int_equal(route_table_load(path, &back, &err), STATUS_NOT_FOUND);
    assert_true(route_table_save(table, "/proc/no/such", &err) < 0);
    route_table_release(table);
    route_table_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_version_and_its_errors),
        cmocka_unit_test(test_weights_share_the_draws_in_their_ratio),
        cmocka_unit_test(test_table_survives_the_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
