/* The model that answers a request without a model, and the page that describes it. */
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/replicas/route_table.h"
#include "server/gateway/tgi/tgi_info.h"
#include "server/gateway/tgi/tgi_model.h"
#include "tests/unit/base/support_cmocka.h"

enum { MAX_ROUTES = 4 };

/* Makes a table of "model:version" words; a word that begins with "-" is not loaded. */
static struct route_table *make(const char *const words[MAX_ROUTES])
{
    Sluice__Manager__V1__RouteTable message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    Sluice__V1__ModelInfo info = SLUICE__V1__MODEL_INFO__INIT;
    Sluice__V1__ModelLimits limits = SLUICE__V1__MODEL_LIMITS__INIT;
    route rows[MAX_ROUTES], *list[MAX_ROUTES];
    static char names[MAX_ROUTES][16];
    static uint32_t ends[] = {2, 5};
    static char digest[] = "abc", quantization[] = "Q4_1";
    struct route_table *table;
    struct error err;
    info.eos_token_ids = ends;
    info.n_eos_token_ids = 2;
    info.context_length = 100;
    info.weights_digest = digest;
    info.quantization = quantization;
    limits.max_prompt_tokens = 99;
    limits.max_choices = 4;
    limits.max_stop_strings = 1000;
    info.limits = &limits;
    size_t n = 0;
    for (; n < MAX_ROUTES && words[n]; n++) {
        const char *word = words[n] + (words[n][0] == '-');
        size_t n_name = strcspn(word, ":");
        memcpy(names[n], word, strlen(word) + 1);
        names[n][n_name] = '\0';
        rows[n] = (route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[n].model = names[n];
        rows[n].version = names[n] + n_name + 1;
        rows[n].loaded = words[n][0] != '-';
        rows[n].info = &info;
        list[n] = &rows[n];
    }
    message.routes = list;
    message.n_routes = n;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    return table;
}

static const struct {
    const char *words[MAX_ROUTES], *header, *name, *version;
    int status;
} rows[] = {
    {{"a:1"}, NULL, "a", "", 0},
    {{"a:1", "a:2", "-b:1"}, NULL, "a", "", 0},
    {{"a:1", "b:1"}, NULL, "", "", STATUS_INVALID_ARGUMENT},
    {{"-a:1"}, NULL, "", "", STATUS_UNAVAILABLE},
    {{NULL}, NULL, "", "", STATUS_UNAVAILABLE},
    {{"a:1", "b:1"}, "b", "b", "", 0},
    {{"a:1", "b:1"}, "b:7", "b", "7", 0},
    {{"a:1"}, "", "", "", STATUS_INVALID_ARGUMENT},
};

static void test_the_header_or_the_only_loaded_model_decides(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct route_table *table = make(rows[i].words);
        struct tgi_model model = {.n_end_ids = 0};
        struct error err;
        error_clear(&err);
        int rc = tgi_model_choose(table, rows[i].header, &model, &err);
        if (rc != rows[i].status || strcmp(model.name.model, rows[i].name) != 0 ||
            strcmp(model.name.version, rows[i].version) != 0)
            fail_msg("row %zu: %d, \"%s\" \"%s\"", i, rc, model.name.model, model.name.version);
        if (rc == STATUS_INVALID_ARGUMENT)
            assert_string_equal(err.field, "X-Sluice-Model");
        if (rc == STATUS_UNAVAILABLE)
            assert_true(err.retry_after_ms > 0);
        route_table_release(table);
    }
}

static void test_the_end_tokens_are_those_of_the_model(void **state)
{
    static const char *const words[MAX_ROUTES] = {"a:1"};
    struct route_table *table = make(words);
    struct tgi_model model;
    struct error err;
    (void)state;
    assert_int_equal(tgi_model_choose(table, NULL, &model, &err), 0);
    assert_int_equal(model.n_end_ids, 2);
    assert_int_equal(model.end_ids[1], 5);
    route_table_release(table);
}

static void test_info_has_the_lower_limits_of_server_and_model(void **state)
{
    static const char *const words[MAX_ROUTES] = {"a:1"};
    struct route_table *table = make(words);
    struct tgi_model model = {.name = {.model = "a"}};
    struct gateway_limits limits;
    struct strbuf out = {0};
    struct error err;
    (void)state;
    gateway_limits_init(&limits);
    limits.max_concurrent = 7;
    assert_int_equal(tgi_info_write(table, &model, &limits, &out, &err), 0);
    assert_string_equal(strbuf_str(&out),
                        "{\"model_id\":\"a\",\"model_sha\":\"abc\",\"model_dtype\":\"Q4_1\","
                        "\"model_pipeline_tag\":\"text-generation\",\"max_concurrent_requests\":7,"
                        "\"max_best_of\":4,\"max_stop_sequences\":4,\"max_input_tokens\":99,"
                        "\"max_total_tokens\":100,\"max_client_batch_size\":1,\"router\":"
                        "\"sluice-server\",\"version\":\"" SLUICE_VERSION
                        "\",\"sha\":null,\"docker_label\":null}");
    model = (struct tgi_model){.name = {.model = "b"}};
    assert_int_equal(tgi_info_write(table, &model, &limits, &out, &err), STATUS_NOT_FOUND);
    strbuf_fini(&out);
    route_table_release(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_header_or_the_only_loaded_model_decides),
        cmocka_unit_test(test_the_end_tokens_are_those_of_the_model),
        cmocka_unit_test(test_info_has_the_lower_limits_of_server_and_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
