/* cmd_chat.c: `chat`: a conversation with a model. The main thread reads lines and prints answers.
 * A second thread waits for Ctrl-C and cancels the running answer. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/chat/chat_line.h"
#include "clients/cli/chat/chat_log.h"
#include "clients/cli/chat/remote.h"
#include "clients/cli/shell/answer.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/sampling.h"
#include "clients/cli/shell/table.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/v1/inference.pb-c.h"

struct chat {
    struct cli *cli;
    struct rpc_client *client;
    struct remote *remote; /* NULL: over gRPC */
    const char *model;
    char history_path[1200];
    struct chat_line *line;
    struct chat_log log;
    uint32_t context_length, max_prompt_tokens; /* 0: unknown */
    bool ended;

    pthread_mutex_t lock;
    struct answer *answer; /* the running answer, or NULL */
    bool stopping;
};

/* --- Ctrl-C --- */

static sem_t interrupts;
static struct chat_line *_Atomic line_of_signals;

static void on_signal(int signal_number)
{
    int saved = errno;
    struct chat_line *line = atomic_load(&line_of_signals);
    if (signal_number == SIGINT) {
        sem_post(&interrupts);
        if (line)
            chat_line_interrupt(line);
    } else if (line) {
        chat_line_resized(line);
    }
    errno = saved;
}

static void *cancel_answers(void *arg)
{
    struct chat *chat = arg;
    bool stopping = false;
    while (!stopping) {
        while (sem_wait(&interrupts) != 0)
            ; /* repeat after EINTR */
        pthread_mutex_lock(&chat->lock);
        if (chat->answer)
            answer_cancel(chat->answer);
        stopping = chat->stopping;
        pthread_mutex_unlock(&chat->lock);
    }
    return NULL;
}

static void set_answer(struct chat *chat, struct answer *answer)
{
    pthread_mutex_lock(&chat->lock);
    chat->answer = answer;
    pthread_mutex_unlock(&chat->lock);
}

/* --- a question and its answer --- */

static Sluice__V1__ChatMessage system_message(const struct chat *chat)
{
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    message.role = (char *)(uintptr_t) "system";
    message.content = (char *)(uintptr_t)chat->cli->settings.system;
    return message;
}

static int count_tokens(struct chat *chat, size_t *out_n, struct error *err)
{
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    Sluice__V1__ChatMessage system = system_message(chat);
    Sluice__V1__Chat body;
    ProtobufCMessage *message;
    int rc = chat_log_chat(&chat->log, &system, &body, err);
    if (rc)
        return rc;
    request.model = (char *)(uintptr_t)chat->model;
    request.version = (char *)(uintptr_t)chat->cli->settings.version;
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT;
    body.template_ = (char *)(uintptr_t)chat->cli->settings.template_name;
    request.chat = &body;
    rc = cli_call_server(chat->cli, "Tokenize", &request.base, &message, err);
    free(body.messages);
    if (rc)
        return rc;
    *out_n = ((const Sluice__V1__TokenizeResponse *)message)->n_ids;
    rpc_message_free(message);
    return 0;
}

/* Returns the most tokens a prompt may have. The rest stays free for the answer: a quarter of the
 * context, or max_tokens if that is less. */
static size_t prompt_room(const struct chat *chat)
{
    uint64_t reserve = chat->context_length / 4;
    if (chat->cli->settings.max_tokens < reserve)
        reserve = chat->cli->settings.max_tokens;
    size_t room = chat->context_length - (size_t)reserve;
    return chat->max_prompt_tokens && chat->max_prompt_tokens < room ? chat->max_prompt_tokens
                                                                     : room;
}

static void print_dropped(const struct chat *chat, size_t n_dropped)
{
    char length[64] = "";
    if (chat->context_length)
        snprintf(length, sizeof(length), " of %" PRIu32 " tokens", chat->context_length);
    if (n_dropped)
        fprintf(stderr,
                "[the conversation is longer than the context%s; dropped the oldest %zu turn%s]\n",
                length, n_dropped, n_dropped == 1 ? "" : "s");
}

