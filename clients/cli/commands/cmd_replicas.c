/* cmd_replicas.c: `scale`, `park`, `wake`, `drain`, `restart`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

/* Prints the result of a command: the operation after its end, or its id. Returns the exit status.
 */
static int finish_command(struct cli *cli, int rc, ProtobufCMessage *message,
                          const struct error *err)
{
    if (!rc)
        action_print(cli, message);
    int code = rc ? 0 : action_plan_status(cli, message);
    rpc_message_free(message);
    return rc ? cli_fail(cli, err) : code;
}

static int follow(struct cli *cli, const Sluice__Manager__V1__Operation *operation,
                  ProtobufCMessage **message, struct error *err)
{
    return cli->settings.no_wait || !operation ? 0
                                               : action_follow(cli, operation->id, message, err);
}

enum { MAX_REPLICAS = 64 }; /* the manager's limit for a version */

static int parse_count(const char *word, uint32_t *out, struct error *err)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(word, &end, 10);
    if (word[0] < '0' || word[0] > '9' || *end || errno || n < 1 || n > MAX_REPLICAS)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "\"%.40s\" is no number of replicas; give 1 to %d, or remove all with sluice unload",
            word, MAX_REPLICAS);
    *out = (uint32_t)n;
    return 0;
}

static int run_scale(struct cli *cli)
{
    Sluice__Manager__V1__ScaleModelVersionRequest request =
        SLUICE__MANAGER__V1__SCALE_MODEL_VERSION_REQUEST__INIT;
    const struct cli_settings *s = &cli->settings;
    char id[UUID_BYTES];
    ProtobufCMessage *message = NULL;
    struct error err;
    if (parse_count(cli_word(cli, 1), &request.n_replicas, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)s->version;
    request.device_group = (char *)(uintptr_t)s->device_group;
    request.request_id = cli_request_id(cli, id);
    request.validate_only = s->validate_only;
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)s->grace_ms;
    int rc = cli_call(cli, "ScaleModelVersion", &request.base, &message, &err);
    if (!rc)
        rc = follow(cli,
                    ((const Sluice__Manager__V1__ScaleModelVersionResponse *)message)->operation,
                    &message, &err);
    return finish_command(cli, rc, message, &err);
}

static int run_park(struct cli *cli)
{
    Sluice__Manager__V1__ParkModelVersionRequest request =
        SLUICE__MANAGER__V1__PARK_MODEL_VERSION_REQUEST__INIT;
    const struct cli_settings *s = &cli->settings;
    char id[UUID_BYTES];
    ProtobufCMessage *message = NULL;
    struct error err;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)s->version;
    request.device_group = (char *)(uintptr_t)s->device_group;
    request.request_id = cli_request_id(cli, id);
    request.validate_only = s->validate_only;
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)s->grace_ms;
    int rc = cli_call(cli, "ParkModelVersion", &request.base, &message, &err);
    if (!rc)
        rc =
            follow(cli, ((const Sluice__Manager__V1__ParkModelVersionResponse *)message)->operation,
                   &message, &err);
    return finish_command(cli, rc, message, &err);
}

static int run_wake(struct cli *cli)
{
    Sluice__Manager__V1__WakeModelVersionRequest request =
        SLUICE__MANAGER__V1__WAKE_MODEL_VERSION_REQUEST__INIT;
    const struct cli_settings *s = &cli->settings;
    char id[UUID_BYTES];
    ProtobufCMessage *message = NULL;
    struct error err;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)s->version;
    request.device_group = (char *)(uintptr_t)s->device_group;
    request.request_id = cli_request_id(cli, id);
    request.validate_only = s->validate_only;
    int rc = cli_call(cli, "WakeModelVersion", &request.base, &message, &err);
    if (!rc)
        rc =
            follow(cli, ((const Sluice__Manager__V1__WakeModelVersionResponse *)message)->operation,
                   &message, &err);
    return finish_command(cli, rc, message, &err);
}

static int run_drain(struct cli *cli)
{
    Sluice__Manager__V1__DrainReplicaRequest request =
        SLUICE__MANAGER__V1__DRAIN_REPLICA_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    char id[UUID_BYTES];
    request.replica_id = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)cli->settings.grace_ms;
    int rc = cli_call(cli, "DrainReplica", &request.base, &message, &err);
    if (!rc)
        rc = follow(cli, ((const Sluice__Manager__V1__DrainReplicaResponse *)message)->operation,
                    &message, &err);
    return finish_command(cli, rc, message, &err);
}

