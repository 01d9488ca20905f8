/* run: one prompt, its answer streamed to stdout. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "clients/cli/actions.h"
#include "clients/cli/cli.h"
#include "clients/cli/model_name.h"
#include "clients/cli/output.h"
#include "proto/rpc/rpc_client.h"
#include "proto/rpc/rpc_message.h"
#include "proto/rpc/rpc_stream.h"
#include "sluice/v1/inference.pb-c.h"

enum { MAX_PROMPT_BYTES = 4 << 20 };

/* Room for everything a request points to. */
struct run_request {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage system, user;
    Sluice__V1__ChatMessage *messages[2];
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    char *stop[1];
};

static void fill_prompt(const struct cli_settings *s, bool chat, char *prompt,
                        struct run_request *r)
{
    if (!chat) {
        r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        r->request.text = prompt;
        return;
    }
    r->chat = (Sluice__V1__Chat)SLUICE__V1__CHAT__INIT;
    r->system = r->user = (Sluice__V1__ChatMessage)SLUICE__V1__CHAT_MESSAGE__INIT;
    r->system.role = (char *)(uintptr_t) "system";
    r->system.content = (char *)(uintptr_t)s->system;
    r->user.role = (char *)(uintptr_t) "user";
    r->user.content = prompt;
    size_t n = 0;
    if (s->system[0])
        r->messages[n++] = &r->system;
    r->messages[n++] = &r->user;
    r->chat.messages = r->messages;
    r->chat.n_messages = n;
    r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    r->request.chat = &r->chat;
}

static void fill_request(const struct cli *cli, const char *model, const char *prompt, bool chat,
                         struct run_request *r)
{
    const struct cli_settings *s = &cli->settings;
    r->request = (Sluice__V1__GenerateRequest)SLUICE__V1__GENERATE_REQUEST__INIT;
    r->sampling = (Sluice__V1__Sampling)SLUICE__V1__SAMPLING__INIT;
    r->stopping = (Sluice__V1__Stopping)SLUICE__V1__STOPPING__INIT;
    r->request.model = (char *)(uintptr_t)model;
    r->request.version = (char *)(uintptr_t)s->version;
    fill_prompt(s, chat, (char *)(uintptr_t)prompt, r);
    r->sampling.has_temperature = true;
    r->sampling.temperature = (float)s->temperature;
    r->sampling.has_top_p = true;
    r->sampling.top_p = (float)s->top_p;
    r->sampling.has_top_k = true;
    r->sampling.top_k = (uint32_t)s->top_k;
    r->sampling.has_seed = s->seed != UINT64_MAX;
    r->sampling.seed = s->seed;
    r->stopping.has_max_tokens = true;
    r->stopping.max_tokens = (uint32_t)s->max_tokens;
    if (s->stop[0]) {
        r->stop[0] = (char *)(uintptr_t)s->stop;
        r->stopping.stop = r->stop;
        r->stopping.n_stop = 1;
    }
    r->request.sampling = &r->sampling;
    r->request.stopping = &r->stopping;
}

/* Whether the served model has a chat template; an unknown model is left for Generate to refuse. */
static bool can_chat(struct rpc_client *client, const char *model)
{
    Sluice__V1__GetModelRequest request = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 10000};
    struct error err;
    ProtobufCMessage *message;
    bool chat = false;
    request.model = (char *)(uintptr_t)model;
    if (rpc_client_unary(client, &sluice__v1__inference__descriptor, "GetModel", &request.base,
                         &options, &message, &err) != 0)
        return false;
    const Sluice__V1__ServedModel *served = ((const Sluice__V1__GetModelResponse *)message)->model;
    for (size_t i = 0; served && i < served->n_versions; i++)
        chat = served->versions[i]->info && served->versions[i]->info->capabilities &&
               served->versions[i]->info->capabilities->chat;
    rpc_message_free(message);
    return chat;
}

struct figures {
    int64_t start_ns, first_ns, last_ns;
    uint64_t n_tokens;
};

