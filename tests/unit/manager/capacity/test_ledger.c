/* Tests of the ledger: the claims of replicas on several devices, shared weights, and replicas
 * without a process. No worker runs, so no host memory is resident. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/capacity/ledger.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

static struct catalog catalog;
static struct context context = {.catalog = &catalog};
static struct fleet fleet;

static void put(enum table table, ProtobufCMessage *message)
{
    struct row *row = row_create(table, message, 0);
    assert_non_null(row);
    assert_int_equal(catalog_put(&catalog, row), 0);
    row_release(row);
}

static void put_group(const char *name, const char *const devices[2])
{
    pb_group *group = MESSAGE_NEW(pb_group, sluice__manager__v1__device_group__descriptor);
    assert_true(message_set(&group->name, name));
    for (size_t i = 0; i < 2; i++)
        assert_true(message_append_text(&group->n_devices, &group->devices, devices[i]));
    put(TABLE_DEVICE_GROUP, &group->base);
    pb_deployment *deployment =
        MESSAGE_NEW(pb_deployment, sluice__manager__v1__deployment__descriptor);
    assert_true(message_set(&deployment->model, "m") && message_set(&deployment->version, "1") &&
                message_set(&deployment->device_group, name));
    deployment->n_replicas = 2;
    put(TABLE_DEPLOYMENT, &deployment->base);
}

static struct slot *put_replica(const char *id, const char *group, enum replica_state state)
{
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    assert_true(message_set(&replica->id, id) && message_set(&replica->model, "m") &&
                message_set(&replica->version, "1") && message_set(&replica->device_group, group));
    replica->state = (Sluice__Manager__V1__ReplicaState)state;
    put(TABLE_REPLICA, &replica->base);
    struct slot *slot = slot_ensure(&fleet, id);
    assert_non_null(slot);
    return slot;
}

/* The status of a ready worker: planned and held bytes on two devices. */
static void run(struct slot *slot, const char *const devices[2], const uint64_t planned[2],
                const uint64_t held[2])
{
    pb_status *status = MESSAGE_NEW(pb_status, sluice__worker__v1__worker_status__descriptor);
    status->state = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
    for (size_t i = 0; i < 2; i++) {
        pb_memory *memory = MESSAGE_NEW(pb_memory, sluice__v1__device_memory__descriptor);
        assert_true(message_set(&memory->device, devices[i]));
        memory->expected_bytes = planned[i];
        memory->after_bytes = held[i];
        assert_true(message_append(&status->n_memory, &status->memory, memory));
    }
    slot->phase = SLOT_SERVING;
    slot_set_status(slot, status);
}

/* Packed weights that all replicas with this id share. */
static void share(struct slot *slot, uint64_t n_bytes, uint64_t id)
{
    Sluice__Worker__V1__PackedMemory *packed = MESSAGE_NEW(
        Sluice__Worker__V1__PackedMemory, sluice__worker__v1__packed_memory__descriptor);
    packed->bytes = n_bytes;
    packed->inode = id;
    packed->sealed = 1;
    assert_true(message_append(&slot->run.status->n_packed, &slot->run.status->packed, packed));
}

static const char *const gpus[2] = {"cuda:0", "cuda:1"}, *const nodes[2] = {"cpu:0", "cpu:1"};

static int setup(void **state)
{
    struct error err;
    (void)state;
    catalog = (struct catalog){.generation = 0};
    fleet_init(&fleet, &context);
    put_group("gpus", gpus);
    put_group("nodes", nodes);
    return weights_create(&fleet, &fleet.weights, &err);
}

static int teardown(void **state)
{
    (void)state;
    weights_destroy(fleet.weights);
    fleet_fini(&fleet);
    catalog_fini(&catalog);
    return 0;
}

static struct ledger_sum sum_of(const char *device, const char *but_id)
{
    return ledger_sum(&fleet, &(struct ledger_query){.device = device, .but_id = but_id});
}

