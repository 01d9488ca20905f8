/* cmd_models.c: `register`, `ls`, `show`, `rm`, `ps`. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/system/folder.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"
#include "sluice/manager/v1/manager.pb-c.h"

int action_register(struct cli *cli, const char *name, const char *path,
                    ProtobufCMessage **out_response, struct error *err)
{
    Sluice__Manager__V1__RegisterModelVersionRequest request =
        SLUICE__MANAGER__V1__REGISTER_MODEL_VERSION_REQUEST__INIT;
    Sluice__Manager__V1__ModelConfig config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    char absolute[PATH_MAX], draft[PATH_MAX];
    const char *given = cli->settings.register_draft;
    request.model = (char *)(uintptr_t)name;
    request.version = (char *)(uintptr_t)cli->settings.version;
    bool full = folder_resolve(path, absolute);
    /* no such file here: the path is relative to the manager's model root */
    request.path = full ? absolute : (char *)(uintptr_t)path;
    request.request_id = (char *)(uintptr_t)cli->settings.request_id;
    request.verify = cli->settings.verify;
    if (given && given[0]) {
        config.draft_model = folder_resolve(given, draft) ? draft : (char *)(uintptr_t)given;
        request.config = &config;
    }
    int rc = cli_call(cli, "RegisterModelVersion", &request.base, out_response, err);
    if (rc && !full && err->reason == REASON_NO_MODEL_ROOT)
        return error_set(err, STATUS_NOT_FOUND, "%s: no such file or folder", path);
    return rc;
}

static int run_register(struct cli *cli)
{
    struct error err;
    ProtobufCMessage *message;
    char bytes[32];
    if (action_register(cli, cli_word(cli, 0), cli_word(cli, 1), &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__RegisterModelVersionResponse *response =
        (const Sluice__Manager__V1__RegisterModelVersionResponse *)message;
    const Sluice__Manager__V1__ModelVersion *v = response->version;
    if (cli->settings.json)
        output_json(message);
    else if (v && v->info)
        printf("%s %s version %s: %s, %s, %s, digest %.12s\n",
               response->existed ? "known already:" : "registered", v->model, v->version,
               v->info->architecture, v->info->quantization, format_bytes(v->size_bytes, bytes),
               v->info->weights_digest);
    rpc_message_free(message);
    return 0;
}

static void print_models(const Sluice__Manager__V1__ListModelsResponse *response)
{
    static const char *const headers[] = {"MODEL",  "VERSION", "STATE",    "ARCH",
                                          "FORMAT", "SIZE",    "REPLICAS", "AGE"};
    struct output_table table;
    output_table_init(&table, 8, headers);
    for (size_t i = 0; i < response->n_models; i++)
        for (size_t k = 0; k < response->models[i]->n_versions; k++) {
            const Sluice__Manager__V1__ModelVersion *v = response->models[i]->versions[k];
            char state[32], size[32], age[32], replicas[48];
            snprintf(replicas, sizeof(replicas), "%" PRIu32 "/%" PRIu32, v->n_ready_replicas,
                     v->n_replicas);
            const char *cells[] = {
                v->model,
                v->version,
                output_enum(&sluice__manager__v1__model_version_state__descriptor, (int)v->state,
                            state),
                v->info ? v->info->architecture : "",
                v->info ? v->info->quantization : "",
                format_bytes(v->size_bytes, size),
                replicas,
                output_age(v->created_unix_ns, age)};
            output_table_add(&table, cells);
        }
    output_table_print(&table);
    output_table_fini(&table);
}

/* Reads all pages into *out (initialised). The models stay owned by the pages. Free both with
 * free_pages. */
static int list_all(struct cli *cli, Sluice__Manager__V1__ListModelsResponse *out,
                    ProtobufCMessage ***out_pages, size_t *out_n, struct error *err)
{
    Sluice__Manager__V1__ListModelsRequest request = SLUICE__MANAGER__V1__LIST_MODELS_REQUEST__INIT;
    ProtobufCMessage *message;
    for (;;) {
        int rc = cli_call(cli, "ListModels", &request.base, &message, err);
        if (rc)
            return rc;
        ProtobufCMessage **pages = realloc(*out_pages, (*out_n + 1) * sizeof(*pages));
        if (pages)
            *out_pages = pages, pages[(*out_n)++] = message;
        const Sluice__Manager__V1__ListModelsResponse *page =
            (const Sluice__Manager__V1__ListModelsResponse *)message;
        Sluice__Manager__V1__Model **models =
            realloc(out->models, (out->n_models + page->n_models + 1) * sizeof(*models));
        if (models)
            out->models = models;
        if (!pages || !models)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                             "out of memory for the list of models");
        for (size_t i = 0; i < page->n_models; i++)
            models[out->n_models++] = page->models[i];
        out->generation = page->generation;
        request.page_token = page->next_page_token;
        if (!request.page_token[0])
            return 0;
    }
}

static void free_pages(Sluice__Manager__V1__ListModelsResponse *all, ProtobufCMessage **pages,
                       size_t n_pages)
{
    for (size_t i = 0; i < n_pages; i++)
        rpc_message_free(pages[i]);
    free(pages);
    free(all->models);
}

static int run_ls(struct cli *cli)
{
    Sluice__Manager__V1__ListModelsResponse all = SLUICE__MANAGER__V1__LIST_MODELS_RESPONSE__INIT;
    ProtobufCMessage **pages = NULL;
    size_t n_pages = 0;
    struct error err;
    int rc = list_all(cli, &all, &pages, &n_pages, &err);
    if (!rc && cli->settings.json)
        output_json(&all.base);
    else if (!rc)
        print_models(&all);
    free_pages(&all, pages, n_pages);
    return rc ? cli_fail(cli, &err) : 0;
}

/* Prints the settings of a load, under the names of docs/use/limits.md. Settings that were not
 * given are left out. */
static void print_config(const Sluice__Manager__V1__ModelConfig *config)
{
    const ProtobufCMessageDescriptor *d = &sluice__manager__v1__model_config__descriptor;
    const char *comma = "; ";
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const char *member = (const char *)config + f->offset;
        const char *text = f->type == PROTOBUF_C_TYPE_STRING ? *(char *const *)member : NULL;
        if (text ? !text[0]
                 : !*(const protobuf_c_boolean *)((const char *)config + f->quantifier_offset))
            continue;
        printf("%s%s ", comma, f->name);
        comma = ", ";
        if (text)
            fputs(text, stdout);
        else if (f->type == PROTOBUF_C_TYPE_UINT32)
            printf("%" PRIu32, *(const uint32_t *)member);
        else if (f->type == PROTOBUF_C_TYPE_UINT64)
            printf("%" PRIu64, *(const uint64_t *)member);
        else if (f->type == PROTOBUF_C_TYPE_FLOAT)
            printf("%g", (double)*(const float *)member);
        else
            fputs(*(const protobuf_c_boolean *)member ? "yes" : "no", stdout);
    }
}