static int run_restart(struct cli *cli)
{
    Sluice__Manager__V1__RestartReplicaRequest request =
        SLUICE__MANAGER__V1__RESTART_REPLICA_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    char id[UUID_BYTES];
    request.replica_id = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)cli->settings.grace_ms;
    int rc = cli_call(cli, "RestartReplica", &request.base, &message, &err);
    if (!rc)
        rc = follow(cli, ((const Sluice__Manager__V1__RestartReplicaResponse *)message)->operation,
                    &message, &err);
    return finish_command(cli, rc, message, &err);
}

static const struct option_spec scale_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to use, as in MODEL:VERSION; empty: the loaded version", 0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "", "GROUP",
     "device group; empty: the group that the version is loaded on", 0, 0},
    {"validate-only", 0, OPTION_BOOL, CLI_OPTION(validate_only), "false", NULL,
     "print the plan and change nothing; exit status 1 if it does not fit", 0, 0},
};
static const struct option_spec wake_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to use, as in MODEL:VERSION; empty: the parked version", 0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "", "GROUP",
     "device group; empty: the group that the version is parked on", 0, 0},
    {"validate-only", 0, OPTION_BOOL, CLI_OPTION(validate_only), "false", NULL,
     "print the plan and change nothing; exit status 1 if it does not fit", 0, 0},
    {"no-wait", 0, OPTION_BOOL, CLI_OPTION(no_wait), "false", NULL,
     "return as soon as the operation has started", 0, 0},
};
static const struct manual_example scale_examples[] = {{"sluice scale smol 3", NULL},
                                                       {"sluice scale smol:2 1 --grace 5s", NULL}};
static const struct manual_example park_examples[] = {{"sluice park smol", NULL},
                                                      {"sluice park smol:2 --grace 5s", NULL}};
static const struct manual_example wake_examples[] = {{"sluice wake smol", NULL}};
static const struct manual_example drain_examples[] = {{"sluice drain r1", NULL}};
static const struct manual_example restart_examples[] = {{"sluice restart r1", NULL}};

const struct cli_command cmd_scale = {
    .name = "scale",
    .arguments = "MODEL N",
    .summary = "change the number of replicas of a version",
    .description = "New replicas share the packed weights of running ones. Surplus replicas finish "
                   "their requests within the grace period. Adds all replicas or none, as far as a "
                   "plan can predict. Ends when the number is reached.",
    .examples = scale_examples,
    .n_examples = CLI_N(scale_examples),
    .specs = scale_specs,
    .n_specs = CLI_N(scale_specs),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_scale,
};
const struct cli_command cmd_park = {
    .name = "park",
    .arguments = "MODEL",
    .summary = "stop serving a version, but keep its weights in memory",
    .description = "Running requests get the grace period. Then a process keeps only the packed "
                   "weights: no KV cache, no compute threads. `sluice wake` serves the version "
                   "again in a fraction of the load time. GPU weights are copied to host memory "
                   "first. If host memory is too small, the version stays loaded and serves on.",
    .examples = park_examples,
    .n_examples = CLI_N(park_examples),
    .specs = scale_specs,
    .n_specs = CLI_N(scale_specs),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_park,
};
const struct cli_command cmd_wake = {
    .name = "wake",
    .arguments = "MODEL",
    .summary = "serve a parked version again",
    .description = "Ends when every replica is ready.",
    .examples = wake_examples,
    .n_examples = CLI_N(wake_examples),
    .specs = wake_specs,
    .n_specs = CLI_N(wake_specs),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_wake,
};
const struct cli_command cmd_drain = {
    .name = "drain",
    .arguments = "REPLICA",
    .summary = "let a replica finish its requests, then replace it",
    .description = "The replica gets no new requests and has the grace period to finish. The "
                   "number of replicas stays: a new replica starts after the drained one has "
                   "ended. To have fewer, use `sluice scale`.",
    .examples = drain_examples,
    .n_examples = CLI_N(drain_examples),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_drain,
};
const struct cli_command cmd_restart = {
    .name = "restart",
    .arguments = "REPLICA",
    .summary = "drain a replica and start it again",
    .description = "The replica keeps its id. Also restarts a failed replica.",
    .examples = restart_examples,
    .n_examples = CLI_N(restart_examples),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_restart,
};
