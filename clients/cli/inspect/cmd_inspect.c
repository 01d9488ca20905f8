/* cmd_inspect.c: `inspect`: what the files of a model hold, and the memory that a load takes. A
 * confined process reads the files: a worker beside this program, or the manager's. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "clients/cli/inspect/inspect_source.h"
#include "clients/cli/inspect/inspect_text.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/worker_tool.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

/* A folder's tokenizer may take seconds on a slow disk; the worker limits its own CPU time. */
enum { INSPECT_TIMEOUT_MS = 300000, EXIT_NOT_SERVED = 3 };

static int check_flags(const struct cli *cli, bool path, struct error *err)
{
    if (path && cli_given(cli, "group"))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--group: works for registered models; give --devices for a path");
    if (path && cli->settings.version[0])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--version: works for registered models; leave it out for a path");
    if (!path && cli->settings.devices[0])
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--devices: works for paths; give --group for a registered model, or write "
            "a path as ./%.200s",
            cli_word(cli, 0));
    return 0;
}

/* --- a path --- */

/* *out_message is the worker's report. */
static int inspect_path(struct cli *cli, const char *path, ProtobufCMessage **out_message,
                        const Sluice__V1__Inspection **out, struct error *err)
{
    char tp[24], pp[24];
    const char *devices = cli->settings.devices[0] ? cli->settings.devices : "cpu";
    snprintf(tp, sizeof(tp), "%" PRIu64, cli->settings.tp);
    snprintf(pp, sizeof(pp), "%" PRIu64, cli->settings.pp);
    const char *argv[WORKER_TOOL_MAX_ARGS] = {
        NULL, "inspect",   "--model", path,        "--plan=true",     "--text=false",     "--tp",
        tp,   "--devices", devices,   "--digest=", "--tensors=false", "--metadata=false", "--pp",
        pp};
    char *flags[LOAD_SETTINGS_MAX] = {NULL};
    Sluice__Worker__V1__ToolReport *report = NULL;
    int rc = worker_tool_add_flags(cli, LOAD_CLI_INSPECT, flags, argv, err);
    if (!rc)
        rc = worker_tool_run(argv, SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT,
                             INSPECT_TIMEOUT_MS, &report, err);
    worker_tool_free_flags(flags);
    if (rc) {
        inspect_source_advise(cli, err);
        return rc;
    }
    if (!report->inspect->inspection) {
        rpc_message_free(&report->base);
        return error_set(err, STATUS_INTERNAL,
                         "sluice-worker sent no facts; install sluice and sluice-worker of the "
                         "same version");
    }
    *out_message = &report->base;
    *out = report->inspect->inspection;
    return 0;
}

/* --- a registered model --- */

static int inspect_registered(struct cli *cli, ProtobufCMessage **out_message,
                              const Sluice__V1__Inspection **out, struct error *err)
{
    Sluice__Manager__V1__InspectModelVersionRequest request =
        SLUICE__MANAGER__V1__INSPECT_MODEL_VERSION_REQUEST__INIT;
    Sluice__Manager__V1__ModelConfig config;
    char draft[PATH_MAX];
    action_fill_config(cli, LOAD_CLI_INSPECT, &config, draft);
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)cli->settings.version;
    request.device_group = (char *)(uintptr_t)cli->settings.device_group;
    request.has_tp = true;
    request.tp = (uint32_t)cli->settings.tp;
    request.has_pp = true;
    request.pp = (uint32_t)cli->settings.pp;
    request.config = &config;
    int rc = cli_call(cli, "InspectModelVersion", &request.base, out_message, err);
    if (rc)
        inspect_source_advise_call(cli, err);
    if (rc)
        return rc;
    *out = ((const Sluice__Manager__V1__InspectModelVersionResponse *)*out_message)->inspection;
    if (*out && (*out)->info)
        return 0;
    rpc_message_free(*out_message);
    return error_set(err, STATUS_INTERNAL, "the manager sent no facts");
}

