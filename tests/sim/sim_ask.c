/* sim_ask.c: requests of clients that change something. Most requests name existing objects; some
 * have an odd field (sim_odd.c). Requests that change nothing are in sim_read.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "manager/devices/device_hold.h"
#include "manager/rollout/lifecycle.h"
#include "tests/sim/sim.h"

static const char *const models[] = {"a", "b"}, *const versions[] = {"1", "2"};
static const char *const devices[] = {"cpu:0", "cpu:1", "cuda:0", "cuda:1"};

static void send(struct sim_request *request)
{
    for (uint64_t n = sim_chance(8) ? 1 + sim_below(3) : 0; n > 0; n--)
        sim_odd(request->message);
    /* the request id of another request */
    if (sim_chance(2) && strcmp(request->request_id, "q0") != 0)
        sim_set_text(request->message, "request_id", "q0");
    sim_request_send(request);
}

/* -- changes --------------------------------------------------------------------------------------
 */

/* Writes the names of a version to the message. With `loaded`, the version is mostly a loaded one.
 */
static void set_target(ProtobufCMessage *message, bool loaded)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_DEPLOYMENT);
    if (loaded && n && sim_chance(80)) {
        const pb_deployment *deployment = catalog_deployment_at(&sim.manager.catalog, sim_below(n));
        sim_set_text(message, "model", deployment->model);
        sim_set_text(message, "version", deployment->version);
        return;
    }
    n = catalog_count(&sim.manager.catalog, TABLE_MODEL_VERSION);
    if (n && sim_chance(20)) {
        const pb_version *version = catalog_version_at(&sim.manager.catalog, sim_below(n));
        sim_set_text(message, "model", version->model);
        sim_set_text(message, "version", version->version);
        return;
    }
    sim_set_text(message, "model", models[sim_below(2)]);
    if (sim_chance(90))
        sim_set_text(message, "version", versions[sim_below(2)]);
}

