/* cmd_run.c: `run`: streams the answer to one prompt to stdout, over gRPC or over HTTP (--url). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/system/path_access.h"
#include "clients/cli/chat/remote.h"
#include "clients/cli/shell/actions.h"
#include "clients/cli/shell/answer.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/sampling.h"
#include "proto/rpc/message/message.h"
#include "sluice/v1/inference.pb-c.h"

/* A request with storage for its parts. */
struct run_request {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage system, user;
    Sluice__V1__ChatMessage *messages[2];
    struct sampling_parts parts;
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
    r->chat.template_ = (char *)(uintptr_t)s->template_name;
    r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    r->request.chat = &r->chat;
}

/* True if the served model has a chat template. True also for an unknown model, which Generate will
 * refuse. */
static bool can_chat(struct cli *cli, const char *model)
{
    Sluice__V1__GetModelRequest request = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    struct error err;
    ProtobufCMessage *message;
    bool chat = false;
    request.model = (char *)(uintptr_t)model;
    if (cli_call_server(cli, "GetModel", &request.base, &message, &err) != 0)
        return false;
    const Sluice__V1__ServedModel *served = ((const Sluice__V1__GetModelResponse *)message)->model;
    for (size_t i = 0; served && i < served->n_versions; i++)
        chat = served->versions[i]->info && served->versions[i]->info->capabilities &&
               served->versions[i]->info->capabilities->chat;
    rpc_message_free(message);
    return chat;
}

/* A gap lies in a text. A chat template would put the prompt into a message. */
static bool is_raw(const struct cli_settings *s)
{
    return s->raw || s->suffix[0];
}

/* Says why an answer ends in the middle of a sentence. */
static void print_cut(const struct cli_settings *s, bool by_flag, const struct answer *answer)
{
    bool length = answer->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    if (length && by_flag)
        fprintf(stderr, "(stopped by --max-tokens %" PRIu64 ")\n", s->max_tokens);
    else if (length)
        fputs("(stopped by the limit of tokens that the version was loaded with)\n", stderr);
    else if (answer->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH)
        fputs("(stopped: the context is full)\n", stderr);
}

static void print_end(const struct cli *cli, bool by_flag, const struct answer *answer)
{
    if (cli->settings.stats)
        answer_print_figures(answer);
    else if (isatty(STDERR_FILENO) == 1)
        print_cut(&cli->settings, by_flag, answer);
}

static int stream_answer(struct cli *cli, struct rpc_client *client, const char *model,
                         const char *prompt, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    struct run_request r;
    struct answer answer;
    r.request = (Sluice__V1__GenerateRequest)SLUICE__V1__GENERATE_REQUEST__INIT;
    r.request.model = (char *)(uintptr_t)model;
    r.request.version = (char *)(uintptr_t)s->version;
    r.request.suffix = (char *)(uintptr_t)s->suffix;
    fill_prompt(s, !is_raw(s) && can_chat(cli, model), (char *)(uintptr_t)prompt, &r);
    sampling_fill(cli, &r.parts, &r.request);
    answer_init(&answer);
    int rc = answer_run(cli, client, &r.request, &answer, err);
    if (rc && sampling_drop_default(cli, &r.parts, err))
        rc = answer_run(cli, client, &r.request, &answer, err);
    if (!rc)
        print_end(cli, r.parts.stopping.has_max_tokens, &answer);
    answer_fini(&answer);
    return rc;
}

/* The same from an OpenAI server. */
static int stream_remote(struct cli *cli, const char *model, const char *prompt, struct error *err)
{
    struct run_request r;
    struct answer answer;
    struct remote *remote;
    int rc = remote_open(cli, model, &remote, err);
    if (rc)
        return rc;
    answer_init(&answer);
    r.request = (Sluice__V1__GenerateRequest)SLUICE__V1__GENERATE_REQUEST__INIT;
    if (is_raw(&cli->settings)) {
        rc = remote_complete(remote, prompt, &answer, err);
    } else {
        fill_prompt(&cli->settings, true, (char *)(uintptr_t)prompt, &r);
        rc = remote_chat(remote, &r.chat, &answer, err);
    }
    if (!rc)
        print_end(cli, true, &answer);
    answer_fini(&answer);
    remote_close(remote);
    return rc;
}

/* Registers and loads a file under the name that its path gives, if the model is not served yet. */
static int prepare_file(struct cli *cli, const char *path, char name[64], struct error *err)
{
    ProtobufCMessage *message = NULL;
    char flags[CLI_HINT_BYTES];
    cli_model_name(path, name);
    int rc = action_register(cli, name, path, &message, err);
    rpc_message_free(message);
    message = NULL;
    if (!rc || rc == STATUS_ALREADY_EXISTS)
        rc = action_load(cli, name, cli->settings.version, &message, err);
    rpc_message_free(message);
    if (!rc && !cli->settings.json)
        fprintf(stderr, "registered as %s, stays loaded; to unload: sluice unload %s%s\n", name,
                name, cli_hint_flags(cli, CLI_HINT_STATE, flags));
    return rc;
}

/* Model names contain no slash. A folder needs one: "./folder". */
static bool looks_like_path(const char *word)
{
    size_t n = strlen(word);
    return strchr(word, '/') || strcmp(word, ".") == 0 || strcmp(word, "..") == 0 ||
           (n > 5 && strcmp(word + n - 5, ".gguf") == 0);
}

