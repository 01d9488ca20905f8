/* Tests of the table of roles. The table is compared with the handler tables at the start, and
 * gives each role's permissions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/service/access.h"
#include "manager/service/service.h"
#include "tests/support/names.h"

static void test_every_rpc_has_a_row(void **state)
{
    struct rpc_service services[SERVICE_COUNT];
    struct error err;
    (void)state;
    service_tables(NULL, services);
    assert_int_equal(access_check_roles(services, SERVICE_COUNT, &err), 0);
}

static void test_an_rpc_without_a_row_is_named(void **state)
{
    static const struct rpc_method more[] = {{"GetModel", RPC_SHAPE_UNARY, rpc_unimplemented},
                                             {"FormatDisk", RPC_SHAPE_UNARY, rpc_unimplemented}};
    struct rpc_service services[SERVICE_COUNT];
    struct error err;
    (void)state;
    service_tables(NULL, services);
    services[0].methods = more;
    services[0].n_methods = 2;
    assert_int_equal(access_check_roles(services, SERVICE_COUNT, &err), STATUS_FAILED_PRECONDITION);
    assert_true(names_all(err.message, "sluice.manager.v1.ModelManager/FormatDisk"));
    assert_int_equal(access_role_needed("/sluice.manager.v1.ModelManager/FormatDisk"), ROLE_NONE);
}

static void test_a_row_without_its_rpc_is_named(void **state)
{
    struct rpc_service services[SERVICE_COUNT];
    struct error err;
    (void)state;
    service_tables(NULL, services);
    services[0].n_methods--;
    assert_int_equal(access_check_roles(services, SERVICE_COUNT, &err), STATUS_FAILED_PRECONDITION);
}

static void test_roles_hold_one_another(void **state)
{
    static const enum role all[] = {ROLE_NONE, ROLE_INFERENCE, ROLE_VIEWER, ROLE_OPERATOR,
                                    ROLE_ADMIN};
    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 2; k < 5; k++)
            assert_int_equal(role_may(all[i], all[k]), i >= k);
    for (size_t i = 0; i < 5; i++) { /* not even an admin passes a need of NONE or INFERENCE */
        assert_false(role_may(all[i], ROLE_NONE));
        assert_false(role_may(all[i], ROLE_INFERENCE));
    }
    assert_false(role_may((enum role)99, ROLE_VIEWER));
    assert_int_equal(
        access_role_needed("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
        ROLE_VIEWER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rpc_has_a_row),
        cmocka_unit_test(test_an_rpc_without_a_row_is_named),
        cmocka_unit_test(test_a_row_without_its_rpc_is_named),
        cmocka_unit_test(test_roles_hold_one_another),
    };
    return cmocka_run_group_tests_name("roles", tests, NULL, NULL);
}
