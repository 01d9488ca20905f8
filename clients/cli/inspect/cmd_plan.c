/* cmd_plan.c: `plan`: the ways to divide a model over a group of devices, and their predicted
 * speed. A confined process reads the files: a worker beside this program, or the manager's. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "clients/cli/inspect/inspect_source.h"
#include "clients/cli/inspect/plan_groups.h"
#include "clients/cli/inspect/plan_text.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/worker_tool.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

enum { PLAN_TIMEOUT_MS = 300000, EXIT_NO_SPLIT = 3 };

/* *out_message is the worker's report. */
static int plan_path(struct cli *cli, const char *groups, ProtobufCMessage **out_message,
                     const Sluice__V1__Plan **out, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    char tp[24], pp[24], requests[24], depth[24];
    snprintf(tp, sizeof(tp), "%" PRIu64, s->tp);
    snprintf(pp, sizeof(pp), "%" PRIu64, s->pp);
    snprintf(requests, sizeof(requests), "%" PRIu64, s->requests);
    snprintf(depth, sizeof(depth), "%" PRIu64, s->depth_tokens);
    const char *argv[WORKER_TOOL_MAX_ARGS] = {NULL,
                                              "plan",
                                              "--model",
                                              cli_word(cli, 0),
                                              "--text=false",
                                              "--digest=",
                                              "--split-groups",
                                              groups,
                                              "--split-tp",
                                              tp,
                                              "--split-pp",
                                              pp,
                                              "--devices",
                                              "cpu",
                                              "--split-requests",
                                              requests,
                                              "--split-depth",
                                              depth};
    char *flags[LOAD_SETTINGS_MAX] = {NULL};
    Sluice__Worker__V1__ToolReport *report = NULL;
    int rc = worker_tool_add_flags(cli, LOAD_CLI_INSPECT, flags, argv, err);
    if (!rc)
        rc = worker_tool_run(argv, SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN, PLAN_TIMEOUT_MS,
                             &report, err);
    worker_tool_free_flags(flags);
    if (rc) {
        inspect_source_advise(cli, err);
        return rc;
    }
    *out_message = &report->base;
    *out = report->plan;
    return 0;
}

static int plan_registered(struct cli *cli, const char *groups, ProtobufCMessage **out_message,
                           const Sluice__V1__Plan **out, struct error *err)
{
    Sluice__Manager__V1__InspectModelVersionRequest request =
        SLUICE__MANAGER__V1__INSPECT_MODEL_VERSION_REQUEST__INIT;
    Sluice__Manager__V1__ModelConfig config;
    char draft[PATH_MAX];
    action_fill_config(cli, LOAD_CLI_INSPECT, &config, draft);
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)cli->settings.version;
    request.has_tp = cli->settings.tp != 0;
    request.tp = (uint32_t)cli->settings.tp;
    request.has_pp = cli->settings.pp != 0;
    request.pp = (uint32_t)cli->settings.pp;
    request.groups = (char *)(uintptr_t)groups;
    request.n_requests = (uint32_t)cli->settings.requests;
    request.depth_tokens = (uint32_t)cli->settings.depth_tokens;
    request.config = &config;
    int rc = cli_call(cli, "InspectModelVersion", &request.base, out_message, err);
    if (rc) {
        inspect_source_advise_call(cli, err);
        return rc;
    }
    const Sluice__V1__Inspection *in =
        ((const Sluice__Manager__V1__InspectModelVersionResponse *)*out_message)->inspection;
    if (in && in->plan && in->plan->n_groups) {
        *out = in->plan;
        return 0;
    }
    if (in && in->plan_error)
        rc = error_set(err, STATUS_FAILED_PRECONDITION, "%s", in->plan_error->message);
    else if (in && in->unsupported_reason[0])
        rc = error_set(err, STATUS_UNIMPLEMENTED, "%s", in->unsupported_reason);
    else
        rc = error_set(err, STATUS_INTERNAL,
                       "the manager sent no plan of groups; install sluice and sluice-manager of "
                       "the same version");
    rpc_message_free(*out_message);
    return rc;
}

static int print(struct cli *cli, ProtobufCMessage *message, const Sluice__V1__Plan *plan)
{
    bool all = true;
    if (cli->settings.json)
        output_json(&plan->base);
    else
        printable_message(message);
    for (size_t i = 0; i < plan->n_groups; i++) {
        all &= plan_text_has_split(plan->groups[i]);
        if (cli->settings.json)
            continue;
        if (i)
            putchar('\n');
        plan_text_print(plan->groups[i]);
    }
    return all ? 0 : EXIT_NO_SPLIT;
}

