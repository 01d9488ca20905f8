#include "clients/cli/shell/complete.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/table.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/v1/inference.pb-c.h"

enum { ASK_MS = 500 }; /* timeout of a call: a person waits for the tab key */

struct completion {
    struct cli cli;
    struct option_spec specs[CLI_MAX_SPECS];
    const char *current;
    const char *prefix; /* text before the value: "--name=" */
    size_t n_prefix;
};

/* True if the name is safe on a shell command line. Names come from a server, so other names are
 * not offered. */
static bool is_plain(const char *word)
{
    for (; *word; word++)
        if (!isalnum((unsigned char)*word) && !strchr("@%+=:,./-_", *word))
            return false;
    return true;
}

static void offer(const struct completion *c, const char *word, const char *what)
{
    if (strncmp(word, c->current, strlen(c->current)) != 0 || !is_plain(word))
        return;
    printf("%.*s%s\t", (int)c->n_prefix, c->prefix, word);
    for (; what && *what; what++) /* control characters would break the candidate's line */
        putchar((unsigned char)*what < 0x20 || *what == 0x7F ? ' ' : *what);
    putchar('\n');
}

/* --- commands and options --- */

static void offer_commands(const struct completion *c)
{
    char last[64] = "", word[64];
    for (size_t i = 0; i < table_n_commands(); i++) {
        const struct cli_command *command = table_command(i);
        size_t n = strcspn(command->name, " ");
        snprintf(word, sizeof(word), "%.*s", (int)n, command->name);
        if (strcmp(word, last) != 0)
            offer(c, word, command->summary);
        snprintf(last, sizeof(last), "%s", word);
    }
}

static void offer_family(const struct completion *c, const char *family)
{
    size_t n = strlen(family);
    for (size_t i = 0; i < table_n_commands(); i++)
        if (strncmp(table_command(i)->name, family, n) == 0 && table_command(i)->name[n] == ' ')
            offer(c, table_command(i)->name + n + 1, table_command(i)->summary);
}

static void offer_options(const struct completion *c)
{
    char word[96];
    for (size_t i = 0; i < c->cli.n_specs; i++) {
        snprintf(word, sizeof(word), "--%s", c->specs[i].name);
        offer(c, word, c->specs[i].help);
    }
    snprintf(word, sizeof(word), "--%s", option_config.name);
    offer(c, word, option_config.help);
}

/* --- names that only the running programs know --- */

static int ask(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
               const char *method, const ProtobufCMessage *request, ProtobufCMessage **out)
{
    struct rpc_call_options options = {.timeout_ms = ASK_MS};
    struct error err;
    return rpc_client_unary(client, service, method, request, &options, out, &err);
}

static int ask_manager(struct completion *c, const char *method, const ProtobufCMessage *request,
                       ProtobufCMessage **out)
{
    struct rpc_client *client;
    struct error err;
    int rc = cli_manager(&c->cli, &client, &err);
    return rc ? rc
              : ask(client, &sluice__manager__v1__model_manager__descriptor, method, request, out);
}

static int offer_managed_models(struct completion *c)
{
    Sluice__Manager__V1__ListModelsRequest request = SLUICE__MANAGER__V1__LIST_MODELS_REQUEST__INIT;
    ProtobufCMessage *message;
    int rc = ask_manager(c, "ListModels", &request.base, &message);
    if (rc)
        return rc;
    const Sluice__Manager__V1__ListModelsResponse *all =
        (const Sluice__Manager__V1__ListModelsResponse *)message;
    for (size_t i = 0; i < all->n_models; i++)
        offer(c, all->models[i]->name, "model");
    rpc_message_free(message);
    return 0;
}

static void offer_served_models(struct completion *c)
{
    Sluice__V1__ListModelsRequest request = SLUICE__V1__LIST_MODELS_REQUEST__INIT;
    struct rpc_client *client;
    ProtobufCMessage *message;
    struct error err;
    if (cli_server(&c->cli, &client, &err) != 0 ||
        ask(client, &sluice__v1__inference__descriptor, "ListModels", &request.base, &message) != 0)
        return;
    const Sluice__V1__ListModelsResponse *all = (const Sluice__V1__ListModelsResponse *)message;
    for (size_t i = 0; i < all->n_models; i++)
        offer(c, all->models[i]->name, "served model");
    rpc_message_free(message);
}