/* Drops the oldest questions and answers until the conversation fits the context. */
static int fit_context(struct chat *chat, struct error *err)
{
    size_t n_tokens = 0, n_dropped = 0;
    if (!chat->context_length || chat->log.n_messages < 3)
        return 0;
    for (;;) {
        int rc = count_tokens(chat, &n_tokens, err);
        if (rc)
            return rc;
        if (n_tokens <= prompt_room(chat) || !chat_log_drop_oldest(&chat->log))
            break;
        n_dropped++;
    }
    print_dropped(chat, n_dropped);
    return 0;
}

static void print_end(const struct chat *chat, const struct answer *answer)
{
    if (answer->cancelled)
        fputs("[cancelled]\n", stderr);
    else if (answer->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH)
        fprintf(stderr,
                "[stopped at %" PRIu64 " tokens; raise the limit with /params max-tokens N]\n",
                chat->cli->settings.max_tokens);
    else if (answer->reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH)
        fputs("[stopped: the context is full; start again with /clear]\n", stderr);
    if (chat->cli->settings.stats)
        answer_print_figures(answer);
}

static int answer_by_rpc(struct chat *chat, struct answer *answer, struct error *err)
{
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__ChatMessage system = system_message(chat);
    Sluice__V1__Chat body;
    struct sampling_parts parts;
    int rc = fit_context(chat, err);
    if (!rc)
        rc = chat_log_chat(&chat->log, &system, &body, err);
    if (rc)
        return rc;
    request.model = (char *)(uintptr_t)chat->model;
    request.version = (char *)(uintptr_t)chat->cli->settings.version;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    body.template_ = (char *)(uintptr_t)chat->cli->settings.template_name;
    request.chat = &body;
    sampling_fill(chat->cli, &parts, &request);
    rc = answer_run(chat->cli, chat->client, &request, answer, err);
    if (rc && sampling_drop_default(chat->cli, &parts, err))
        rc = answer_run(chat->cli, chat->client, &request, answer, err);
    free(body.messages);
    return rc;
}

static bool is_too_long(const struct error *err)
{
    return err->reason == REASON_CONTEXT_TOO_LONG || err->reason == REASON_INPUT_TOO_LONG ||
           err->reason == REASON_TOTAL_TOO_LONG;
}

/* An OpenAI server counts no tokens beforehand. If the server refuses the conversation as too long,
 * the oldest turns are dropped. */
static int answer_by_url(struct chat *chat, struct answer *answer, struct error *err)
{
    Sluice__V1__ChatMessage system = system_message(chat);
    size_t n_dropped = 0;
    int rc;
    do {
        Sluice__V1__Chat body;
        rc = chat_log_chat(&chat->log, &system, &body, err);
        if (rc)
            return rc;
        rc = remote_chat(chat->remote, &body, answer, err);
        free(body.messages);
    } while (rc && is_too_long(err) && chat_log_drop_oldest(&chat->log) && ++n_dropped);
    print_dropped(chat, n_dropped);
    return rc;
}

/* Requests the answer to the last message. A cancelled answer keeps its text so far. */
static int request_answer(struct chat *chat, struct error *err)
{
    struct answer answer;
    answer_init(&answer);
    set_answer(chat, &answer); /* from here on Ctrl-C cancels this answer */
    int rc = chat->remote ? answer_by_url(chat, &answer, err) : answer_by_rpc(chat, &answer, err);
    set_answer(chat, NULL);
    if (!rc) {
        print_end(chat, &answer);
        rc = chat_log_add(&chat->log, "assistant", strbuf_str(&answer.text), err);
    }
    answer_fini(&answer);
    return rc;
}

static int ask(struct chat *chat, const char *text, struct error *err)
{
    if (chat_log_is_open(&chat->log)) /* the last question got no answer: replace it */
        chat_log_drop_last(&chat->log);
    int rc = chat_log_add(&chat->log, "user", text, err);
    return rc ? rc : request_answer(chat, err);
}

/* --- /commands --- */

enum { N_CHAT_COMMANDS = 7 };
static const struct manual_item chat_items[N_CHAT_COMMANDS];

static int do_help(struct chat *chat, const char *rest, struct error *err)
{
    (void)chat;
    (void)rest;
    (void)err;
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++)
        fprintf(stderr, "  %-22s %s\n", chat_items[i].term, chat_items[i].meaning);
    return 0;
}