static void print_deployment(const Sluice__Manager__V1__Deployment *d)
{
    printf("loaded      on %s, %" PRIu32 " replica%s", d->device_group, d->n_replicas,
           d->n_replicas == 1 ? "" : "s");
    if (d->pp > 1)
        printf(" of %" PRIu32 " stages", d->pp);
    if (d->tp > 1)
        printf(" of %" PRIu32 " ranks", d->tp);
    if (d->config)
        print_config(d->config);
    putchar('\n');
}

static void print_ids(const char *label, const uint32_t *ids, size_t n_ids)
{
    printf("%s ", label);
    for (size_t i = 0; i < n_ids; i++)
        printf("%s%" PRIu32, i ? ", " : "", ids[i]);
    puts(n_ids ? "" : "none");
}

static void print_fim(const Sluice__V1__FimTokens *fim)
{
    uint32_t ids[] = {fim->prefix,  fim->suffix,     fim->middle,
                      fim->padding, fim->repository, fim->separator};
    const bool given[] = {
        true, true, true, fim->has_padding, fim->has_repository, fim->has_separator};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (given[i])
            ids[n++] = ids[i];
    print_ids("fim tokens ", ids, n);
}

static void print_version(const Sluice__Manager__V1__ModelVersion *v)
{
    char state[32], size[32], age[32];
    printf("model       %s\nversion     %s\nstate       %s\npath        %s\n", v->model, v->version,
           output_enum(&sluice__manager__v1__model_version_state__descriptor, (int)v->state, state),
           v->path);
    printf("size        %s\nregistered  %s ago\nreplicas    %" PRIu32 " ready of %" PRIu32 "\n",
           format_bytes(v->size_bytes, size), output_age(v->created_unix_ns, age),
           v->n_ready_replicas, v->n_replicas);
    if (v->info) {
        const Sluice__V1__ModelInfo *info = v->info;
        printf("name        %s\narchitecture %s, %s, %" PRIu64 " parameters\n", info->display_name,
               info->architecture, info->quantization, info->n_parameters);
        printf("shape       %" PRIu32 " layers, hidden %" PRIu32 ", %" PRIu32 " heads (%" PRIu32
               " KV) of %" PRIu32 ", vocabulary %" PRIu32 "\n",
               info->n_layers, info->hidden_dim, info->n_heads, info->n_kv_heads, info->head_dim,
               info->vocab_size);
        printf("context     %" PRIu32, info->context_length);
        if (info->context_length < info->trained_context_length)
            printf(" of %" PRIu32, info->trained_context_length);
        printf(" tokens\ntokenizer   %s (%s)\nchat        %s\ndigest      %s\n", info->tokenizer,
               info->pre_tokenizer, info->capabilities && info->capabilities->chat ? "yes" : "no",
               info->weights_digest);
        print_ids("end tokens ", info->eos_token_ids, info->n_eos_token_ids);
        if (info->capabilities && info->capabilities->reasoning)
            puts("reasoning   apart from content");
        if (info->fim)
            print_fim(info->fim);
        if (info->default_sampling) {
            printf("sampling    ");
            output_sampling(info->default_sampling);
            putchar('\n');
        }
    }
    if (v->config && v->config->draft_model[0])
        printf("draft model %s\n", v->config->draft_model);
    for (size_t i = 0; i < v->n_deployments; i++)
        print_deployment(v->deployments[i]);
    if (v->content_sha256[0])
        printf("contents    %s\n", v->content_sha256);
    if (v->last_error && v->last_error->message[0])
        printf("last error  %s%s%s%s\n", v->last_error->message,
               v->last_error->reason[0] ? " (" : "", v->last_error->reason,
               v->last_error->reason[0] ? ")" : "");
}

