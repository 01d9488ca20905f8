/* cmd_update.c: `update`: replaces a version by another without an interruption. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { MAX_STEPS = 32 };

/* Parses "10,50,100". */
static int parse_steps(const char *text, uint32_t *out, size_t *out_n, struct error *err)
{
    size_t n = 0;
    for (const char *at = text; *at;) {
        char *end;
        errno = 0;
        unsigned long percent = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || errno || percent > 100 || n == MAX_STEPS ||
            (*end && *end != ',') || (*end == ',' && !end[1]))
            return error_set(
                err, STATUS_INVALID_ARGUMENT,
                "--steps: \"%.60s\" is no list of percents; write for example 10,50,100", text);
        out[n++] = (uint32_t)percent;
        at = *end ? end + 1 : end;
    }
    *out_n = n;
    return 0;
}

/* Returns false, and leaves *gates unset, if no gate was given: then the manager's defaults apply.
 */
static bool fill_gates(const struct cli *cli, Sluice__Manager__V1__UpdateGates *gates)
{
    const struct cli_settings *s = &cli->settings;
    *gates = (Sluice__Manager__V1__UpdateGates)SLUICE__MANAGER__V1__UPDATE_GATES__INIT;
    gates->has_max_error_rate = cli_given(cli, "max-error-rate");
    gates->max_error_rate = s->max_error_rate;
    gates->has_max_ttft_ms = cli_given(cli, "max-ttft-ms");
    gates->max_ttft_ms = s->max_ttft_ms;
    gates->has_max_ttft_ratio = cli_given(cli, "max-ttft-ratio");
    gates->max_ttft_ratio = s->max_ttft_ratio;
    gates->has_min_answers = cli_given(cli, "min-answers");
    gates->min_answers = (uint32_t)s->min_answers;
    gates->has_ttft_quantile = cli_given(cli, "ttft-quantile");
    gates->ttft_quantile = s->ttft_quantile;
    gates->has_max_wait_ms = cli_given(cli, "max-wait");
    gates->max_wait_ms = s->max_wait_ms;
    gates->require_answers = s->require_answers;
    if (!gates->has_max_error_rate && !gates->has_max_ttft_ms && !gates->has_max_ttft_ratio &&
        !gates->has_min_answers && !gates->has_ttft_quantile && !gates->has_max_wait_ms &&
        !gates->require_answers)
        return false;
    /* A given gate leaves the other gates at their defaults. */
    if (!gates->has_max_error_rate) {
        gates->has_max_error_rate = 1;
        gates->max_error_rate = 0.05;
    }
    if (!gates->has_max_ttft_ratio && !gates->has_max_ttft_ms) {
        gates->has_max_ttft_ratio = 1;
        gates->max_ttft_ratio = 3;
    }
    return true;
}

