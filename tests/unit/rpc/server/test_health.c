/* grpc.health.v1 over a real socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/health.h"
#include "tests/unit/rpc/support_rpc.h"

#define HEALTH (&grpc__health__v1__health__descriptor)

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

static struct rpc_fixture fx;

static int setup(void **state)
{
    (void)state;
    rpc_fixture_start(&fx, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_fixture_stop(&fx);
    return 0;
}

/* Returns the health status of a name, or the negative status of the error. */
static int check(const char *name)
{
    char copy[300];
    struct error err;
    ProtobufCMessage *response = NULL;
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    snprintf(copy, sizeof(copy), "%s", name);
    request.service = copy;
    int status = rpc_client_unary(fx.client, HEALTH, "Check", &request.base, NULL, &response, &err);
    if (status == 0)
        status = (int)((Grpc__Health__V1__HealthCheckResponse *)response)->status;
    rpc_message_free(response);
    return status;
}

static void test_check_when_set_then_status_is_told(void **state)
{
    struct rpc_health *health = rpc_server_health(fx.server);
    (void)state;
    assert_int_equal(check(""), NOT_SERVING);
    assert_int_equal(check("liveness"), SERVING);
    assert_int_equal(check("model/smollm/1"), STATUS_NOT_FOUND);
    rpc_health_set(health, "", true);
    rpc_health_set(health, "model/smollm/1", true);
    assert_int_equal(check(""), SERVING);
    assert_int_equal(check("model/smollm/1"), SERVING);
    rpc_health_set(health, "model/smollm/1", false);
    assert_int_equal(check("model/smollm/1"), NOT_SERVING);
    rpc_health_forget(health, "model/smollm/1");
    assert_int_equal(check("model/smollm/1"), STATUS_NOT_FOUND);
}

static void test_list_when_names_are_set_then_all_are_listed(void **state)
{
    struct rpc_health *health = rpc_server_health(fx.server);
    Grpc__Health__V1__HealthListRequest request = GRPC__HEALTH__V1__HEALTH_LIST_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    (void)state;
    rpc_health_set(health, "a", true);
    rpc_health_set(health, "b", false);
    assert_int_equal(
        rpc_client_unary(fx.client, HEALTH, "List", &request.base, NULL, &message, &err), 0);
    const Grpc__Health__V1__HealthListResponse *response =
        (const Grpc__Health__V1__HealthListResponse *)message;
    unsigned n_found = 0;
    for (size_t i = 0; i < response->n_statuses; i++) {
        int expected = strcmp(response->statuses[i]->key, "a") == 0   ? SERVING
                       : strcmp(response->statuses[i]->key, "b") == 0 ? NOT_SERVING
                                                                      : 0;
        n_found += expected != 0 && (int)response->statuses[i]->value->status == expected;
    }
    assert_int_equal(n_found, 2);
    rpc_message_free(message);
    char name[24];
    for (int i = 0; i < 120; i++) {
        snprintf(name, sizeof(name), "many/%d", i);
        rpc_health_set(health, name, true);
    }
    assert_int_equal(
        rpc_client_unary(fx.client, HEALTH, "List", &request.base, NULL, &message, &err),
        STATUS_RESOURCE_EXHAUSTED);
}

static int next_status(struct rpc_reader *reader)
{
    ProtobufCMessage *message = NULL;
    struct error err;
    int status = rpc_reader_next(reader, &message, &err);
    if (status != 0)
        return status;
    assert_non_null(message);
    status = (int)((Grpc__Health__V1__HealthCheckResponse *)message)->status;
    rpc_message_free(message);
    return status;
}

static void test_watch_when_status_changes_then_each_change_is_told(void **state)
{
    static char name[] = "watched";
    struct rpc_health *health = rpc_server_health(fx.server);
    struct rpc_reader *reader = NULL, *other = NULL;
    struct error err;
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    (void)state;
    request.service = name;
    assert_int_equal(
        rpc_reader_open(fx.client, HEALTH, "Watch", &request.base, NULL, &reader, &err), 0);
    assert_int_equal(next_status(reader), SERVICE_UNKNOWN);
    rpc_health_set(health, name, true);
    assert_int_equal(next_status(reader), SERVING);
    assert_int_equal(rpc_reader_open(fx.client, HEALTH, "Watch", &request.base, NULL, &other, &err),
                     0);
    assert_int_equal(next_status(other), SERVING);
    rpc_health_set(health, name, true); /* no change: no message */
    rpc_health_set(health, name, false);
    assert_int_equal(next_status(reader), NOT_SERVING);
    assert_int_equal(next_status(other), NOT_SERVING);
    rpc_health_forget(health, name);
    assert_int_equal(next_status(reader), SERVICE_UNKNOWN);
    rpc_reader_close(other);
    rpc_health_set(health, name, true);
    assert_int_equal(next_status(reader), SERVING);
    rpc_server_drain(fx.server);
    assert_int_equal(next_status(reader), NOT_SERVING);
    rpc_health_set(health, name, true); /* too late */
    assert_int_equal(check(name), NOT_SERVING);
    /* A watch does not use up the grace. */
    int64_t start_ns = clock_now_ns();
    rpc_server_shutdown(fx.server, 10000);
    assert_true(clock_now_ns() - start_ns < 5 * NS_PER_S);
    assert_int_equal(next_status(reader), STATUS_UNAVAILABLE);
    rpc_reader_close(reader);
}

/* An orchestrator that asks for liveness must not kill a server that drains. */
static void test_liveness_when_the_server_drains_then_still_serving(void **state)
{
    (void)state;
    rpc_health_set(rpc_server_health(fx.server), "", true);
    rpc_health_shutdown(rpc_server_health(fx.server));
    assert_int_equal(check(""), NOT_SERVING);
    assert_int_equal(check("liveness"), SERVING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_check_when_set_then_status_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list_when_names_are_set_then_all_are_listed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_watch_when_status_changes_then_each_change_is_told,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_liveness_when_the_server_drains_then_still_serving,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
