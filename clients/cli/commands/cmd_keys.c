/* cmd_keys.c: `keys`: the API keys in the manager's database. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/access/api_keys.h"
#include "base/access/role.h"
#include "base/clock.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

typedef Sluice__Manager__V1__ApiKey api_key;

static const char *role_text(int role)
{
    static const enum role roles[] = {ROLE_NONE, ROLE_VIEWER, ROLE_OPERATOR, ROLE_ADMIN};
    return (size_t)role < CLI_N(roles) ? role_name(roles[role]) : "?";
}

static const char *format_day(int64_t unix_ns, char out[32])
{
    time_t seconds = (time_t)(unix_ns / NS_PER_S);
    struct tm utc;
    if (unix_ns == 0)
        return "never";
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    return out;
}

static const char *state_of(const api_key *key)
{
    if (key->revoked_unix_ns)
        return "revoked";
    return key->expires_unix_ns && key->expires_unix_ns <= clock_wall_ns() ? "expired" : "good";
}

static void print_keys(const Sluice__Manager__V1__ListApiKeysResponse *response)
{
    static const char *const headers[] = {"NAME", "ROLE", "STATE", "EXPIRES", "BY", "AGE", "ID"};
    struct output_table table;
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < response->n_keys; i++) {
        const api_key *key = response->keys[i];
        char age[32], expires[32];
        const char *cells[] = {key->name,       role_text((int)key->role),
                               state_of(key),   format_day(key->expires_unix_ns, expires),
                               key->created_by, output_age(key->created_unix_ns, age),
                               key->id};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
}

static int run_list(struct cli *cli)
{
    Sluice__Manager__V1__ListApiKeysRequest request =
        SLUICE__MANAGER__V1__LIST_API_KEYS_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.include_revoked = cli->settings.all;
    if (cli_call(cli, "ListApiKeys", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        print_keys((const Sluice__Manager__V1__ListApiKeysResponse *)message);
    rpc_message_free(message);
    return 0;
}

static int fill_create(const struct cli *cli, Sluice__Manager__V1__CreateApiKeyRequest *request,
                       struct error *err)
{
    const char *role = cli->settings.role;
    int64_t expires_unix_s = 0;
    enum role parsed = ROLE_NONE;
    if (!role_parse(role, strlen(role), &parsed) || parsed < ROLE_VIEWER)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--role: give viewer, operator or admin; for inference keys use `sluice key new`");
    if (cli->settings.expires[0] &&
        api_key_parse_time(cli->settings.expires, &expires_unix_s, err) != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--expires: give a time in UTC such as 2027-01-31T00:00:00Z");
    if (expires_unix_s > INT64_MAX / NS_PER_S)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--expires: give a time before 2262-04-11, or leave out --expires for no expiry");
    request->name = (char *)(uintptr_t)cli_word(cli, 0);
    request->role =
        (Sluice__Manager__V1__ManagementRole)(parsed - ROLE_VIEWER +
                                              SLUICE__MANAGER__V1__MANAGEMENT_ROLE__MANAGEMENT_ROLE_VIEWER);
    request->expires_unix_ns = expires_unix_s * NS_PER_S;
    return 0;
}

/* Explains a repeated request id: the secret was shown once and is not shown again. */
static void explain_repeated_request(const api_key *key)
{
    char when[32];
    if (strcmp(state_of(key), "expired") == 0)
        fprintf(stderr,
                "An earlier request with this id made the key %s, which has expired at %s; revoke "
                "the key and make another.\n",
                key->name, format_day(key->expires_unix_ns, when));
    else
        fprintf(stderr,
                "An earlier request with this id made and showed the key %s; if the key is lost, "
                "revoke it and make another.\n",
                key->name);
}