static int run_plan(struct cli *cli)
{
    const Sluice__V1__Plan *plan = NULL;
    ProtobufCMessage *message = NULL;
    struct strbuf groups = {0};
    struct error err;
    bool path = inspect_source_is_path(cli);
    int rc = plan_groups_describe(cli, cli->settings.groups, &groups, &err);
    if (!rc)
        rc = path ? plan_path(cli, strbuf_str(&groups), &message, &plan, &err)
                  : plan_registered(cli, strbuf_str(&groups), &message, &plan, &err);
    strbuf_fini(&groups);
    if (rc)
        return cli_fail(cli, &err);
    rc = print(cli, message, plan);
    rpc_message_free(message);
    return rc;
}

static const struct option_spec plan_specs[] = {
    {"groups", 'g', OPTION_STRING, CLI_OPTION(groups), "cpu", "GROUP",
     "groups of devices, separated by commas: a description, or a device group of the manager", 0,
     0},
    {"tp", 0, OPTION_U64, CLI_OPTION(tp), "0", "N",
     "only splits with N ranks that split every layer: 1, 2, 4 or 8; 0: all that divide the group",
     0, 8},
    {"pp", 0, OPTION_U64, CLI_OPTION(pp), "0", "N",
     "only splits with N stages that divide the layers; 0: all that divide the group", 0, 8},
    {"requests", 'n', OPTION_U64, CLI_OPTION(requests), "32", "N",
     "requests at once; the split with the most tokens per second is recommended; 1: the split "
     "that answers one request soonest",
     1, 65536},
    {"depth", 'd', OPTION_U64, CLI_OPTION(depth_tokens), "1024", "N",
     "context tokens of each request", 1, 1 << 24},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version of a registered model; empty: the one registered last", 0, 0},
};
static const struct manual_example plan_examples[] = {
    {"sluice plan ./Llama-3.3-70B-Instruct --groups 8xh100,2x8xh100",
     "eight GPUs, and two machines with eight each"},
    {"sluice plan ./model.gguf --groups 2xgpu:memory=48G:read=700G:compute=180T",
     "GPUs of a kind that is not known"},
    {"sluice plan ./model.gguf --groups 8xcpu:read=14G --tp 2 --pp 2", "a single split of a CPU"},
    {"sluice plan smol:2 --groups gpus --requests 1", "a registered model on a device group"},
    {"sluice plan ./model.gguf --json | jq '.groups[].splits[] | select(.recommended)'", NULL},
};
static const struct manual_item plan_items[] = {
    {"KIND", "h100, h200, a100, gpu or cpu, with typical figures of a device or core"},
    {"COUNTxKIND", "so many GPUs of a machine, or cores: 8xh100, 4xcpu"},
    {"MACHINESxCOUNTxKIND", "so many machines: 2x8xh100"},
    {"...:KEY=VALUE", "replaces a figure, like 8xh100:memory=80G:link=450G"},
    {"memory read compute", "bytes, bytes per second and operations per second of a device"},
    {"shared", "bytes per second that all cores of a CPU read together"},
    {"link latency", "bytes per second between ranks, and microseconds of a sum over ranks"},
    {"net netlatency", "the same between machines"},
    {"step", "microseconds of a step beside its layers"},
    {"name", "a name for the group in the output"},
};
static const struct manual_exit plan_exits[] = {
    {EXIT_NO_SPLIT, "no split of a group fits, or this version cannot load those that fit"}};

const struct cli_command cmd_plan = {
    .name = "plan",
    .arguments = "MODEL",
    .summary = "predict how a model divides over a group of devices",
    .description =
        "MODEL is a path or a registered model, as for `sluice inspect`. Only the headers of its "
        "files are read, and the devices need not exist.\n\nEach split has --tp ranks that divide "
        "every layer, and --pp stages that divide the layers. Replicas fill the group. The command "
        "prints the weights, KV cache, workspace and bytes on the wire of each rank, and tokens "
        "per second. ALL TOK/S counts all replicas, PROMPT TOK/S a single one. Speeds are "
        "predictions "
        "from the assumed figures, not measurements. Splits "
        "that the model does not allow are named with the reason. Splits that this version cannot "
        "load are marked and not recommended.",
    .examples = plan_examples,
    .n_examples = CLI_N(plan_examples),
    .specs = plan_specs,
    .n_specs = CLI_N(plan_specs),
    .groups = CLI_SIZES | CLI_MANAGE,
    .items_title = "groups",
    .items = plan_items,
    .n_items = CLI_N(plan_items),
    .exits = plan_exits,
    .n_exits = CLI_N(plan_exits),
    .see_also = "sluice-inspect(1), sluice-load(1), sluice-groups-list(1)",
    .run = run_plan,
};