/* Fails where stdout takes no more. */
static int on_event(const struct cli *cli, const Sluice__V1__GenerateResponse *response,
                    struct figures *f, struct error *err)
{
    if (cli->settings.json)
        print_json(&response->base);
    if (response->event_case == SLUICE__V1__GENERATE_RESPONSE__EVENT_TOKENS) {
        if (!f->first_ns)
            f->first_ns = clock_now_ns();
        f->last_ns = clock_now_ns();
        f->n_tokens += response->tokens->n_ids;
        if (!cli->settings.json)
            fputs(response->tokens->text, stdout);
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        return error_errno(err, errno, "cannot write the answer to stdout");
    return 0;
}

static void print_figures(const struct figures *f)
{
    double ttft_ms = f->first_ns ? (double)(f->first_ns - f->start_ns) / 1e6 : 0;
    double decode_s = (double)(f->last_ns - f->first_ns) / 1e9;
    double rate = f->n_tokens > 1 && decode_s > 0 ? (double)(f->n_tokens - 1) / decode_s : 0;
    fprintf(stderr, "%" PRIu64 " tokens, first after %.0f ms, then %.1f tokens/s\n", f->n_tokens,
            ttft_ms, rate);
}

static int stream_answer(struct cli *cli, struct rpc_client *client, const char *model,
                         const char *prompt, struct error *err)
{
    struct run_request r;
    struct rpc_reader *reader;
    struct rpc_call_options options = {.timeout_ms = cli->settings.timeout_ms};
    struct figures f = {.start_ns = 0};
    ProtobufCMessage *message = NULL;
    fill_request(cli, model, prompt, !cli->settings.raw && can_chat(client, model), &r);
    f.start_ns = clock_now_ns();
    int rc = rpc_reader_open(client, &sluice__v1__inference__descriptor, "Generate",
                             &r.request.base, &options, &reader, err);
    if (rc)
        return rc;
    while (rc == 0 && (rc = rpc_reader_next(reader, &message, err)) == 0 && message) {
        rc = on_event(cli, (const Sluice__V1__GenerateResponse *)message, &f, err);
        rpc_message_free(message);
    }
    rpc_reader_close(reader); /* cancels what has not ended */
    if (!cli->settings.json && (f.n_tokens || !rc))
        putchar('\n');
    fflush(stdout);
    if (!rc && cli->settings.stats)
        print_figures(&f);
    return rc;
}

/* A path instead of a name: registered and loaded under the name its file gives, if it is not
 * already. */
static int prepare_file(struct cli *cli, const char *path, char name[64], struct error *err)
{
    ProtobufCMessage *message = NULL;
    model_name_from_path(path, name);
    int rc = action_register(cli, name, path, &message, err);
    rpc_message_free(message);
    message = NULL;
    if (!rc || rc == STATUS_ALREADY_EXISTS)
        rc = action_load(cli, name, cli->settings.version, &message, err);
    rpc_message_free(message);
    return rc;
}

/* All of stdin, less one newline at its end. */
static int read_prompt(struct strbuf *out, struct error *err)
{
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
        if (!strbuf_add(out, part, n))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "the prompt on stdin is too long: at most %d bytes", MAX_PROMPT_BYTES);
    if (ferror(stdin))
        return error_errno(err, errno, "cannot read the prompt from stdin");
    if (out->n_bytes && out->data[out->n_bytes - 1] == '\n')
        out->data[--out->n_bytes] = '\0';
    const char *nul = out->n_bytes ? memchr(out->data, '\0', out->n_bytes) : NULL;
    if (nul)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the prompt on stdin has a NUL at byte %zu",
                         (size_t)(nul - out->data));
    return out->n_bytes ? 0
                        : error_set(err, STATUS_INVALID_ARGUMENT, "the prompt on stdin is empty");
}

/* No model's name has a slash. */
static bool looks_like_path(const char *word)
{
    size_t n = strlen(word);
    return strchr(word, '/') || (n > 5 && strcmp(word + n - 5, ".gguf") == 0);
}

static int run_run(struct cli *cli)
{
    struct error err;
    struct rpc_client *client;
    char from_file[64];
    const char *model = cli_word(cli, 0), *prompt = cli_word(cli, 1);
    struct strbuf typed;
    strbuf_init(&typed, MAX_PROMPT_BYTES);
    int rc = 0;
    if (looks_like_path(model) && access(model, R_OK) != 0)
        rc = errno == ENOENT ? error_set(&err, STATUS_NOT_FOUND, "%s: no such file", model)
                             : error_errno(&err, errno, "%s", model);
    if (!rc && strcmp(prompt, "-") == 0) {
        rc = read_prompt(&typed, &err);
        prompt = strbuf_str(&typed);
    }
    if (!rc && looks_like_path(model)) {
        rc = prepare_file(cli, model, from_file, &err);
        model = from_file;
    }
    if (!rc)
        rc = cli_server(cli, &client, &err);
    if (!rc)
        rc = stream_answer(cli, client, model, prompt, &err);
    strbuf_fini(&typed);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec run_specs[] = {
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "empty: by the traffic rule", 0, 0},
    {"max-tokens", 'n', OPTION_U64, CLI_OPTION(max_tokens), "256", "N",
     "tokens to generate at most", 1, 2147483647},
    {"temperature", 't', OPTION_F64, CLI_OPTION(temperature), "0", "X", "0: greedy", 0, 0},
    {"top-p", 0, OPTION_F64, CLI_OPTION(top_p), "1", "X", "nucleus; 1: off", 0, 0},
    {"top-k", 0, OPTION_U64, CLI_OPTION(top_k), "0", "N", "0: off", 0, 2147483647},
    {"seed", 's', OPTION_U64, CLI_OPTION(seed), "18446744073709551615", "N",
     "fixes the draw; the default draws one", 0, 0},
    {"stop", 0, OPTION_STRING, CLI_OPTION(stop), "", "TEXT", "end where this text appears", 0, 0},
    {"system", 0, OPTION_STRING, CLI_OPTION(system), "", "TEXT", "system message", 0, 0},
    {"raw", 0, OPTION_BOOL, CLI_OPTION(raw), "false", NULL,
     "the prompt as it is, without the chat template", 0, 0},
    {"stats", 0, OPTION_BOOL, CLI_OPTION(stats), "false", NULL,
     "time to first token and tokens/s on stderr", 0, 0},
    {"timeout", 0, OPTION_MS, CLI_OPTION(timeout_ms), "0", "TIME",
     "deadline of the request; 0: none", 0, 86400000},
    CLI_DIAL_OPTIONS,
    CLI_COMMON_OPTIONS,
};

const struct cli_command cmd_run = {
    "run",
    "MODEL PROMPT ",
    "stream an answer to a prompt",
    "MODEL is a served model's name, or the path of a checkpoint "
    "file, which is then registered and loaded first. PROMPT - reads the prompt from stdin, less "
    "one newline at its end.\n\n"
    "examples:\n  sluice run smol \"Why is the sky blue?\"\n"
    "  sluice run ./SmolLM2-135M-Instruct.Q4_1.gguf \"Tell a "
    "story.\" --temperature 0.8 --seed 7 --stats\n"
    "  sluice run smol \"def fib(n):\" --raw --stop $'\\n\\n'\n  "
    "sluice run smol hello --json | jq -r .tokens.text\n",
    run_specs,
    sizeof(run_specs) / sizeof(run_specs[0]),
    2,
    2,
    run_run};