static void offer_models(struct completion *c)
{
    if (offer_managed_models(c) != 0)
        offer_served_models(c);
    if (strpbrk(c->current, "./~"))
        puts(":files"); /* `run` takes a checkpoint's path too */
}

static void offer_versions(struct completion *c)
{
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message;
    request.model = (char *)(uintptr_t)cli_word(&c->cli, 0);
    if (!request.model || ask_manager(c, "GetModel", &request.base, &message) != 0)
        return;
    const Sluice__Manager__V1__Model *model =
        ((const Sluice__Manager__V1__GetModelResponse *)message)->model;
    for (size_t i = 0; model && i < model->n_versions; i++)
        offer(c, model->versions[i]->version, model->name);
    rpc_message_free(message);
}

static void offer_replicas(struct completion *c)
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message;
    if (ask_manager(c, "ListReplicas", &request.base, &message) != 0)
        return;
    const Sluice__Manager__V1__ListReplicasResponse *all =
        (const Sluice__Manager__V1__ListReplicasResponse *)message;
    for (size_t i = 0; i < all->n_replicas; i++)
        offer(c, all->replicas[i]->id, all->replicas[i]->model);
    rpc_message_free(message);
}

static void offer_operations(struct completion *c)
{
    Sluice__Manager__V1__ListOperationsRequest request =
        SLUICE__MANAGER__V1__LIST_OPERATIONS_REQUEST__INIT;
    ProtobufCMessage *message;
    if (ask_manager(c, "ListOperations", &request.base, &message) != 0)
        return;
    const Sluice__Manager__V1__ListOperationsResponse *all =
        (const Sluice__Manager__V1__ListOperationsResponse *)message;
    for (size_t i = 0; i < all->n_operations; i++)
        offer(c, all->operations[i]->id, all->operations[i]->model);
    rpc_message_free(message);
}

static void offer_groups(struct completion *c)
{
    Sluice__Manager__V1__ListDeviceGroupsRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICE_GROUPS_REQUEST__INIT;
    ProtobufCMessage *message;
    if (ask_manager(c, "ListDeviceGroups", &request.base, &message) != 0)
        return;
    const Sluice__Manager__V1__ListDeviceGroupsResponse *all =
        (const Sluice__Manager__V1__ListDeviceGroupsResponse *)message;
    for (size_t i = 0; i < all->n_groups; i++)
        offer(c, all->groups[i]->name, "device group");
    rpc_message_free(message);
}

static void offer_devices(struct completion *c)
{
    Sluice__Manager__V1__ListDevicesRequest request =
        SLUICE__MANAGER__V1__LIST_DEVICES_REQUEST__INIT;
    ProtobufCMessage *message;
    if (ask_manager(c, "ListDevices", &request.base, &message) != 0)
        return;
    const Sluice__Manager__V1__ListDevicesResponse *all =
        (const Sluice__Manager__V1__ListDevicesResponse *)message;
    for (size_t i = 0; i < all->n_devices; i++)
        if (all->devices[i]->device)
            offer(c, all->devices[i]->device->name, all->devices[i]->device->description);
    rpc_message_free(message);
}

/* --- values --- */

static void offer_choices(const struct completion *c, const char *choices)
{
    char word[64];
    while (*choices) {
        size_t n = strcspn(choices, "|");
        snprintf(word, sizeof(word), "%.*s", (int)n, choices);
        offer(c, word, NULL);
        choices += n + (choices[n] == '|');
    }
}

static void offer_files(struct completion *c)
{
    (void)c;
    puts(":files");
}

static void offer_directories(struct completion *c)
{
    (void)c;
    puts(":directories");
}

static void offer_command_words(struct completion *c)
{
    offer_commands(c);
}

