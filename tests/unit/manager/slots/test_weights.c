/* Tests of the memory of packed weights on GPUs. A load shares no weights. The manager takes over,
 * keeps and frees the park copy of a worker. The worker is this process. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

#define SEALED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

enum { N_MEMORIES = WEIGHTS_MAX_RANKS + 1 };

/* Two replicas of m/1 on a GPU, r1 and r2, and two on CPUs, r3 and r4. */
static struct catalog catalog;
static struct context context = {.catalog = &catalog};
static struct fleet fleet;
static int memories[N_MEMORIES]; /* sealed memories of the worker */

static void put(enum table table, ProtobufCMessage *message)
{
    struct row *row = row_create(table, message, 0);
    assert_non_null(row);
    assert_int_equal(catalog_put(&catalog, row), 0);
    row_release(row);
}

static void put_deployment(const char *group, bool parked)
{
    pb_deployment *deployment =
        MESSAGE_NEW(pb_deployment, sluice__manager__v1__deployment__descriptor);
    assert_true(message_set(&deployment->model, "m") && message_set(&deployment->version, "1") &&
                message_set(&deployment->device_group, group));
    deployment->n_replicas = 2;
    deployment->tp = deployment->pp = 1;
    deployment->parked = parked;
    put(TABLE_DEPLOYMENT, &deployment->base);
}

static enum reason reason; /* failure reason of put_replica()'s FAILED replicas */

static void put_replica(const char *id, const char *group, enum replica_state state)
{
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    assert_true(message_set(&replica->id, id) && message_set(&replica->model, "m") &&
                message_set(&replica->version, "1") && message_set(&replica->device_group, group));
    replica->state = (Sluice__Manager__V1__ReplicaState)state;
    if (state == REPLICA_FAILED)
        assert_true(message_set(&replica->reason, reason_name(reason)));
    put(TABLE_REPLICA, &replica->base);
}

static void put_group(const char *name, const char *device)
{
    pb_group *group = MESSAGE_NEW(pb_group, sluice__manager__v1__device_group__descriptor);
    assert_true(message_set(&group->name, name) &&
                message_append_text(&group->n_devices, &group->devices, device));
    put(TABLE_DEVICE_GROUP, &group->base);
}