static int do_clear(struct chat *chat, const char *rest, struct error *err)
{
    (void)rest;
    (void)err;
    chat_log_clear(&chat->log);
    return 0;
}

static int do_system(struct chat *chat, const char *rest, struct error *err)
{
    const char *text = strcmp(rest, "-") == 0 ? "" : rest;
    if (!rest[0]) {
        fprintf(stderr, "%s\n",
                chat->cli->settings.system[0] ? chat->cli->settings.system : "(none)");
        return 0;
    }
    return options_set(chat->cli->options, &chat->cli->settings, "system", text, err);
}

static int do_save(struct chat *chat, const char *rest, struct error *err)
{
    if (!rest[0])
        return error_set(err, STATUS_INVALID_ARGUMENT, "/save: give a file name");
    int rc = chat_log_save(&chat->log, chat->model, chat->cli->settings.system, rest, err);
    if (!rc)
        fprintf(stderr, "%zu messages saved to %s\n", chat->log.n_messages, rest);
    return rc;
}

static int do_retry(struct chat *chat, const char *rest, struct error *err)
{
    (void)rest;
    if (chat->log.n_messages && !chat_log_is_open(&chat->log))
        chat_log_drop_last(&chat->log);
    if (!chat->log.n_messages)
        return error_set(err, STATUS_INVALID_ARGUMENT, "/retry: no question to ask again");
    return request_answer(chat, err);
}

static void print_param(const struct chat *chat, const struct option_spec *spec)
{
    const char *field = (const char *)&chat->cli->settings + spec->offset;
    char value[64] = "";
    const char *text = value;
    switch (spec->type) {
    case OPTION_STRING:
    case OPTION_WORD:
        memcpy(&text, field, sizeof(text));
        break;
    case OPTION_BOOL:
        text = *(const bool *)field ? "true" : "false";
        break;
    case OPTION_F64:
        snprintf(value, sizeof(value), "%g", *(const double *)(const void *)field);
        break;
    case OPTION_U64:
    case OPTION_MS:
        snprintf(value, sizeof(value), "%" PRIu64 "%s", *(const uint64_t *)(const void *)field,
                 spec->type == OPTION_MS ? "ms" : "");
        break;
    }
    bool given = cli_given(chat->cli, spec->name) || spec->default_text;
    fprintf(stderr, "  %-20s %-10s %s\n", spec->name, given ? text : "(default)", spec->help);
}

static int do_params(struct chat *chat, const char *rest, struct error *err)
{
    struct cli_command sampling = {.name = "", .arguments = "", .groups = CLI_SAMPLING};
    struct option_spec specs[CLI_MAX_SPECS];
    size_t n_all = table_specs(&sampling, specs), n_name = strcspn(rest, " ");
    char name[64];
    sampling.groups = 0;
    struct option_spec common[CLI_MAX_SPECS];
    size_t n = n_all - table_specs(&sampling, common);
    if (!rest[0]) {
        for (size_t i = 0; i < n; i++)
            print_param(chat, &specs[i]);
        return 0;
    }
    snprintf(name, sizeof(name), "%.*s", (int)n_name, rest);
    const char *value = rest + n_name + strspn(rest + n_name, " ");
    for (size_t i = 0; i < n; i++)
        if (strcmp(specs[i].name, name) == 0)
            return options_set(chat->cli->options, &chat->cli->settings, name, value, err);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "/params: no parameter \"%s\"; list them with /params", name);
}

static int do_exit(struct chat *chat, const char *rest, struct error *err)
{
    (void)rest;
    (void)err;
    chat->ended = true;
    return 0;
}

static const struct manual_item chat_items[N_CHAT_COMMANDS] = {
    {"/help", "show this list"},
    {"/clear", "forget the conversation"},
    {"/system [TEXT]", "set the system message; - removes it; without TEXT show it"},
    {"/save FILE", "write the conversation as JSON to a new file"},
    {"/retry", "ask the last question again"},
    {"/params [NAME VALUE]", "show the sampling parameters, or set one"},
    {"/exit", "end the chat, like Ctrl-D"},
};
static int (*const chat_functions[])(struct chat *, const char *rest, struct error *) = {
    do_help, do_clear, do_system, do_save, do_retry, do_params, do_exit,
};
_Static_assert(CLI_N(chat_functions) == N_CHAT_COMMANDS, "each command needs a function");