static void test_a_replica_on_two_gpus_has_a_claim_on_each(void **state)
{
    (void)state;
    run(put_replica("r1", "gpus", REPLICA_READY), gpus, (uint64_t[]){100, 60},
        (uint64_t[]){100, 0});
    struct ledger_sum first = sum_of("cuda:0", NULL), second = sum_of("cuda:1", NULL);
    assert_int_equal(first.taken_bytes, 100);
    assert_int_equal(first.held_bytes, 100);
    assert_int_equal(first.promised_bytes, 0);
    assert_int_equal(second.taken_bytes, 60);
    assert_int_equal(second.held_bytes, 0);
    assert_int_equal(second.promised_bytes, 60);
    assert_int_equal(first.n_processes, 1);
    assert_int_equal(second.n_processes, 1);
    assert_int_equal(sum_of("cuda:1", "r1").taken_bytes, 0);
    assert_int_equal(sum_of(NULL, NULL).taken_bytes, 0);
}

static void test_a_replica_on_two_nodes_has_a_part_on_each(void **state)
{
    (void)state;
    run(put_replica("r1", "nodes", REPLICA_READY), nodes, (uint64_t[]){51, 50}, (uint64_t[]){0, 0});
    assert_int_equal(sum_of("cpu:0", NULL).taken_bytes, 51);
    assert_int_equal(sum_of("cpu:1", NULL).taken_bytes, 50);
    assert_int_equal(sum_of(NULL, NULL).taken_bytes, 101);
    assert_int_equal(sum_of(NULL, NULL).promised_bytes, 101);
}

static void test_shared_weights_count_once_on_each_node(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct slot *slot = put_replica(i ? "r2" : "r1", "nodes", REPLICA_READY);
        run(slot, nodes, (uint64_t[]){50, 50}, (uint64_t[]){0, 0});
        share(slot, 80, 7);
    }
    assert_int_equal(sum_of(NULL, NULL).taken_bytes, 120);
    assert_int_equal(sum_of("cpu:0", NULL).taken_bytes, 60);
    assert_int_equal(sum_of("cpu:1", NULL).taken_bytes, 60);
    assert_int_equal(sum_of(NULL, "r1").taken_bytes, 100);
}

static void test_a_replica_to_come_has_no_size(void **state)
{
    (void)state;
    (void)put_replica("r1", "nodes", REPLICA_PENDING);
    (void)put_replica("r2", "gpus", REPLICA_PENDING);
    struct ledger_sum sum = sum_of(NULL, NULL);
    assert_int_equal(sum.n_unsized, 1); /* weights on GPUs take no host memory */
    assert_int_equal(sum.n_processes, 0);
    const pb_deployment *of = catalog_deployment(&catalog, "m", "1", "gpus");
    assert_int_equal(ledger_sum(&fleet, &(struct ledger_query){.of = of}).n_unsized, 0);
    assert_int_equal(sum_of(NULL, "r1").n_unsized, 0);
}

static void test_a_replica_that_died_keeps_its_claims(void **state)
{
    struct slot *slot = put_replica("r1", "gpus", REPLICA_PENDING);
    (void)state;
    slot->served.gpus = (struct slot_gpus){.gpus = {{"cuda:0", 40}, {"cuda:1", 60}}, .n = 2};
    slot->served.host_bytes = 9;
    struct ledger_sum gpu = sum_of("cuda:1", NULL), host = sum_of(NULL, NULL);
    assert_int_equal(gpu.taken_bytes, 60);
    assert_int_equal(gpu.promised_bytes, 60);
    assert_int_equal(gpu.n_processes, 1);
    assert_int_equal(sum_of("cuda:0", NULL).taken_bytes, 40);
    assert_int_equal(host.taken_bytes, 9);
    assert_int_equal(host.promised_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_replica_on_two_gpus_has_a_claim_on_each, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_replica_on_two_nodes_has_a_part_on_each, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_shared_weights_count_once_on_each_node, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_replica_to_come_has_no_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_replica_that_died_keeps_its_claims, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