static int run_create(struct cli *cli)
{
    Sluice__Manager__V1__CreateApiKeyRequest request =
        SLUICE__MANAGER__V1__CREATE_API_KEY_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES];
    request.request_id = cli_request_id(cli, id);
    if (fill_create(cli, &request, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    if (cli_call(cli, "CreateApiKey", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    Sluice__Manager__V1__CreateApiKeyResponse *response =
        (Sluice__Manager__V1__CreateApiKeyResponse *)message;
    if (cli->settings.json)
        output_json(message);
    else if (response->secret[0])
        printf("%s\n", response->secret);
    if (response->secret[0])
        fprintf(stderr, "This is the key %s; it is shown only now.\n", request.name);
    else if (response->key)
        explain_repeated_request(response->key);
    int rc = response->secret[0] ? 0 : 1;
    explicit_bzero(response->secret, strlen(response->secret));
    rpc_message_free(message);
    return rc;
}

static int run_revoke(struct cli *cli)
{
    Sluice__Manager__V1__RevokeApiKeyRequest request =
        SLUICE__MANAGER__V1__REVOKE_API_KEY_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    char id[UUID_BYTES];
    request.name = (char *)(uintptr_t)cli_word(cli, 0);
    request.request_id = cli_request_id(cli, id);
    if (cli_call(cli, "RevokeApiKey", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    int in_memory_only =
        ((const Sluice__Manager__V1__RevokeApiKeyResponse *)message)->in_memory_only;
    if (cli->settings.json)
        output_json(message);
    else
        printf("revoked %s\n", request.name);
    if (in_memory_only)
        fprintf(stderr,
                "The manager accepts the key no longer, but cannot write to its disk. The manager "
                "writes the change as soon as there is room; a restart before that would accept "
                "the key again. "
                "Repeat `sluice keys revoke %s --request-id %s` until it ends with status 0.\n",
                request.name, request.request_id);
    rpc_message_free(message);
    return in_memory_only ? 1 : 0;
}

static const struct option_spec list_specs[] = {
    {"all", 0, OPTION_BOOL, CLI_OPTION(all), "false", NULL, "list revoked keys too", 0, 0},
};
static const struct option_spec create_specs[] = {
    {"role", 0, OPTION_STRING, CLI_OPTION(role), "", "viewer|operator|admin", "role of the key", 0,
     0},
    {"expires", 0, OPTION_STRING, CLI_OPTION(expires), "", "TIME",
     "expiry in UTC: 2027-01-31T00:00:00Z; empty: never", 0, 0},
};
static const struct manual_example list_examples[] = {{"sluice keys --all", NULL}};
static const struct manual_example create_examples[] = {
    {"sluice keys create deploy --role operator > deploy.key", NULL},
    {"sluice ps --manager sluice.example.org:8003 --tls-ca ca.pem --api-key-file deploy.key",
     NULL}};
static const struct manual_example revoke_examples[] = {{"sluice keys revoke deploy", NULL}};

const struct cli_command cmd_keys_list = {
    .name = "keys list",
    .arguments = "",
    .summary = "list the manager's API keys (also: sluice keys)",
    .description = "Lists the keys in the manager's database, which stores only their SHA-256. "
                   "Keys of --manage-keys-file are not listed.",
    .examples = list_examples,
    .n_examples = CLI_N(list_examples),
    .specs = list_specs,
    .n_specs = CLI_N(list_specs),
    .groups = CLI_MANAGE,
    .run = run_list,
};
const struct cli_command cmd_keys_create = {
    .name = "keys create",
    .arguments = "NAME",
    .summary = "make an API key for management",
    .description = "Prints the key (256 random bits) once. The key works at once, for management "
                   "only. `sluice key new` makes keys for the data plane. In the manager's events "
                   "its holder appears as key:NAME. Needs the role "
                   "admin; callers on the manager's unix socket have it.",
    .examples = create_examples,
    .n_examples = CLI_N(create_examples),
    .specs = create_specs,
    .n_specs = CLI_N(create_specs),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_create,
};
const struct cli_command cmd_keys_revoke = {
    .name = "keys revoke",
    .arguments = "NAME",
    .summary = "revoke an API key for management",
    .description =
        "After this command the manager accepts no new calls with the key. Running calls and "
        "watches continue. Exit status 1 if the manager revoked the key but cannot write to its "
        "disk: a restart would then accept the key again. The message shows the command to repeat.",
    .examples = revoke_examples,
    .n_examples = CLI_N(revoke_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_revoke,
};