static int run_chat_command(struct chat *chat, const char *text, struct error *err)
{
    size_t n = strcspn(text, " ");
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++)
        if (strcspn(chat_items[i].term, " ") == n && strncmp(chat_items[i].term, text, n) == 0)
            return chat_functions[i](chat, text + n + strspn(text + n, " "), err);
    return error_set(err, STATUS_INVALID_ARGUMENT, "no command %.*s; list the commands with /help",
                     n < 40 ? (int)n : 40, text);
}

/* --- the conversation --- */

/* Reads and handles entries until the end; prints errors. On a terminal the chat continues after an
 * error, and in a pipe after a failed /command. An unanswered question ends a pipe, because the
 * next lines were written for the answer. */
static int converse(struct chat *chat)
{
    struct strbuf text;
    struct error err;
    int code = 0;
    bool terminal = chat_line_is_terminal(chat->line);
    strbuf_init(&text, CLI_TEXT_MAX_BYTES);
    while (!chat->ended) {
        enum chat_line_result result = CHAT_LINE_TEXT;
        int rc = chat_line_read(chat->line, &text, &result, &err);
        if (!rc && result == CHAT_LINE_END)
            break;
        if (!rc && result == CHAT_LINE_INTERRUPTED) {
            if (terminal) {
                fputs("(leave with Ctrl-D or /exit)\n", stderr);
                continue;
            }
            code = 130;
            break;
        }
        const char *entry = strbuf_str(&text);
        bool command = !rc && entry[0] == '/';
        if (command)
            rc = run_chat_command(chat, entry, &err);
        else if (!rc && entry[strspn(entry, " \t\n")])
            rc = ask(chat, entry, &err);
        if (rc)
            code = cli_fail(chat->cli, &err);
        if (rc && (!(terminal || command) || err.reason == REASON_STDOUT_CLOSED))
            break;
        code = terminal ? 0 : code;
    }
    strbuf_fini(&text);
    return code;
}

/* Reads the model's context length and limits. Fails for a model without a chat template. */
static int read_model_info(struct chat *chat, struct error *err)
{
    Sluice__V1__GetModelRequest request = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message;
    const Sluice__V1__ModelInfo *info = NULL;
    request.model = (char *)(uintptr_t)chat->model;
    request.version = (char *)(uintptr_t)chat->cli->settings.version;
    int rc = cli_call_server(chat->cli, "GetModel", &request.base, &message, err);
    if (rc)
        return rc;
    const Sluice__V1__ServedModel *served = ((const Sluice__V1__GetModelResponse *)message)->model;
    for (size_t i = 0; served && i < served->n_versions; i++)
        if (!info || served->versions[i]->n_ready_replicas)
            info = served->versions[i]->info;
    if (info && info->capabilities && !info->capabilities->chat)
        rc = error_set(err, STATUS_FAILED_PRECONDITION,
                       "%s has no chat template; let it continue a text with: sluice run %s TEXT",
                       chat->model, chat->model);
    if (info) {
        chat->context_length = info->context_length;
        chat->max_prompt_tokens = info->limits ? info->limits->max_prompt_tokens : 0;
    }
    rpc_message_free(message);
    return rc;
}

/* Returns the path of the history: in the user's default state directory, even if --state-dir names
 * another directory. */
static const char *history_path(struct chat *chat)
{
    char dir[1024];
    if (chat->cli->settings.no_history || !isatty(STDIN_FILENO) ||
        cli_default_state(dir, sizeof(dir)) != 0)
        return NULL;
    struct error err;
    if (cli_make_dir(dir, &err) != 0)
        return NULL;
    snprintf(chat->history_path, sizeof(chat->history_path), "%s/chat_history", dir);
    return chat->history_path;
}

static int open_server(struct chat *chat, struct error *err)
{
    if (!chat->model) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "usage: sluice chat MODEL [options]   (see sluice chat --help)");
        return cli_usage(err);
    }
    int rc = cli_server(chat->cli, &chat->client, err);
    return rc ? rc : read_model_info(chat, err);
}

