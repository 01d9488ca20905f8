/* cmd_lifecycle.c: `load` and `unload`. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/system/folder.h"
#include "clients/cli/commands/deployments.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/progress.h"
#include "clients/cli/term/output.h"
#include "proto/config/model_config.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

void action_fill_config(const struct cli *cli, enum load_user user,
                        Sluice__Manager__V1__ModelConfig *config, char draft[PATH_MAX])
{
    *config = (Sluice__Manager__V1__ModelConfig)SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        bool has_value = !(row->traits & LOAD_ZERO) || cli_given(cli, row->flag);
        if ((row->users & user) && has_value)
            model_config_set(config, i, &cli->settings.load[i]);
    }
    if (config->draft_model[0] && folder_resolve(config->draft_model, draft))
        config->draft_model = draft;
}

int action_follow(struct cli *cli, const char *id, ProtobufCMessage **response, struct error *err)
{
    Sluice__Manager__V1__WatchOperationResponse *last = NULL;
    int rc = progress_follow(cli, id, &last, err);
    assert(rc || last); /* a success has an answer */
    rpc_message_free(*response);
    *response = last ? &last->base : NULL;
    return rc;
}

/* Names the group of a device list: "cuda:0,2-3" becomes cuda-0.2-3. Other characters become '-',
 * so that the manager reports a bad device and not a bad name. */