void sim_client_register(const char *model, const char *version)
{
    struct sim_request *request = sim_request_add(
        KIND_REGISTER, &sluice__manager__v1__register_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__RegisterModelVersionRequest *registration = (void *)request->message;
    sim_set_text(request->message, "model", model);
    sim_set_text(request->message, "version", version);
    sim_set_text(request->message, "path", sim_path);
    if (!sim.history_seed) {
        sim_request_send(request);
        return;
    }
    registration->verify = sim_chance(40);
    if (sim_chance(40))
        sim_odd_registration(registration);
    send(request);
}

static void create_group(const char *name, const char *const *names, size_t n)
{
    struct sim_request *request =
        sim_request_add(KIND_GROUP, &sluice__manager__v1__create_device_group_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__CreateDeviceGroupRequest *create = (void *)request->message;
    sim_set_text(request->message, "name", name);
    for (size_t i = 0; i < n; i++)
        if (!message_append_text(&create->n_devices, &create->devices, names[i]))
            abort();
    sim_request_send(request);
}

/* Creates a group of one GPU, a group of two GPUs, and a group of one CPU device. */
void sim_client_create_groups(void)
{
    create_group("gpu", &devices[2], 1);
    create_group("gpus", &devices[2], 2);
    create_group("one", &devices[1], 1);
}

static const char *random_group(void)
{
    static const char *const groups[] = {"", "cpu", "cpu", "gpu", "gpus", "one"};
    return groups[sim_below(6)];
}

static pb_config *random_config(void)
{
    static const char *const kernels[] = {"", "", "ref", "avx2"};
    if (sim_chance(60))
        return NULL;
    pb_config *config = MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
    if (config && sim_chance(8)) {
        sim_odd_config(config);
        return config;
    }
    if (!config || !message_set(&config->kernels, kernels[sim_below(4)]))
        abort();
    config->has_evictable = sim_chance(50);
    config->evictable = sim_chance(90);
    if (sim_chance(50)) {
        config->has_idle_after_ms = 1;
        config->idle_after_ms = 1000 + (uint32_t)sim_below(9000);
        if (!message_set(&config->idle_action, sim_chance(50) ? "unload" : NULL))
            abort();
    }
    config->has_context_length = sim_chance(20);
    config->context_length = 1024;
    config->has_wake_on_demand = sim_chance(50);
    config->wake_on_demand = sim_chance(80);
    config->has_kv_tokens = sim_chance(20);
    config->kv_tokens = 4096;
    config->has_prefix_cache = sim_chance(20);
    config->prefix_cache = sim_chance(50);
    config->has_deterministic = sim_chance(20);
    config->has_target_itl_ms = sim_chance(20);
    return config;
}

static void act_load(void)
{
    struct sim_request *request =
        sim_request_add(KIND_LOAD, &sluice__manager__v1__load_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__LoadModelVersionRequest *load = (void *)request->message;
    set_target(request->message, false);
    sim_set_text(request->message, "device_group", random_group());
    load->has_n_replicas = 1;
    load->n_replicas = 1 + (uint32_t)sim_below(3);
    load->config = random_config();
    load->validate_only = sim_chance(4);
    load->evict = sim_chance(20);
    send(request);
}

static void act_unload(void)
{
    struct sim_request *request = sim_request_add(
        KIND_UNLOAD, &sluice__manager__v1__unload_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__UnloadModelVersionRequest *unload = (void *)request->message;
    set_target(request->message, true);
    unload->has_grace_ms = sim_chance(50);
    unload->grace_ms = sim_chance(2) ? UINT32_MAX : (uint32_t)sim_below(5000);
    unload->validate_only = sim_chance(4);
    send(request);
}

static void act_scale(void)
{
    struct sim_request *request =
        sim_request_add(KIND_SCALE, &sluice__manager__v1__scale_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__ScaleModelVersionRequest *scale = (void *)request->message;
    set_target(request->message, true);
    scale->n_replicas = (uint32_t)sim_below(4);
    scale->validate_only = sim_chance(4);
    send(request);
}

static void act_replica(bool restart)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_REPLICA);
    if (n == 0)
        return;
    const char *id = catalog_replica_at(&sim.manager.catalog, sim_below(n))->id;
    struct sim_request *request =
        restart
            ? sim_request_add(KIND_RESTART,
                              &sluice__manager__v1__restart_replica_request__descriptor)
            : sim_request_add(KIND_DRAIN, &sluice__manager__v1__drain_replica_request__descriptor);
    if (!request)
        return;
    sim_set_text(request->message, "replica_id", id);
    send(request);
}

static void act_cancel(void)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_OPERATION);
    if (n == 0)
        return;
    const pb_operation *chosen =
        catalog_operation_at(&sim.manager.catalog, n - 1 - sim_below(n < 3 ? n : 3));
    for (size_t i = 0; i < n && sim_chance(60); i++)
        if (pb_operation_is_open(catalog_operation_at(&sim.manager.catalog, i)))
            chosen = catalog_operation_at(&sim.manager.catalog, i);
    const char *id = chosen->id;
    struct sim_request *request =
        sim_request_add(KIND_CANCEL, &sluice__manager__v1__cancel_operation_request__descriptor);
    if (!request)
        return;
    sim_set_text(request->message, "id", id);
    send(request);
}

static void act_park(bool wake)
{
    struct sim_request *request =
        wake ? sim_request_add(KIND_WAKE,
                               &sluice__manager__v1__wake_model_version_request__descriptor)
             : sim_request_add(KIND_PARK,
                               &sluice__manager__v1__park_model_version_request__descriptor);
    if (!request)
        return;
    set_target(request->message, true);
    if (wake && sim_chance(80))
        (void)sim_set_sleeper(request->message);
    if (wake)
        ((Sluice__Manager__V1__WakeModelVersionRequest *)request->message)->validate_only =
            sim_chance(4);
    else
        ((Sluice__Manager__V1__ParkModelVersionRequest *)request->message)->validate_only =
            sim_chance(4);
    send(request);
}

static void act_update(void)
{
    static uint32_t const steps[] = {20, 60, 100};
    struct sim_request *request = sim_request_add(
        KIND_UPDATE, &sluice__manager__v1__update_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__UpdateModelVersionRequest *update = (void *)request->message;
    set_target(request->message, true);
    bool second = strcmp(update->version, "1") == 0;
    sim_set_text(request->message, "version", versions[second]);
    if (sim_chance(50))
        sim_set_text(request->message, "from_version", versions[!second]);
    update->has_step_ms = 1;
    update->step_ms = 200 + sim_below(3000);
    update->has_grace_ms = 1;
    update->grace_ms = (uint32_t)sim_below(3000);
    update->has_n_replicas = sim_chance(30);
    update->n_replicas = 1 + (uint32_t)sim_below(2);
    update->config = sim_chance(20) ? random_config() : NULL;
    update->validate_only = sim_chance(4);
    if (sim_chance(10))
        sim_set_text(request->message, "from_version", update->version);
    if (sim_chance(5))
        sim_odd_steps(update);
    else if (sim_chance(50)) {
        size_t n = 1 + sim_below(3);
        update->steps = calloc(n, sizeof(*update->steps));
        if (!update->steps)
            abort();
        memcpy(update->steps, steps + 3 - n, n * sizeof(*steps));
        update->n_steps = n;
    }
    if (sim_chance(50)) {
        update->gates = MESSAGE_NEW(pb_gates, sluice__manager__v1__update_gates__descriptor);
        if (!update->gates)
            abort();
        update->gates->has_min_answers = 1;
        update->gates->min_answers = 1 + (uint32_t)sim_below(30);
        update->gates->has_max_error_rate = sim_chance(70);
        update->gates->max_error_rate = 0.1;
        update->gates->has_max_ttft_ms = sim_chance(20);
        update->gates->max_ttft_ms = 100;
        update->gates->has_max_ttft_ratio = sim_chance(50);
        update->gates->max_ttft_ratio = 2;
        update->gates->has_ttft_quantile = sim_chance(60);
        update->gates->ttft_quantile = (double)sim_below(4) / 4;
        update->gates->has_max_wait_ms = sim_chance(60);
        update->gates->max_wait_ms = sim_below(3) * 1500;
        update->gates->require_answers = sim_chance(40);
    }
    send(request);
}

static void act_traffic(void)
{
    struct sim_request *request =
        sim_request_add(KIND_TRAFFIC, &sluice__manager__v1__set_traffic_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__SetTrafficRequest *traffic = (void *)request->message;
    sim_set_text(request->message, "model", models[sim_below(2)]);
    traffic->sticky = sim_chance(30);
    bool third = strcmp(traffic->model, "b") == 0 && sim_chance(60);
    for (size_t i = 0; i < 2 && !sim_chance(20); i++) {
        Sluice__Manager__V1__TrafficWeight *weight = MESSAGE_NEW(
            Sluice__Manager__V1__TrafficWeight, sluice__manager__v1__traffic_weight__descriptor);
        if (!weight ||
            !message_set(&weight->version, sim_chance(10) || (third && i == 1)
                                               ? "3"
                                               : versions[sim_chance(95) ? i : 0]) ||
            !message_append(&traffic->n_weights, &traffic->weights, weight))
            abort();
        weight->weight = (uint32_t)sim_below(4);
    }
    send(request);
}

static void act_policy(void)
{
    struct sim_request *request =
        sim_request_add(KIND_POLICY, &sluice__manager__v1__set_version_policy_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__SetVersionPolicyRequest *policy = (void *)request->message;
    sim_set_text(request->message, "model", models[sim_below(2)]);
    policy->policy = (void *)message_new(&sluice__manager__v1__version_policy__descriptor);
    if (!policy->policy)
        abort();
    switch (sim_below(4)) {
    case 0:
        policy->policy->kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST;
        policy->policy->latest = (uint32_t)sim_below(3);
        break;
    case 1:
        policy->policy->kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL;
        policy->policy->all = 1;
        break;
    case 2:
        policy->policy->kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC;
        policy->policy->specific =
            (void *)message_new(&sluice__manager__v1__specific_versions__descriptor);
        if (!policy->policy->specific ||
            !message_append_text(&policy->policy->specific->n_versions,
                                 &policy->policy->specific->versions, versions[sim_below(2)]))
            abort();
        break;
    default:
        break;
    }
    send(request);
}

/* Chooses a version to delete: a version with traffic where there is one, else mostly a version
 * that is not loaded. */
static void set_to_delete(ProtobufCMessage *message)
{
    const struct catalog *catalog = &sim.manager.catalog;
    for (size_t i = 0; i < catalog_count(catalog, TABLE_TRAFFIC) && sim_chance(70); i++) {
        const pb_traffic *row =
            (const pb_traffic *)row_message(catalog_at(catalog, TABLE_TRAFFIC, i));
        if (!row->n_weights)
            continue;
        sim_set_text(message, "model", row->model);
        sim_set_text(message, "version", row->weights[row->n_weights - 1]->version);
        return;
    }
    sim_set_text(message, "model", models[sim_below(2)]);
    sim_set_text(message, "version", sim_chance(70) ? "3" : versions[sim_below(2)]);
}

static void act_delete(void)
{
    struct sim_request *request = sim_request_add(
        KIND_DELETE, &sluice__manager__v1__delete_model_version_request__descriptor);
    if (!request)
        return;
    set_to_delete(request->message);
    send(request);
}

static void act_group(void)
{
    static const char *const names[] = {"more", "more", "gpus", "one", "gpu", "cpu", "none"};
    if (sim_chance(20)) {
        const char *odd[2];
        create_group("odd", odd, sim_odd_devices(odd));
        return;
    }
    if (sim_chance(50)) {
        create_group(sim_chance(90) ? "more" : "one", devices, 1 + sim_below(2));
        return;
    }
    struct sim_request *request = sim_request_add(
        KIND_DELETE_GROUP, &sluice__manager__v1__delete_device_group_request__descriptor);
    if (!request)
        return;
    sim_set_text(request->message, "name", names[sim_below(7)]);
    send(request);
}

static void act_key(void)
{
    bool make = sim_chance(60);
    struct sim_request *request =
        sim_request_add(make ? KIND_KEY : KIND_REVOKE,
                        make ? &sluice__manager__v1__create_api_key_request__descriptor
                             : &sluice__manager__v1__revoke_api_key_request__descriptor);
    if (!request)
        return;
    size_t n = catalog_count(&sim.manager.catalog, TABLE_API_KEY);
    sim_set_text(request->message, "name", sim_chance(50) ? "ops" : "deploy");
    if (!make && n)
        sim_set_text(request->message, "name",
                     catalog_key_at(&sim.manager.catalog, sim_below(n))->name);
    if (make) {
        Sluice__Manager__V1__CreateApiKeyRequest *create = (void *)request->message;
        create->role = (Sluice__Manager__V1__ManagementRole)(sim_chance(90) ? 1 + sim_below(3) : 0);
        create->expires_unix_ns = sim_chance(80) ? 0 : clock_wall_ns() + (sim_chance(50) ? -1 : 1);
    }
    send(request);
}

/* Releases a device that has a hold, has none, or does not exist. */
static void act_release(void)
{
    static const char *const odd[] = {"cpu:0", "cuda:0", "cuda:9", "GPU-0"};
    struct sim_request *request =
        sim_request_add(KIND_RELEASE, &sluice__manager__v1__release_device_request__descriptor);
    size_t n = catalog_count(&sim.manager.catalog, TABLE_DEVICE_HOLD);
    if (!request)
        return;
    sim_set_text(request->message, "device",
                 n && sim_chance(50) ? catalog_hold_at(&sim.manager.catalog, sim_below(n))->device
                                     : odd[sim_below(4)]);
    send(request);
}

void sim_client_release(void)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (!device_hold_find(&sim.manager.catalog, devices[i]))
            continue;
        struct sim_request *request =
            sim_request_add(KIND_RELEASE, &sluice__manager__v1__release_device_request__descriptor);
        if (!request)
            return;
        sim_set_text(request->message, "device", devices[i]);
        sim_request_send(request);
    }
}

void sim_client_begin(void)
{
    act_load();
}

void sim_client_act(void)
{
    static const unsigned char weights[] = {0,  0,  0,  0,  0,  0,  0,  0,  1,  1,  1,  1,  2,
                                            2,  2,  2,  3,  3,  4,  4,  5,  5,  5,  6,  6,  7,
                                            7,  7,  8,  9,  9,  10, 10, 11, 11, 11, 11, 12, 12,
                                            12, 13, 13, 14, 15, 15, 15, 16, 16, 16, 16};
    if (sim_set_sleeper(NULL) &&
        sim_chance(20)) { /* requests for a parked version would else be rare */
        act_park(true);
        return;
    }
    switch (weights[sim_below(sizeof(weights))]) {
    case 0:
        act_load();
        break;
    case 1:
        act_unload();
        break;
    case 2:
        act_scale();
        break;
    case 3:
        act_replica(true);
        break;
    case 4:
        act_replica(false);
        break;
    case 5:
        act_cancel();
        break;
    case 6:
        sim_client_register(models[sim_below(2)], sim_chance(50) ? "1" : "3");
        break;
    case 7:
        sim_client_retry_any();
        break;
    case 8:
        sim_read_operation(sim_chance(50));
        break;
    case 9:
        sim_read();
        break;
    case 10:
        act_park(false);
        break;
    case 11:
        act_update();
        break;
    case 12:
        act_traffic();
        break;
    case 13:
        act_park(true);
        break;
    case 14:
        act_policy();
        break;
    case 15:
        sim_read_events();
        break;
    default:
        if (sim_chance(35))
            act_group();
        else if (sim_chance(35))
            act_key();
        else if (sim_chance(25))
            act_release();
        else
            act_delete();
    }
}