static int open_remote(struct chat *chat, struct error *err)
{
    int rc = remote_open(chat->cli, chat->model, &chat->remote, err);
    if (rc)
        return rc;
    chat->model = remote_model(chat->remote);
    return remote_context_length(chat->remote, &chat->context_length, err);
}

static int start(struct chat *chat, pthread_t *out_canceller, struct error *err)
{
    struct sigaction action = {.sa_handler = on_signal};
    int rc = cli_uses_url(chat->cli) ? open_remote(chat, err) : open_server(chat, err);
    if (!rc)
        rc = chat_line_open(history_path(chat), &chat->line, err);
    if (rc)
        return rc;
    sem_init(&interrupts, 0, 0);
    if (pthread_create(out_canceller, NULL, cancel_answers, chat) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start a thread");
    atomic_store(&line_of_signals, chat->line);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    return 0;
}

static int run_chat(struct cli *cli)
{
    struct chat chat = {.cli = cli, .model = cli_word(cli, 0), .lock = PTHREAD_MUTEX_INITIALIZER};
    struct error err;
    pthread_t canceller;
    int code;
    if (start(&chat, &canceller, &err) != 0) {
        code = cli_fail(cli, &err);
    } else {
        if (chat_line_is_terminal(chat.line) && chat.context_length)
            fprintf(stderr, "%s, %" PRIu32 " tokens of context; /help lists the commands\n",
                    chat.model, chat.context_length);
        else if (chat_line_is_terminal(chat.line))
            fprintf(stderr, "%s; /help lists the commands\n", chat.model);
        code = converse(&chat);
        signal(SIGINT, SIG_DFL);
        signal(SIGWINCH, SIG_DFL);
        pthread_mutex_lock(&chat.lock);
        chat.stopping = true;
        pthread_mutex_unlock(&chat.lock);
        sem_post(&interrupts);
        pthread_join(canceller, NULL);
    }
    atomic_store(&line_of_signals, NULL);
    chat_line_close(chat.line);
    chat_log_clear(&chat.log);
    remote_close(chat.remote);
    return code;
}

static const struct option_spec chat_specs[] = {
    {"no-history", 0, OPTION_BOOL, CLI_OPTION(no_history), "false", NULL, "save no history file", 0,
     0},
    {"url", 0, OPTION_STRING, CLI_OPTION(url), "", "URL",
     "talk to the OpenAI server at http(s)://HOST:PORT[/v1] instead of a Sluice over gRPC", 0, 0},
};
static const struct manual_example chat_examples[] = {
    {"sluice chat smol --system \"Answer in one sentence.\"", NULL},
    {"printf 'My name is Ada.\\nWhat is my name?\\n' | sluice chat smol", "each line is a turn"},
    {"sluice chat --url https://llm.example.org/v1 --tls-ca ca.pem --api-key-file key.txt",
     "the only model of an OpenAI server"},
};
static const struct manual_exit chat_exits[] = {{130, "ended by Ctrl-C while reading a pipe"}};

const struct cli_command cmd_chat = {
    .name = "chat",
    .arguments = "[MODEL]",
    .summary = "chat with a model",
    .description =
        "Keeps the conversation. When the model's context is full, the oldest turns are dropped, "
        "with a note. Ctrl-C cancels the answer, not the program; Ctrl-D ends. A line that ends "
        "with \\ "
        "continues in the next line. \"\"\" begins and ends a text of several lines. Typed lines "
        "are saved in ~/.local/state/sluice/chat_history (mode 0600).\n\nFrom a pipe each line is "
        "a turn. After a failed /command the chat continues with the next line; a question without "
        "an answer ends the chat. The exit status is then 1.\n\nWith --url the command speaks "
        "OpenAI's API over HTTP, as sluice run does. MODEL may be left out where the server lists "
        "a single model. Turns are dropped when the server refuses the conversation as too long.",
    .items_title = "commands",
    .items = chat_items,
    .n_items = CLI_N(chat_items),
    .examples = chat_examples,
    .n_examples = CLI_N(chat_examples),
    .specs = chat_specs,
    .n_specs = CLI_N(chat_specs),
    .groups = CLI_SAMPLING | CLI_DIAL,
    .exits = chat_exits,
    .n_exits = CLI_N(chat_exits),
    .run = run_chat,
};