static int run_update(struct cli *cli)
{
    Sluice__Manager__V1__UpdateModelVersionRequest request =
        SLUICE__MANAGER__V1__UPDATE_MODEL_VERSION_REQUEST__INIT;
    Sluice__Manager__V1__UpdateGates gates;
    const struct cli_settings *s = &cli->settings;
    uint32_t steps[MAX_STEPS];
    char id[UUID_BYTES];
    ProtobufCMessage *message = NULL;
    struct error err;
    if (!s->to_version || !s->to_version[0])
        error_set(&err, STATUS_INVALID_ARGUMENT, "--to: give the version that is to serve");
    else
        error_clear(&err);
    if (err.status || parse_steps(s->steps, steps, &request.n_steps, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)s->to_version;
    request.from_version = (char *)(uintptr_t)s->from_version;
    request.device_group = (char *)(uintptr_t)s->device_group;
    request.request_id = cli_request_id(cli, id);
    request.validate_only = s->validate_only;
    request.steps = steps;
    request.has_step_ms = cli_given(cli, "step");
    request.step_ms = s->step_ms;
    request.has_n_replicas = s->replicas != 0;
    request.n_replicas = (uint32_t)s->replicas;
    request.gates = fill_gates(cli, &gates) ? &gates : NULL;
    request.has_grace_ms = cli_given(cli, "grace");
    request.grace_ms = (uint32_t)s->grace_ms;
    int rc = cli_call(cli, "UpdateModelVersion", &request.base, &message, &err);
    const Sluice__Manager__V1__UpdateModelVersionResponse *response =
        (const Sluice__Manager__V1__UpdateModelVersionResponse *)message;
    if (!rc && !s->no_wait && response->operation)
        rc = action_follow(cli, response->operation->id, &message, &err);
    if (!rc) {
        action_print(cli, message);
        rc = action_plan_status(cli, message);
        error_clear(&err);
    }
    rpc_message_free(message);
    return rc && err.status ? cli_fail(cli, &err) : rc;
}

static const struct option_spec specs[] = {
    {"to", 0, OPTION_STRING, CLI_OPTION(to_version), "", "VERSION",
     "registered version that is to serve", 0, 0},
    {"from", 0, OPTION_STRING, CLI_OPTION(from_version), "", "VERSION",
     "version to replace; empty: the loaded version", 0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "", "GROUP",
     "device group; empty: the group that the version is loaded on", 0, 0},
    {"replicas", 0, OPTION_U64, CLI_OPTION(replicas), NULL, "N",
     "replicas of the new version; default: as many as the old version has", 1, 64},
    {"steps", 0, OPTION_STRING, CLI_OPTION(steps), "", "LIST",
     "percents of the old version's traffic to move, in this order; default: 10,50,100", 0, 0},
    {"step", 0, OPTION_MS, CLI_OPTION(step_ms), "30s", "TIME",
     "duration of each step; --max-wait can extend it", 0, 86400000},
    {"max-error-rate", 0, OPTION_F64, CLI_OPTION(max_error_rate), "0.05", "X",
     "roll back if more than this share of the new version's answers fail, 0 to 1", 0, 0},
    {"max-ttft-ratio", 0, OPTION_F64, CLI_OPTION(max_ttft_ratio), "3", "X",
     "roll back if the new version's first token takes more than X times the old version's", 0, 0},
    {"max-ttft-ms", 0, OPTION_F64, CLI_OPTION(max_ttft_ms), NULL, "MS",
     "roll back if the new version's first token takes longer than this; replaces the default "
     "--max-ttft-ratio",
     0, 0},
    {"min-answers", 0, OPTION_U64, CLI_OPTION(min_answers), "20", "N",
     "answers that a step needs for its gates; a step with fewer waits (--max-wait)", 0,
     4294967295},
    {"ttft-quantile", 0, OPTION_F64, CLI_OPTION(ttft_quantile), "0.9", "X",
     "quantile of the time to first token that the gates compare: 0.9: nine of ten answers were "
     "faster; 0: the mean",
     0, 0},
    {"max-wait", 0, OPTION_MS, CLI_OPTION(max_wait_ms), NULL, "TIME",
     "how long a step waits for more answers; default: four times --step, without traffic not at "
     "all",
     0, 86400000},
    {"require-answers", 0, OPTION_BOOL, CLI_OPTION(require_answers), "false", NULL,
     "roll back, instead of continuing, if a step gets too few answers", 0, 0},
    {"validate-only", 0, OPTION_BOOL, CLI_OPTION(validate_only), "false", NULL,
     "print the plan and change nothing; exit status 1 if it does not fit", 0, 0},
};
static const struct manual_example examples[] = {
    {"sluice update smol --to 2", NULL},
    {"sluice update smol --to 2 --validate-only", "shows if both versions fit beside each other"},
    {"sluice update smol --to 2 --steps 1,10,100 --step 5m --max-ttft-ms 800", NULL},
    {"sluice update smol --to 2 --no-wait", "roll back with sluice ops cancel"},
};

const struct cli_command cmd_update = {
    .name = "update",
    .arguments = "MODEL",
    .summary = "replace the loaded version by another without an interruption",
    .description = "Loads the new version beside the old one, moves traffic in steps, then drains "
                   "and unloads the old one. Rolls back by itself if the new version does not "
                   "start, loses a replica or crosses a limit below. Without traffic each step "
                   "takes --step and reports that nothing was measured. With --max-wait or "
                   "--require-answers a step waits for answers. The update runs in the manager and "
                   "continues if this command ends. `sluice ops cancel` rolls it back.",
    .examples = examples,
    .n_examples = CLI_N(examples),
    .specs = specs,
    .n_specs = CLI_N(specs),
    .groups = CLI_GRACE | CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_update,
};