/* Reads PROMPT, from stdin for "-". Borrowed from `typed` or from the arguments. */
static int read_prompt(const char *word, struct strbuf *typed, const char **out_prompt,
                       struct error *err)
{
    bool from_stdin = strcmp(word, "-") == 0;
    int rc = from_stdin ? cli_read_stdin("the prompt", typed, err) : 0;
    *out_prompt = from_stdin ? strbuf_str(typed) : word;
    return rc;
}

/* MODEL may be left out. */
static int run_by_url(struct cli *cli, struct strbuf *typed, struct error *err)
{
    const char *first = cli_word(cli, 0), *second = cli_word(cli, 1), *prompt;
    int rc = read_prompt(second ? second : first, typed, &prompt, err);
    return rc ? rc : stream_remote(cli, second ? first : NULL, prompt, err);
}

static int run_by_rpc(struct cli *cli, struct strbuf *typed, struct error *err)
{
    struct rpc_client *client;
    char from_file[64];
    const char *model = cli_word(cli, 0), *word = cli_word(cli, 1), *prompt;
    int rc = 0;
    if (!model || !word) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "usage: sluice run MODEL PROMPT [options]   (see sluice run --help)");
        return cli_usage(err);
    }
    if (looks_like_path(model) && access(model, R_OK) != 0)
        rc = errno == ENOENT ? error_set(err, STATUS_NOT_FOUND, "%s: no such file or folder", model)
             : errno == EACCES ? path_access_error(AT_FDCWD, model, model, "", err)
                               : error_errno(err, errno, "%s", model);
    if (!rc)
        rc = read_prompt(word, typed, &prompt, err);
    if (!rc && looks_like_path(model)) {
        rc = prepare_file(cli, model, from_file, err);
        model = from_file;
    }
    if (!rc)
        rc = cli_server(cli, &client, err);
    return rc ? rc : stream_answer(cli, client, model, prompt, err);
}

/* Refuses options that would have no effect. */
static int check_suffix(const struct cli *cli, struct error *err)
{
    static const char *const of_chats[] = {"system", "template"};
    if (!cli_given(cli, "suffix"))
        return 0;
    if (!cli->settings.suffix[0]) {
        error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--suffix: the text is empty; leave out --suffix for an answer behind the prompt");
        return cli_usage(err);
    }
    for (size_t i = 0; i < CLI_N(of_chats); i++)
        if (cli_given(cli, of_chats[i])) {
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "--%s: belongs to a chat; leave out --%s beside --suffix", of_chats[i],
                      of_chats[i]);
            return cli_usage(err);
        }
    return 0;
}

static int run_run(struct cli *cli)
{
    struct error err;
    struct strbuf typed;
    strbuf_init(&typed, CLI_TEXT_MAX_BYTES);
    int rc = check_suffix(cli, &err);
    if (!rc)
        rc = cli_uses_url(cli) ? run_by_url(cli, &typed, &err) : run_by_rpc(cli, &typed, &err);
    strbuf_fini(&typed);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec run_specs[] = {
    {"raw", 0, OPTION_BOOL, CLI_OPTION(raw), "false", NULL,
     "send the prompt unchanged, without the chat template", 0, 0},
    {"suffix", 0, OPTION_STRING, CLI_OPTION(suffix), "", "TEXT",
     "text behind a gap that the answer fills, with PROMPT before the gap; implies --raw", 0, 0},
    {"url", 0, OPTION_STRING, CLI_OPTION(url), "", "URL",
     "ask the OpenAI server at http(s)://HOST:PORT[/v1] instead of a Sluice over gRPC", 0, 0},
};
static const struct manual_example run_examples[] = {
    {"sluice run smol \"Why is the sky blue?\"", NULL},
    {"sluice run ./SmolLM2-135M-Instruct.Q4_1.gguf \"Tell a story.\" --temperature 0.8 --seed 7 "
     "--stats",
     NULL},
    {"sluice run smol \"def fib(n):\" --raw --stop $'\\n\\n'", NULL},
    {"sluice run coder $'def add(a, b):\\n    return ' --suffix $'\\n\\nprint(add(1, 2))'",
     "fill a gap, with a model that has fill-in-the-middle tokens"},
    {"sluice run smol hello --json | jq -j '.tokens.text // empty'", NULL},
    {"sluice run --url http://127.0.0.1:8000 \"Why is the sky blue?\"",
     "the only model of an OpenAI server"},
};

const struct cli_command cmd_run = {
    .name = "run",
    .arguments = "[MODEL] PROMPT",
    .summary = "stream the answer to a prompt",
    .description =
        "MODEL is a served model's name, or the path of a GGUF file or of a model's folder. A "
        "folder's path needs a slash, as in ./folder. The model of a path is registered and "
        "loaded first. PROMPT - reads the prompt from stdin, without one newline at its "
        "end. The reasoning of a model goes to stderr, and the answer to stdout.\n\nWith "
        "--url the command speaks OpenAI's API over HTTP with any server that has this API. MODEL "
        "is a name of that server, and may be left out where the server lists a single model. The "
        "prompt goes to /chat/completions, with --raw or --suffix to /completions. Options without "
        "a field in "
        "OpenAI's API are refused. Redirects are not followed, and no proxy is used. "
        "With --json each event of the server is a line.",
    .examples = run_examples,
    .n_examples = CLI_N(run_examples),
    .specs = run_specs,
    .n_specs = CLI_N(run_specs),
    .groups = CLI_SAMPLING | CLI_DIAL,
    .run = run_run,
};