static int make_memory(int seals)
{
    int fd = memfd_create("sluice-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int setup(void **state)
{
    struct error err;
    (void)state;
    catalog = (struct catalog){.generation = 0};
    fleet_init(&fleet, &context);
    pb_version *version = MESSAGE_NEW(pb_version, sluice__manager__v1__model_version__descriptor);
    assert_true(message_set(&version->model, "m") && message_set(&version->version, "1"));
    put(TABLE_MODEL_VERSION, &version->base);
    put_group("gpu", "cuda:0");
    put_group("cpu", "cpu:0");
    put_deployment("gpu", true);
    put_deployment("cpu", false);
    put_replica("r1", "gpu", REPLICA_READY);
    put_replica("r2", "gpu", REPLICA_READY);
    put_replica("r3", "cpu", REPLICA_LOADING);
    put_replica("r4", "cpu", REPLICA_PENDING);
    for (size_t i = 0; i < N_MEMORIES; i++)
        memories[i] = make_memory(SEALED);
    return weights_create(&fleet, &fleet.weights, &err);
}

static int teardown(void **state)
{
    (void)state;
    weights_destroy(fleet.weights);
    fleet_fini(&fleet);
    catalog_fini(&catalog);
    for (size_t i = 0; i < N_MEMORIES; i++)
        close(memories[i]);
    return 0;
}

static uint64_t inode_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

static size_t count_open(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Reports the status of a serving GPU worker with a park copy of its weights in these memories. */
static bool tell(const char *replica_id, const int *fds, size_t n, int64_t inode_off)
{
    pb_status status = SLUICE__WORKER__V1__WORKER_STATUS__INIT;
    Sluice__Worker__V1__PackedMemory rows[N_MEMORIES], *list[N_MEMORIES];
    for (size_t i = 0; i < n; i++) {
        rows[i] = (Sluice__Worker__V1__PackedMemory)SLUICE__WORKER__V1__PACKED_MEMORY__INIT;
        rows[i].rank = (uint32_t)i;
        rows[i].fd = fds[i];
        rows[i].inode = inode_of(fds[i]) + (uint64_t)inode_off;
        rows[i].bytes = 4096;
        rows[i].sealed = true; /* a false claim: the manager checks the seal itself */
        list[i] = &rows[i];
    }
    status.state = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
    status.packed = list;
    status.n_packed = n;
    return weights_on_status(fleet.weights, replica_id, getpid(), &status);
}

/* Checks the descriptors that the replica inherits now. They are the manager's own descriptors of
 * these memories. */
static void assert_handed(const char *replica_id, const int *fds, size_t n)
{
    struct weights_fds handed;
    assert_true(weights_take(fleet.weights, replica_id, &handed));
    assert_int_equal(handed.n_fds, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_not_equal(handed.fds[i], fds[i]);
        assert_true(inode_of(handed.fds[i]) == inode_of(fds[i]));
    }
}

static void assert_nothing_kept(void)
{
    assert_false(weights_are_whole(fleet.weights, "r1"));
    assert_handed("r1", NULL, 0);
}

static void test_load_on_a_gpu_is_handed_nothing_and_nobody_waits_for_a_filler(void **state)
{
    struct weights_fds fds;
    (void)state;
    slot_ensure(&fleet, "r1")->busy = slot_ensure(&fleet, "r3")->busy = true;
    put_replica("r1", "gpu", REPLICA_LOADING);
    put_replica("r2", "gpu", REPLICA_PENDING);
    assert_handed("r1", NULL, 0);
    assert_handed("r2", NULL, 0);
    assert_true(weights_take(fleet.weights, "r3", &fds)); /* on CPUs, one replica loads for both */
    assert_int_equal(fds.n_fds, 1);
    assert_false(weights_take(fleet.weights, "r4", &fds));
    assert_false(tell("r1", NULL, 0, 0)); /* the worker serves and has packed nothing */
    assert_nothing_kept();
}

/* The earlier manager may have requested a copy from the adopted worker. A replica that starts
 * before the worker's status would load for nothing. */
static void test_load_waits_for_what_an_adopted_worker_has_yet_to_say(void **state)
{
    struct weights_fds fds;
    struct slot *slot = slot_ensure(&fleet, "r1");
    (void)state;
    slot->run.adopted = true;
    assert_false(weights_take(fleet.weights, "r2", &fds));
    assert_int_equal(fds.n_fds, 0);
    fleet.settled_timeout = true;
    assert_handed("r2", NULL, 0);
    fleet.settled_timeout = false;
    slot->settled = true;
    assert_handed("r2", NULL, 0);
    slot->settled = false;
    assert_true(tell("r1", memories, 1, 0));
    assert_handed("r2", memories, 1);
}

static void test_sealed_image_of_one_that_serves_is_taken_over(void **state)
{
    (void)state;
    assert_nothing_kept();
    assert_true(tell("r1", memories, 1, 0));
    assert_true(weights_are_whole(fleet.weights, "r1"));
    assert_true(weights_are_whole(fleet.weights, "r2")); /* a copy serves all replicas */
    assert_handed("r1", memories, 1);
    assert_handed("r2", memories, 1);
    assert_false(weights_are_whole(fleet.weights, "r3"));
    weights_ended(fleet.weights, "r1"); /* a whole copy does not depend on its worker */
    assert_handed("r1", memories, 1);
}

/* As with layers on the CPU: the memory of their ranks comes before the image. */
static void test_image_with_as_many_ranks_as_there_can_be_is_taken_over(void **state)
{
    (void)state;
    assert_true(tell("r1", memories, WEIGHTS_MAX_RANKS, 0));
    assert_handed("r2", memories, WEIGHTS_MAX_RANKS);
}

static void test_what_is_no_sealed_image_is_not_taken_over_and_leaves_nothing_open(void **state)
{
    static const int too_few[] = {0, F_SEAL_WRITE, F_SEAL_WRITE | F_SEAL_SHRINK,
                                  F_SEAL_GROW | F_SEAL_SHRINK};
    size_t n_open = count_open();
    (void)state;
    for (size_t i = 0; i < sizeof(too_few) / sizeof(too_few[0]); i++) {
        int fds[2] = {memories[0], make_memory(too_few[i])};
        assert_false(tell("r1", fds + 1, 1, 0));
        assert_false(tell("r1", fds, 2, 0)); /* a rank of two */
        close(fds[1]);
        assert_nothing_kept();
    }
    assert_false(tell("r1", memories, 1, 1)); /* the inode belongs to another memory */
    assert_false(tell("r1", memories, WEIGHTS_MAX_RANKS + 1, 0));
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_false(tell("r1", &file, 1, 0));
    close(file);
    assert_nothing_kept();
    assert_int_equal(count_open(), n_open);
    assert_true(tell("r1", memories, 1, 0)); /* a valid image is still taken over */
}

static void test_second_image_is_not_taken_while_one_is_held(void **state)
{
    (void)state;
    assert_true(tell("r1", memories, 1, 0));
    size_t n_open = count_open();
    assert_false(tell("r2", memories + 1, 1, 0));
    assert_false(tell("r1", memories + 1, 1, 0));
    assert_false(tell("r1", memories, 1, 0)); /* the same image again is no change */
    assert_handed("r1", memories, 1);
    assert_int_equal(count_open(), n_open);
}

/* A plan counts held CPU weights as memory that is already used. A held image of GPU weights still
 * needs memory on the GPU. */
static void test_image_is_no_memory_that_a_new_replica_need_not_take(void **state)
{
    (void)state;
    assert_true(tell("r1", memories, 1, 0));
    assert_true(tell("r3", memories + 1, 1, 0));
    assert_false(weights_are_held(fleet.weights, "m", "1", "gpu", 1, 1, ""));
    assert_true(weights_are_held(fleet.weights, "m", "1", "cpu", 1, 1, ""));
}

/* An image takes host memory while no parked worker has mapped it, so it is reported. Held CPU
 * weights are not. */
static void test_images_that_are_held_are_told_and_no_weights_of_cpus(void **state)
{
    uint64_t n_bytes, id;
    (void)state;
    assert_true(tell("r3", memories, 1, 0));
    assert_false(weights_park_copy_at(fleet.weights, 0, &n_bytes, &id));
    assert_true(tell("r1", memories + 1, 3, 0));
    assert_true(weights_park_copy_at(fleet.weights, 0, &n_bytes, &id));
    assert_int_equal(n_bytes, 3 * 4096);
    /* the id that slot_shared_bytes() gives for a replica with this memory */
    assert_true(id == inode_of(memories[1]));
    assert_false(weights_park_copy_at(fleet.weights, 1, &n_bytes, &id));
}

struct stay {
    const char *name;
    bool parked;
    enum replica_state states[2];
    bool stays;
};

static const struct stay stays[] = {
    {"it is to be parked, and serves yet", true, {REPLICA_READY, REPLICA_READY}, true},
    {"one drains", true, {REPLICA_DRAINING, REPLICA_READY}, true},
    {"one's keeper is to be started", true, {REPLICA_PENDING, REPLICA_STOPPED}, true},
    {"it is parked", true, {REPLICA_PARKED, REPLICA_PARKED}, true},
    {"it is parked but for one that failed", true, {REPLICA_PARKED, REPLICA_FAILED}, true},
    {"it is to be woken", false, {REPLICA_PARKED, REPLICA_PARKED}, true},
    {"one is woken, one still loads", false, {REPLICA_READY, REPLICA_LOADING}, true},
    {"one is woken, one still warms", false, {REPLICA_WARMING, REPLICA_READY}, true},
    {"one is woken, one comes back", false, {REPLICA_PENDING, REPLICA_READY}, true},
    {"one is woken, one failed", false, {REPLICA_READY, REPLICA_FAILED}, true},
    {"its wake failed", false, {REPLICA_FAILED, REPLICA_FAILED}, true},
    {"it serves", false, {REPLICA_READY, REPLICA_READY}, false},
    {"nobody is to come", true, {REPLICA_STOPPED, REPLICA_STOPPED}, false},
};

static void test_image_is_held_until_all_serve_again_from_their_gpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stays) / sizeof(stays[0]); i++) {
        struct weights_fds fds;
        put_deployment("gpu", stays[i].parked);
        reason = REASON_LOAD_FAILED;
        put_replica("r1", "gpu", stays[i].states[0]);
        put_replica("r2", "gpu", stays[i].states[1]);
        /* in later rounds the image may still be held */
        assert_true(tell("r1", memories, 1, 0) || i > 0);
        assert_true(weights_take(fleet.weights, "r1", &fds));
        assert_int_equal(fds.n_fds, 1);
        weights_sweep(fleet.weights);
        bool is_open = fcntl(fds.fds[0], F_GETFD) >= 0;
        if (is_open != stays[i].stays)
            fail_msg("%s: %s", stays[i].name, is_open ? "held" : "let go of");
        assert_int_equal(weights_are_whole(fleet.weights, "r1"), stays[i].stays);
    }
}

