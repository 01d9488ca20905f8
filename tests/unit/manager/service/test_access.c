/* Tests of the roles of commands: each RPC needs one, and each role has its permissions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "manager/service/access.h"
#include "manager/service/service.h"

static void test_every_rpc_has_a_role(void **state)
{
    struct rpc_service services[SERVICE_COUNT];
    char path[128];
    (void)state;
    service_tables(NULL, services);
    for (size_t i = 0; i < SERVICE_COUNT; i++) {
        const ProtobufCServiceDescriptor *descriptor = services[i].descriptor;
        assert_int_equal(services[i].n_methods, descriptor->n_methods);
        for (unsigned k = 0; k < descriptor->n_methods; k++) {
            snprintf(path, sizeof(path), "/%s/%s", descriptor->name, descriptor->methods[k].name);
            if (access_role_needed(path) < ROLE_VIEWER)
                fail_msg("%s has no role", path);
        }
    }
}

static void test_a_path_of_no_rpc_has_no_role(void **state)
{
    static const char *const paths[] = {"/sluice.manager.v1.ModelManager/FormatDisk",
                                        "/sluice.manager.v1.ModelManager/WatchRoutes",
                                        "/sluice.manager.v1.Routing/GetModel",
                                        "/sluice.manager.v1.ModelManager/",
                                        "sluice.manager.v1.ModelManager/GetModel",
                                        "/GetModel",
                                        ""};
    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(access_role_needed(paths[i]), ROLE_NONE);
    assert_int_equal(access_role_needed("/sluice.manager.v1.Routing/WatchRoutes"), ROLE_ADMIN);
    assert_int_equal(access_role_needed("/sluice.manager.v1.ModelManager/GetModel"), ROLE_VIEWER);
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
        cmocka_unit_test(test_every_rpc_has_a_role),
        cmocka_unit_test(test_a_path_of_no_rpc_has_no_role),
        cmocka_unit_test(test_roles_hold_one_another),
    };
    return cmocka_run_group_tests_name("roles", tests, NULL, NULL);
}
