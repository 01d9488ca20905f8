/* cmd_policy.c: `policy`: the versions of a model that stay loaded. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__VersionPolicy policy_message;

static int set(struct cli *cli, ProtobufCMessage **out_response, struct error *err)
{
    Sluice__Manager__V1__SetVersionPolicyRequest request =
        SLUICE__MANAGER__V1__SET_VERSION_POLICY_REQUEST__INIT;
    Sluice__Manager__V1__SpecificVersions specific = SLUICE__MANAGER__V1__SPECIFIC_VERSIONS__INIT;
    policy_message policy = SLUICE__MANAGER__V1__VERSION_POLICY__INIT;
    char *versions[64], id[UUID_BYTES];
    const struct cli_settings *s = &cli->settings;
    for (size_t i = 1; cli_word(cli, i) && specific.n_versions < CLI_N(versions); i++)
        versions[specific.n_versions++] = (char *)(uintptr_t)cli_word(cli, i);
    specific.versions = versions;
    if (s->latest) {
        policy.kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST;
        policy.latest = (uint32_t)s->latest;
    } else if (s->policy_all) {
        policy.kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL;
        policy.all = 1;
    } else if (specific.n_versions) {
        policy.kind_case = SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC;
        policy.specific = &specific;
    }
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    request.policy = &policy;
    return cli_call(cli, "SetVersionPolicy", &request.base, out_response, err);
}

static void print_policy(const Sluice__Manager__V1__Model *model)
{
    const policy_message *policy = model->policy;
    struct strbuf text;
    strbuf_init(&text, 0);
    if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST)
        printf("%s: the latest %" PRIu32 "\n", model->name, policy->latest);
    else if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL)
        printf("%s: all versions\n", model->name);
    else if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC)
        printf("%s: %s\n", model->name,
               cli_joined(policy->specific->n_versions, policy->specific->versions, &text));
    else
        printf("%s: no policy; load and unload versions by hand\n", model->name);
    strbuf_fini(&text);
}

static int run_policy(struct cli *cli)
{
    const struct cli_settings *s = &cli->settings;
    Sluice__Manager__V1__GetModelRequest get = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    struct error err;
    int n_kinds = (s->latest != 0) + s->policy_all + s->clear + (cli_word(cli, 1) != NULL);
    if (n_kinds > 1) {
        error_set(&err, STATUS_INVALID_ARGUMENT,
                  "give only one of --latest, --all, --clear and versions");
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    get.model = (char *)(uintptr_t)cli_word(cli, 0);
    int rc =
        n_kinds ? set(cli, &message, &err) : cli_call(cli, "GetModel", &get.base, &message, &err);
    if (rc)
        return cli_fail(cli, &err);
    if (s->json)
        output_json(message);
    else
        print_policy(n_kinds
                         ? ((const Sluice__Manager__V1__SetVersionPolicyResponse *)message)->model
                         : ((const Sluice__Manager__V1__GetModelResponse *)message)->model);
    rpc_message_free(message);
    return 0;
}

static const struct option_spec specs[] = {
    {"latest", 0, OPTION_U64, CLI_OPTION(latest), NULL, "N", "keep the N versions registered last",
     1, 1000},
    {"all", 0, OPTION_BOOL, CLI_OPTION(policy_all), "false", NULL, "keep every version", 0, 0},
    {"clear", 0, OPTION_BOOL, CLI_OPTION(clear), "false", NULL,
     "remove the policy; load and unload by hand", 0, 0},
};
static const struct manual_example examples[] = {
    {"sluice policy smol", "show the policy"},
    {"sluice policy smol --latest 1",
     "the newest version replaces the loaded one, now and after each register"},
    {"sluice policy smol 1 3", "keep versions 1 and 3"},
};

const struct cli_command cmd_policy = {
    .name = "policy",
    .arguments = "MODEL [VERSION...]",
    .summary = "show or set the versions that stay loaded",
    .description = "A new policy takes effect at once. Its versions are loaded with the settings "
                   "of the loaded version registered last. Other versions are unloaded once a "
                   "version of the policy is ready. If no version is loaded, for example after "
                   "`sluice unload MODEL`, the policy waits for a load.",
    .examples = examples,
    .n_examples = CLI_N(examples),
    .specs = specs,
    .n_specs = CLI_N(specs),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_policy,
};