static void test_image_is_let_go_of_where_all_died_again_and_again(void **state)
{
    (void)state;
    assert_true(tell("r1", memories, 1, 0));
    reason = REASON_CRASH_LOOP;
    put_replica("r1", "gpu", REPLICA_FAILED);
    put_replica("r2", "gpu", REPLICA_FAILED);
    weights_sweep(fleet.weights);
    assert_false(weights_are_whole(fleet.weights, "r1"));
}

static void test_image_is_let_go_of_with_its_deployment(void **state)
{
    char key[TABLE_KEY_BYTES];
    struct weights_fds fds;
    (void)state;
    assert_true(tell("r1", memories, 2, 0));
    assert_true(weights_take(fleet.weights, "r1", &fds));
    weights_sweep(fleet.weights);
    assert_true(weights_are_whole(fleet.weights, "r1"));
    table_key(key, "m", "1", "gpu");
    catalog_remove(&catalog, TABLE_DEPLOYMENT, key);
    weights_sweep(fleet.weights);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(fcntl(fds.fds[i], F_GETFD), -1);
        assert_int_equal(errno, EBADF);
    }
    put_deployment("gpu", true);
    assert_nothing_kept();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_load_on_a_gpu_is_handed_nothing_and_nobody_waits_for_a_filler),
        TEST(test_load_waits_for_what_an_adopted_worker_has_yet_to_say),
        TEST(test_sealed_image_of_one_that_serves_is_taken_over),
        TEST(test_image_with_as_many_ranks_as_there_can_be_is_taken_over),
        TEST(test_what_is_no_sealed_image_is_not_taken_over_and_leaves_nothing_open),
        TEST(test_second_image_is_not_taken_while_one_is_held),
        TEST(test_image_is_no_memory_that_a_new_replica_need_not_take),
        TEST(test_images_that_are_held_are_told_and_no_weights_of_cpus),
        TEST(test_image_is_held_until_all_serve_again_from_their_gpu),
        TEST(test_image_is_let_go_of_where_all_died_again_and_again),
        TEST(test_image_is_let_go_of_with_its_deployment),
    };
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