static void name_of_devices(const char *devices, char *out, size_t n_bytes)
{
    snprintf(out, n_bytes, "%s", devices);
    for (char *c = out; *c; c++)
        if (*c == ',')
            *c = '.';
        else if (!(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9'))
            *c = '-';
    if (*out == '-' || *out == '.')
        *out = 'x';
}

static int delete_group(struct cli *cli, const char *name, struct error *err)
{
    Sluice__Manager__V1__DeleteDeviceGroupRequest request =
        SLUICE__MANAGER__V1__DELETE_DEVICE_GROUP_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    request.name = (char *)(uintptr_t)name;
    int rc = cli_call(cli, "DeleteDeviceGroup", &request.base, &response, err);
    rpc_message_free(response);
    return rc;
}

/* Finds the group of exactly these devices; creates the group if needed. */
static int group_of_devices(struct cli *cli, char *out, size_t n_bytes, bool *out_made,
                            struct error *err)
{
    Sluice__Manager__V1__CreateDeviceGroupRequest request =
        SLUICE__MANAGER__V1__CREATE_DEVICE_GROUP_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    char *devices = (char *)(uintptr_t)cli->settings.devices, id[UUID_BYTES];
    name_of_devices(devices, out, n_bytes);
    rng_uuid(id);
    request.request_id = id;
    request.name = out;
    request.n_devices = 1;
    request.devices = &devices;
    error_clear(err);
    int rc = cli_call(cli, "CreateDeviceGroup", &request.base, &response, err);
    rpc_message_free(response);
    *out_made = rc == 0;
    return err->reason == REASON_DEVICE_GROUP_EXISTS ? 0 : rc;
}

int action_load(struct cli *cli, const char *name, const char *version,
                ProtobufCMessage **out_response, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    Sluice__Manager__V1__LoadModelVersionRequest request =
        SLUICE__MANAGER__V1__LOAD_MODEL_VERSION_REQUEST__INIT;
    Sluice__Manager__V1__ModelConfig config;
    char id[UUID_BYTES], draft[PATH_MAX], group[64];
    bool made = false;
    rng_uuid(id); /* with an id a retry after a lost connection loads once */
    action_fill_config(cli, LOAD_CLI, &config, draft);
    request.model = (char *)(uintptr_t)name;
    request.version = (char *)(uintptr_t)version;
    request.request_id = s->request_id && s->request_id[0] ? (char *)(uintptr_t)s->request_id : id;
    request.validate_only = s->validate_only;
    request.evict = s->evict;
    request.config = &config;
    if (s->device_group && s->device_group[0])
        request.device_group = (char *)(uintptr_t)s->device_group;
    if (s->devices && s->devices[0] && strcmp(s->devices, "cpu") != 0) {
        int rc = group_of_devices(cli, group, sizeof(group), &made, err);
        if (rc)
            return rc;
        request.device_group = group;
    }
    if (s->replicas) {
        request.has_n_replicas = true;
        request.n_replicas = (uint32_t)s->replicas;
    }
    if (s->tp) {
        request.has_tp = true;
        request.tp = (uint32_t)s->tp;
    }
    if (s->pp) {
        request.has_pp = true;
        request.pp = (uint32_t)s->pp;
    }
    int rc = cli_call(cli, "LoadModelVersion", &request.base, out_response, err);
    struct error ignored; /* --validate-only leaves no group behind */
    if (made && s->validate_only)
        (void)delete_group(cli, group, &ignored);
    const Sluice__Manager__V1__LoadModelVersionResponse *response =
        (const Sluice__Manager__V1__LoadModelVersionResponse *)*out_response;
    if (rc || s->validate_only || s->no_wait || !response->operation)
        return rc;
    return action_follow(cli, response->operation->id, out_response, err);
}

/* Formats the bytes of weights. A plan counts weights that replicas share once: "shared". */
static const char *weights_text(const struct cli *cli, uint64_t bytes, char out[32])
{
    if (!bytes && cli->command == &cmd_park)
        return "stay in memory";
    return bytes ? format_bytes(bytes, out) : "shared";
}

/* Names the memory of recurrent states, if there is any. */
static const char *states_text(const Sluice__V1__DevicePlan *d, char out[48])
{
    char size[32];
    *out = '\0';
    if (d->state_bytes)
        snprintf(out, 48, ", states %s", format_bytes(d->state_bytes, size));
    return out;
}

/* Prints the memory that stopping or parked replicas give back. */
static void print_freed(const struct cli *cli, const Sluice__V1__Plan *plan)
{
    char weights[32], kv[32], states[48], workspace[32];
    for (size_t i = 0; i < plan->n_devices; i++) {
        const Sluice__V1__DevicePlan *d = plan->devices[i];
        printf("%s rank %" PRIu32 " gives back: weights %s, KV %s%s, workspace %s\n", d->device,
               d->rank, weights_text(cli, d->weight_bytes, weights), format_bytes(d->kv_bytes, kv),
               states_text(d, states), format_bytes(d->workspace_bytes, workspace));
    }
    printf("replicas %" PRIu32 "\n", plan->n_replicas);
    for (size_t i = 0; i < plan->n_notes; i++)
        printf("note: %s\n", plan->notes[i]);
    if (!plan->fits)
        printf("does not fit\n");
}

/* True if the plan fits, or fits after the evictions that --evict allows. */
static bool plan_will_do(const struct cli *cli, const Sluice__V1__Plan *plan)
{
    return plan->fits || (cli->settings.evict && plan->n_evictions);
}

static void print_plan(const struct cli *cli, const Sluice__V1__Plan *plan)
{
    char weights[32], kv[32], states[48], workspace[32], free_bytes[32];
    char layers[OUTPUT_STAGE_BYTES];
    if (plan->model[0])
        printf("%s%s%s\n", plan->model, plan->version[0] ? " version " : "", plan->version);
    if (!plan->tp) { /* nothing starts, so nothing is split */
        print_freed(cli, plan);
        return;
    }
    for (size_t i = 0; plan->n_replicas && i < plan->n_devices; i++) {
        const Sluice__V1__DevicePlan *d = plan->devices[i];
        printf("%s rank %" PRIu32 "%s: weights %s, KV %s%s, workspace %s, free %s\n", d->device,
               d->rank, output_layers(plan, d, layers), weights_text(cli, d->weight_bytes, weights),
               format_bytes(d->kv_bytes, kv), states_text(d, states),
               format_bytes(d->workspace_bytes, workspace),
               format_bytes(d->free_bytes, free_bytes));
        if (d->promised_bytes)
            printf("  %s more are reserved for other replicas\n",
                   format_bytes(d->promised_bytes, free_bytes));
        if (d->missing_bytes)
            printf("  needs %s more\n", format_bytes(d->missing_bytes, free_bytes));
    }
    for (size_t i = 0; i < plan->n_evictions; i++) {
        const Sluice__V1__Eviction *e = plan->evictions[i];
        printf("unload first%s: replica %s of %s version %s",
               cli->settings.evict ? "" : " (--evict)", e->replica_id, e->model, e->version);
        if (e->bytes)
            printf(", frees %s", format_bytes(e->bytes, free_bytes));
        putchar('\n');
    }
    printf("adds %" PRIu32 " replica%s, tp %" PRIu32 "%s, KV tokens %" PRIu64 ": %s\n",
           plan->n_replicas, plan->n_replicas == 1 ? "" : "s", plan->tp,
           output_stages(plan, layers), plan->n_kv_tokens,
           plan->fits                ? "fits"
           : plan_will_do(cli, plan) ? "fits after these are unloaded"
           : plan->n_evictions       ? "does not fit; add --evict to unload these"
                                     : "does not fit");
    if (plan->n_replicas)
        output_prediction(plan);
    for (size_t i = 0; i < plan->n_notes; i++)
        printf("note: %s\n", plan->notes[i]);
}

/* Prints the memory of a device. After a load or scale-up also the planned maximum, because the KV
 * pool grows while used. */
static void print_memory(const Sluice__V1__DeviceMemory *m, bool load)
{
    char before[32], after[32], expected[32];
    format_bytes(m->after_bytes, after);
    format_bytes(m->expected_bytes, expected);
    bool gpu = strncmp(m->device, "cuda", 4) == 0;
    if (gpu && (load || m->after_bytes > m->before_bytes))
        printf("  %s: %s in use, %s planned\n", m->device, after, expected);
    else if (load || m->after_bytes > m->before_bytes)
        printf("  %s: %s resident now; %s with a full KV pool\n", m->device, after, expected);
    else
        printf("  %s: before %s, after %s, expected %s\n", m->device,
               format_bytes(m->before_bytes, before), after, expected);
}

/* True if --require-answers would have rolled the update back: too few answers of the new version.
 */
static bool lacked_answers(const Sluice__Manager__V1__UpdateProgress *update)
{
    for (size_t i = 0; i < update->n_ended_steps; i++) {
        const Sluice__Manager__V1__UpdateStepEnd *step = update->ended_steps[i];
        if (step->n_unmeasured_gates && step->n_answers < step->n_wanted_answers)
            return true;
    }
    return false;
}

static void print_operation(const Sluice__Manager__V1__Operation *op)
{
    char state[32], elapsed[32];
    bool load = op->kind == SLUICE__MANAGER__V1__OPERATION_KIND__OPERATION_KIND_LOAD;
    output_enum(&sluice__manager__v1__operation_state__descriptor, (int)op->state, state);
    printf("%s%s%s: %s", op->model, op->version[0] ? " " : "", op->version, state);
    if (op->result && op->result->elapsed_ms)
        printf(" in %s", format_ms(op->result->elapsed_ms, elapsed));
    putchar('\n');
    if (progress_print_unmeasured(stdout, op, "  ") && op->update->gates &&
        !op->update->gates->require_answers && lacked_answers(op->update))
        puts("  the update continued without enough answers; --require-answers would roll it back");
    for (size_t i = 0; op->result && i < op->result->n_memory; i++)
        print_memory(op->result->memory[i], load);
    if (op->result && op->result->unreleased)
        fprintf(stderr, "%s (%s)\n", op->result->unreleased->message,
                op->result->unreleased->reason);
}

/* Returns a field that the answers of lifecycle RPCs share: "operation" or "plan". */
static const void *answer_part(const ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    return field ? *(void *const *)(const void *)((const char *)message + field->offset) : NULL;
}

void action_print(const struct cli *cli, const ProtobufCMessage *message)
{
    const Sluice__Manager__V1__Operation *op = answer_part(message, "operation");
    const Sluice__V1__Plan *plan = answer_part(message, "plan");
    if (cli->settings.json)
        output_json(message);
    else if (message->descriptor == &sluice__manager__v1__watch_operation_response__descriptor)
        print_operation(op);
    else if (cli->settings.validate_only && plan)
        print_plan(cli, plan);
    else if (op)
        printf("operation %s started; follow it with: sluice ops watch %s\n", op->id, op->id);
}

int action_plan_status(const struct cli *cli, const ProtobufCMessage *message)
{
    const Sluice__V1__Plan *plan = answer_part(message, "plan");
    return cli->settings.validate_only && plan && !plan_will_do(cli, plan) ? 1 : 0;
}

/* Says what a load changes beside the version's own replicas. `before`: the model before the load.
 */
static void print_side_effects(const struct cli *cli, const Sluice__Manager__V1__Model *before)
{
    const struct cli_settings *s = &cli->settings;
    char group[64];
    bool by_devices = s->devices && s->devices[0] && strcmp(s->devices, "cpu") != 0;
    if (by_devices)
        name_of_devices(s->devices, group, sizeof(group));
    deployments_print_others(stdout, before, s->version, by_devices ? group : s->device_group);
    deployments_print_default(stdout, before, s->version, !s->validate_only && !s->no_wait);
}

/* Reads the model before a change whose result a person will read. */
static Sluice__Manager__V1__GetModelResponse *model_before(struct cli *cli)
{
    Sluice__Manager__V1__GetModelResponse *before =
        cli->settings.json ? NULL : deployments_read(cli, cli_word(cli, 0));
    if (before && !before->model) {
        rpc_message_free(&before->base);
        before = NULL;
    }
    return before;
}

static int run_load(struct cli *cli)
{
    struct error err;
    ProtobufCMessage *message = NULL;
    Sluice__Manager__V1__GetModelResponse *before = model_before(cli);
    int rc = action_load(cli, cli_word(cli, 0), cli->settings.version, &message, &err);
    if (rc) {
        rpc_message_free(before ? &before->base : NULL);
        rpc_message_free(message);
        return cli_fail(cli, &err);
    }
    action_print(cli, message);
    if (before)
        print_side_effects(cli, before->model);
    rc = action_plan_status(cli, message);
    rpc_message_free(message);
    rpc_message_free(before ? &before->base : NULL);
    return rc;
}

int action_unload(struct cli *cli, const char *name, const char *version,
                  ProtobufCMessage **out_response, struct error *err)
{
    Sluice__Manager__V1__UnloadModelVersionRequest request =
        SLUICE__MANAGER__V1__UNLOAD_MODEL_VERSION_REQUEST__INIT;
    const struct cli_settings *s = &cli->settings;
    char id[UUID_BYTES];
    rng_uuid(id);
    request.model = (char *)(uintptr_t)name;
    request.version = (char *)(uintptr_t)version;
    request.request_id = s->request_id && s->request_id[0] ? (char *)(uintptr_t)s->request_id : id;
    /* without --grace the manager's own default applies */
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)s->grace_ms;
    request.validate_only = s->validate_only;
    if (cli_given(cli, "group"))
        request.device_group = (char *)(uintptr_t)s->device_group;
    int rc = cli_call(cli, "UnloadModelVersion", &request.base, out_response, err);
    const Sluice__Manager__V1__UnloadModelVersionResponse *response =
        (const Sluice__Manager__V1__UnloadModelVersionResponse *)*out_response;
    if (rc || s->validate_only || s->no_wait || !response->operation)
        return rc;
    return action_follow(cli, response->operation->id, out_response, err);
}

int action_settle(struct cli *cli, const char *name, struct error *err)
{
    Sluice__Manager__V1__ListOperationsRequest request =
        SLUICE__MANAGER__V1__LIST_OPERATIONS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.open_only = 1;
    request.model = (char *)(uintptr_t)name;
    int rc = cli_call(cli, "ListOperations", &request.base, &message, err);
    const Sluice__Manager__V1__ListOperationsResponse *response =
        (const Sluice__Manager__V1__ListOperationsResponse *)message;
    for (size_t i = 0; !rc && i < response->n_operations; i++) {
        Sluice__Manager__V1__WatchOperationResponse *last = NULL;
        struct error outcome;
        int ended = progress_follow(cli, response->operations[i]->id, &last, &outcome);
        if (ended && (!last || !last->operation)) { /* the watch failed, not the operation */
            *err = outcome;
            rc = ended;
        }
        if (last)
            rpc_message_free(&last->base);
    }
    rpc_message_free(message);
    return rc;
}

static int run_unload(struct cli *cli)
{
    struct error err;
    ProtobufCMessage *message = NULL;
    const struct cli_settings *s = &cli->settings;
    Sluice__Manager__V1__GetModelResponse *before = model_before(cli);
    int rc = action_unload(cli, cli_word(cli, 0), s->version, &message, &err);
    if (!rc) {
        action_print(cli, message);
        if (before)
            deployments_print(stdout, before->model, s->version, s->device_group,
                              s->validate_only ? "  would unload "
                              : s->no_wait     ? "  unloading "
                                               : "  unloaded ");
    }
    rpc_message_free(before ? &before->base : NULL);
    rpc_message_free(message);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec load_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to load; empty: the one registered last", 0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "cpu", "GROUP", "device group", 0, 0},
    {"validate-only", 0, OPTION_BOOL, CLI_OPTION(validate_only), "false", NULL,
     "print the plan and change nothing; exit status 1 if it does not fit", 0, 0},
    {"evict", 0, OPTION_BOOL, CLI_OPTION(evict), "false", NULL,
     "if needed, unload idle versions that were loaded with --evictable, least recently used first",
     0, 0},
    {"no-wait", 0, OPTION_BOOL, CLI_OPTION(no_wait), "false", NULL,
     "return as soon as the operation has started", 0, 0},
};
static const struct option_spec unload_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to unload; empty: every loaded version", 0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "", "GROUP",
     "device group; empty: all groups that the model is loaded on", 0, 0},
    {"validate-only", 0, OPTION_BOOL, CLI_OPTION(validate_only), "false", NULL,
     "print what would stop and change nothing", 0, 0},
};
static const struct manual_example load_examples[] = {
    {"sluice load smol", NULL},
    {"sluice load smol --replicas 2 --threads 1", NULL},
    {"sluice load smol --devices cuda:0 --gpu-memory 20G", "on a GPU"},
    {"sluice load smol --validate-only", NULL},
};
static const struct manual_example unload_examples[] = {
    {"sluice unload smol", NULL},
    {"sluice unload smol --version 1 --grace 5s", NULL},
    {"sluice unload smol --validate-only", "shows the memory it would free"},
};

const struct cli_command cmd_load = {
    .name = "load",
    .arguments = "MODEL",
    .summary = "start replicas of a registered model",
    .description = "Shows the progress of reading and packing. Ends when every replica is ready. "
                   "Loads all replicas or none, as far as a plan can predict.",
    .examples = load_examples,
    .n_examples = CLI_N(load_examples),
    .specs = load_specs,
    .n_specs = CLI_N(load_specs),
    .groups = CLI_DEPLOY | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_load,
};
const struct cli_command cmd_unload = {
    .name = "unload",
    .arguments = "MODEL",
    .summary = "drain and stop a model's replicas",
    .description =
        "Running requests get the grace period. Then the workers end and their memory is free.",
    .examples = unload_examples,
    .n_examples = CLI_N(unload_examples),
    .specs = unload_specs,
    .n_specs = CLI_N(unload_specs),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_unload,
};