/* Prints a line for each failed replica of a version, or of all versions (version NULL). */
static void print_failures(const Sluice__Manager__V1__ListReplicasResponse *response,
                           const char *version, const char *prefix, FILE *out)
{
    for (size_t i = 0; i < response->n_replicas; i++) {
        const Sluice__Manager__V1__Replica *r = response->replicas[i];
        if (r->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED ||
            (version && strcmp(r->version, version) != 0))
            continue;
        fprintf(out, "%s%s failed: ", prefix, r->id);
        printable_write(out, r->last_error && r->last_error->message[0] ? r->last_error->message
                                                                        : r->reason);
        fprintf(out, " (try again with: sluice restart %s)\n", r->id);
    }
}

static void print_versions(const Sluice__Manager__V1__Model *model,
                           const Sluice__Manager__V1__ListReplicasResponse *replicas)
{
    for (size_t i = 0; i < model->n_versions; i++) {
        if (i)
            putchar('\n');
        print_version(model->versions[i]);
        print_failures(replicas, model->versions[i]->version, "replica     ", stdout);
    }
}

static int run_show(struct cli *cli)
{
    Sluice__Manager__V1__ListReplicasRequest of_model =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *replicas = NULL;
    Sluice__Manager__V1__GetModelRequest request = SLUICE__MANAGER__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    if (cli_call(cli, "GetModel", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    const Sluice__Manager__V1__Model *model =
        ((const Sluice__Manager__V1__GetModelResponse *)message)->model;
    of_model.model = request.model;
    int rc = 0;
    if (cli->settings.json)
        output_json(message);
    else if (model && cli_call(cli, "ListReplicas", &of_model.base, &replicas, &err) != 0)
        rc = cli_fail(cli, &err);
    else if (model)
        print_versions(model, (const Sluice__Manager__V1__ListReplicasResponse *)replicas);
    rpc_message_free(replicas);
    rpc_message_free(message);
    return rc;
}

static int run_rm(struct cli *cli)
{
    Sluice__Manager__V1__DeleteModelVersionRequest request =
        SLUICE__MANAGER__V1__DELETE_MODEL_VERSION_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)cli_word(cli, 1);
    request.request_id = (char *)(uintptr_t)cli->settings.request_id;
    if (cli_call(cli, "DeleteModelVersion", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        printf("removed %s version %s\n", request.model, request.version);
    rpc_message_free(message);
    return 0;
}

static void print_replicas(const Sluice__Manager__V1__ListReplicasResponse *response)
{
    static const char *const headers[] = {"REPLICA",   "MODEL",   "VERSION", "GROUP",    "STATE",
                                          "PID",       "RUNNING", "QUEUED",  "KV",       "STATES",
                                          "SNAPSHOTS", "MEMORY",  "GPU",     "RESTARTS", "AGE"};
    enum { STATES = 9, SNAPSHOTS };
    struct output_table table;
    output_table_init(&table, CLI_N(headers), headers);
    table.optional = 1u << STATES | 1u << SNAPSHOTS;
    for (size_t i = 0; i < response->n_replicas; i++) {
        const Sluice__Manager__V1__Replica *r = response->replicas[i];
        char state[80], kv[16], states[24], snapshots[48], pid[16], running[16], queued[16],
            memory[32], gpu[32], restarts[16], age[32];
        snprintf(pid, sizeof(pid), "%" PRIu32, r->pid);
        snprintf(running, sizeof(running), "%" PRIu32, r->n_running);
        snprintf(queued, sizeof(queued), "%" PRIu32, r->n_queued);
        snprintf(restarts, sizeof(restarts), "%" PRIu32, r->n_restarts);
        const char *cells[] = {r->id,
                               r->model,
                               r->version,
                               r->device_group,
                               output_replica_state(r, state),
                               pid,
                               running,
                               queued,
                               output_kv_text(r, kv),
                               output_states_text(r, states),
                               output_snapshots_text(r, snapshots),
                               format_bytes(r->resident_bytes, memory),
                               r->gpu_bytes ? format_bytes(r->gpu_bytes, gpu) : "",
                               restarts,
                               output_age(r->started_unix_ns, age)};
        output_table_add(&table, cells);
    }
    output_table_print(&table);
    output_table_fini(&table);
}

static int run_ps(struct cli *cli)
{
    Sluice__Manager__V1__ListReplicasRequest request =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    ProtobufCMessage *message;
    struct error err;
    request.include_stopped = cli->settings.all;
    if (cli_call(cli, "ListReplicas", &request.base, &message, &err) != 0)
        return cli_fail(cli, &err);
    if (cli->settings.json)
        output_json(message);
    else
        print_replicas((const Sluice__Manager__V1__ListReplicasResponse *)message);
    if (!cli->settings.json) { /* --json prints no further text */
        fflush(stdout);
        print_failures((const Sluice__Manager__V1__ListReplicasResponse *)message, NULL,
                       "sluice ps: ", stderr);
    }
    rpc_message_free(message);
    return 0;
}

static const struct option_spec register_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version; empty: the next number", 0, 0},
    {"verify", 0, OPTION_BOOL, CLI_OPTION(verify), "false", NULL,
     "also hash the contents (reads all files)", 0, 0},
    {"draft", 0, OPTION_STRING, CLI_OPTION(register_draft), "", "FILE",
     "draft model to load with the version: a smaller model with the same vocabulary", 0, 0},
};
static const struct option_spec ps_specs[] = {
    {"all", 'a', OPTION_BOOL, CLI_OPTION(all), "false", NULL, "list stopped replicas too", 0, 0},
};

static const struct manual_example register_examples[] = {
    {"sluice register smol ./SmolLM2-135M-Instruct.Q4_1.gguf", NULL},
    {"sluice register smol ./new.gguf --version 2024-11 --verify", NULL},
    {"sluice register qwen ./Qwen3-0.6B", "a folder with config.json and *.safetensors"},
};
static const struct manual_example ls_examples[] = {
    {"sluice ls", NULL}, {"sluice ls --json | jq '.models[]?.name'", NULL}};
static const struct manual_example show_examples[] = {{"sluice show smol", NULL}};
static const struct manual_example rm_examples[] = {{"sluice rm smol 1", NULL}};
static const struct manual_example ps_examples[] = {{"sluice ps", NULL},
                                                    {"sluice ps --all --json", NULL}};

const struct cli_command cmd_register = {
    .name = "register",
    .arguments = "NAME PATH",
    .summary = "register a checkpoint as a version of a model",
    .description = "PATH is a GGUF file or a Hugging Face folder. A sandboxed process reads it. "
                   "The version is bound to the "
                   "digest of its files. "
                   "Nothing is loaded.",
    .examples = register_examples,
    .n_examples = CLI_N(register_examples),
    .specs = register_specs,
    .n_specs = CLI_N(register_specs),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_register,
};
const struct cli_command cmd_ls = {
    .name = "ls",
    .arguments = "",
    .summary = "list models and versions",
    .examples = ls_examples,
    .n_examples = CLI_N(ls_examples),
    .groups = CLI_MANAGE,
    .run = run_ls,
};
const struct cli_command cmd_show = {
    .name = "show",
    .arguments = "MODEL",
    .summary = "show the details of a model",
    .examples = show_examples,
    .n_examples = CLI_N(show_examples),
    .groups = CLI_MANAGE,
    .run = run_show,
};
const struct cli_command cmd_rm = {
    .name = "rm",
    .arguments = "MODEL VERSION",
    .summary = "remove a version that is not loaded",
    .description = "The model's files stay.",
    .examples = rm_examples,
    .n_examples = CLI_N(rm_examples),
    .groups = CLI_REQUEST_ID | CLI_MANAGE,
    .run = run_rm,
};
const struct cli_command cmd_ps = {
    .name = "ps",
    .arguments = "",
    .summary = "list replicas",
    .examples = ps_examples,
    .n_examples = CLI_N(ps_examples),
    .specs = ps_specs,
    .n_specs = CLI_N(ps_specs),
    .groups = CLI_MANAGE,
    .run = run_ps,
};