static void print_text(const struct cli *cli, ProtobufCMessage *message,
                       const Sluice__V1__Inspection *inspection)
{
    struct strbuf source;
    strbuf_init(&source, 0);
    printable_message(message); /* texts come from the model's files */
    if (message->descriptor == &sluice__manager__v1__inspect_model_version_response__descriptor) {
        const Sluice__Manager__V1__InspectModelVersionResponse *response =
            (const Sluice__Manager__V1__InspectModelVersionResponse *)message;
        strbuf_printf(&source, "%s version %s, %s", response->model, response->version,
                      response->path);
    } else {
        printable_add(&source, cli_word(cli, 0));
    }
    inspect_text_print(strbuf_str(&source), inspection);
    strbuf_fini(&source);
}

static int run_inspect(struct cli *cli)
{
    const Sluice__V1__Inspection *inspection = NULL;
    ProtobufCMessage *message = NULL;
    struct error err;
    bool path = inspect_source_is_path(cli);
    if (check_flags(cli, path, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    int rc = path ? inspect_path(cli, cli_word(cli, 0), &message, &inspection, &err)
                  : inspect_registered(cli, &message, &inspection, &err);
    if (rc)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(&inspection->base);
    else
        print_text(cli, message, inspection);
    rc = inspection->unsupported_reason[0] ? EXIT_NOT_SERVED : 0;
    rpc_message_free(message);
    return rc;
}

static const struct option_spec inspect_specs[] = {
    {"tp", 0, OPTION_U64, CLI_OPTION(tp), "1", "N",
     "plan the memory for N ranks that split every layer: 1, 2, 4 or 8", 1, 8},
    {"pp", 0, OPTION_U64, CLI_OPTION(pp), "1", "N",
     "plan the memory for N stages that divide the layers, of --tp ranks each", 1, 8},
    {"devices", 0, OPTION_STRING, CLI_OPTION(devices), "", "LIST",
     "plan a path for these devices: a GPU, like cuda:0, or NUMA nodes, like cpu:0,cpu:1; empty: "
     "all NUMA nodes",
     0, 0},
    {"group", 'g', OPTION_STRING, CLI_OPTION(device_group), "cpu", "GROUP",
     "plan a registered model for this device group", 0, 0},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version of a registered model; empty: the one registered last", 0, 0},
};
static const struct manual_example inspect_examples[] = {
    {"sluice inspect ./SmolLM2-135M-Instruct.Q4_1.gguf", NULL},
    {"sluice inspect ./Qwen3-0.6B --tp 2", "bytes of each rank"},
    {"sluice inspect smol:2 --context-length 4096", "a registered version"},
    {"sluice inspect ./model.gguf --json | jq '.layers[] | {reach, n: (.layers | length)}'", NULL},
};
static const struct manual_exit inspect_exits[] = {
    {EXIT_NOT_SERVED, "the files can be read, but Sluice does not serve such a model"}};

const struct cli_command cmd_inspect = {
    .name = "inspect",
    .arguments = "MODEL",
    .summary = "show what a model's files hold, and the memory of a load",
    .description =
        "MODEL is a path or a registered model. A path leads to a GGUF file, to a Hugging Face "
        "folder, or to a snapshot in the Hub's cache. A word with a slash is a path. The name of a "
        "file or folder in the current directory is a path too, unless --version or --group is "
        "given. The manager inspects registered models.\n\nA sandboxed process reads the files, "
        "and "
        "nothing is loaded. The command prints architecture, layers by kind, parameters, formats, "
        "context, tokenizer, end tokens and chat templates. Further lines name the sampling that "
        "the "
        "files recommend, and the keys and tensors that are not used. The lines of memory are the "
        "plan of one replica, as `sluice load --validate-only` makes it. The free memory decides "
        "the size of the KV cache, unless --kv-tokens is given.",
    .examples = inspect_examples,
    .n_examples = CLI_N(inspect_examples),
    .specs = inspect_specs,
    .n_specs = CLI_N(inspect_specs),
    .groups = CLI_SIZES | CLI_MANAGE,
    .exits = inspect_exits,
    .n_exits = CLI_N(inspect_exits),
    .see_also = "sluice-plan(1), sluice-register(1), sluice-doctor(1), sluice-show(1)",
    .run = run_inspect,
};