static void offer_kind(struct completion *c, const char *kind)
{
    static const struct {
        const char *kind;
        void (*offer)(struct completion *c);
    } kinds[] = {
        {"MODEL", offer_models},          {"VERSION", offer_versions}, {"REPLICA", offer_replicas},
        {"OPERATION", offer_operations},  {"GROUP", offer_groups},     {"DEVICE", offer_devices},
        {"COMMAND", offer_command_words}, {"FILE", offer_files},       {"PATH", offer_files},
        {"DIR", offer_directories},
    };
    if (strchr(kind, '|')) {
        offer_choices(c, kind);
        return;
    }
    for (size_t i = 0; i < CLI_N(kinds); i++)
        if (strcmp(kinds[i].kind, kind) == 0)
            kinds[i].offer(c);
}

/* Returns the option that `word` names if the next word is its value, else NULL. */
static const struct option_spec *open_option(const struct completion *c, const char *word)
{
    for (size_t i = 0; i < c->cli.n_specs; i++) {
        const struct option_spec *s = &c->specs[i];
        bool names = strncmp(word, "--", 2) == 0
                         ? strcmp(word + 2, s->name) == 0
                         : s->letter && word[0] == '-' && word[1] == s->letter && !word[2];
        if (names)
            return s->type == OPTION_BOOL ? NULL : s;
    }
    return strcmp(word, "--config") == 0 ? &option_config : NULL;
}

/* Offers values for a current word "--name=VAL". False if the current word has another form. */
static bool offer_inline_value(struct completion *c)
{
    char name[96];
    const char *equals = strncmp(c->current, "--", 2) == 0 ? strchr(c->current, '=') : NULL;
    if (!equals)
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)(equals - c->current), c->current);
    const struct option_spec *spec = open_option(c, name);
    c->prefix = c->current;
    c->n_prefix = (size_t)(equals + 1 - c->current);
    c->current = equals + 1;
    if (spec && spec->value_name)
        offer_kind(c, spec->value_name);
    return true;
}

static void offer_words(struct completion *c, size_t n_words, char *const words[])
{
    char kind[64];
    size_t n_positionals = 0;
    const struct option_spec *pending = NULL;
    for (size_t i = 0; i < n_words; i++) {
        if (pending)
            pending = NULL;
        else if (words[i][0] == '-' && words[i][1])
            pending = open_option(c, words[i]);
        else
            n_positionals++;
    }
    if (pending)
        offer_kind(c, pending->value_name ? pending->value_name : "");
    else if (offer_inline_value(c))
        return;
    else if (c->current[0] == '-')
        offer_options(c);
    else
        offer_kind(c, table_word_kind(c->cli.command, n_positionals, kind));
}

/* Finds the addresses of manager and server in the words. The last word may be an option without
 * its value, and any word may be wrong. */
static bool read_settings(struct completion *c, int argc, char *const argv[])
{
    struct error err;
    const int tries[] = {argc, argc - 1, 1};
    for (size_t i = 0; i < CLI_N(tries); i++)
        if (tries[i] >= 1 && options_parse("cli", c->specs, c->cli.n_specs, tries[i], argv,
                                           &c->cli.settings, &c->cli.options, &err) == 0) {
            cli_resolve_paths(&c->cli);
            return true;
        }
    return false;
}

int complete_words(size_t n_words, char *const words[])
{
    struct completion c = {.current = n_words ? words[n_words - 1] : "", .prefix = ""};
    size_t n_name = 0, n_before = n_words ? n_words - 1 : 0;
    bool help = n_before == 1 && strcmp(words[0], "help") == 0;
    c.cli.command = table_find(n_before, words, &n_name);
    if (n_before == 0 || help) {
        offer_commands(&c);
        return 0;
    }
    if (n_before == 1 && table_is_family(words[0]) && c.current[0] != '-')
        offer_family(&c, words[0]);
    else if (c.cli.command) {
        c.cli.specs = c.specs;
        c.cli.n_specs = table_specs(c.cli.command, c.specs);
        if (!read_settings(&c, (int)(n_words - n_name), words + n_name - 1))
            return 0;
        offer_words(&c, n_words - n_name - 1, words + n_name);
        rpc_client_destroy(c.cli.manager);
        rpc_client_destroy(c.cli.server);
        options_destroy(c.cli.options);
    }
    return 0;
}
