/* cmd_tokenize.c: `tokenize`: converts text or a chat to token ids, and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/message/message.h"
#include "sluice/v1/inference.pb-c.h"

/* Prints a token's bytes on one line, with \xNN for bytes that are not printable text. */
static void print_piece(const ProtobufCBinaryData *piece)
{
    const char *bytes = (const char *)piece->data;
    for (size_t i = 0; i < piece->len;) {
        uint32_t code;
        size_t n = utf8_decode(bytes + i, piece->len - i, &code);
        bool control = n && (code < 0x20 || (code >= 0x7F && code < 0xA0));
        if (n && code == '\\')
            fputs("\\\\", stdout);
        else if (n && !control)
            fwrite(bytes + i, 1, n, stdout);
        for (size_t j = 0; j < (n ? n : 1) && (!n || control); j++)
            printf("\\x%02X", (unsigned char)bytes[i + j]);
        i += n ? n : 1;
    }
}

static void print_tokens(const Sluice__V1__TokenizeResponse *response, bool pieces)
{
    for (size_t i = 0; i < response->n_ids; i++) {
        printf("%s%" PRIu32, pieces || i == 0 ? "" : " ", response->ids[i]);
        if (pieces && i < response->n_pieces) {
            putchar('\t');
            print_piece(&response->pieces[i]);
        }
        if (pieces)
            putchar('\n');
    }
    if (!pieces)
        putchar('\n');
}

static int tokenize(struct cli *cli, const char *text, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage system = SLUICE__V1__CHAT_MESSAGE__INIT, user = system;
    Sluice__V1__ChatMessage *messages[2];
    ProtobufCMessage *message;
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)s->version;
    request.with_pieces = s->pieces;
    request.parse_special_tokens = s->special;
    request.has_add_special_tokens = s->no_bos;
    if (s->chat) {
        system.role = (char *)(uintptr_t) "system";
        system.content = (char *)(uintptr_t)s->system;
        user.role = (char *)(uintptr_t) "user";
        user.content = (char *)(uintptr_t)text;
        if (s->system[0])
            messages[chat.n_messages++] = &system;
        messages[chat.n_messages++] = &user;
        chat.messages = messages;
        chat.template_ = (char *)(uintptr_t)s->template_name;
        request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT;
        request.chat = &chat;
    } else {
        request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
        request.text = (char *)(uintptr_t)text;
    }
    int rc = cli_call_server(cli, "Tokenize", &request.base, &message, err);
    if (rc)
        return rc;
    if (s->json)
        output_json(message);
    else
        print_tokens((const Sluice__V1__TokenizeResponse *)message, s->pieces);
    rpc_message_free(message);
    return 0;
}

/* Parses whole numbers, separated by blanks or commas. */
static int parse_ids(const char *text, uint32_t **ids, size_t *n_ids, struct error *err)
{
    static const char blanks[] = " \t\r\n,";
    for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
        char *end;
        size_t n = strcspn(text, blanks);
        errno = 0;
        unsigned long id = strtoul(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || end != text + n || errno || id > UINT32_MAX)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "\"%.*s\" is no token id; give a whole number up to 4294967295",
                             n < 40 ? (int)n : 40, text);
        uint32_t *grown = realloc(*ids, (*n_ids + 1) * sizeof(**ids));
        if (!grown)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the token ids");
        *ids = grown;
        (*ids)[(*n_ids)++] = (uint32_t)id;
        text += n;
    }
    return 0;
}

static int detokenize(struct cli *cli, const char *text, struct error *err)
{
    Sluice__V1__DetokenizeRequest request = SLUICE__V1__DETOKENIZE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    int rc = parse_ids(text, &request.ids, &request.n_ids, err);
    for (size_t i = 2; !rc && cli_word(cli, i); i++)
        rc = parse_ids(cli_word(cli, i), &request.ids, &request.n_ids, err);
    if (rc == STATUS_INVALID_ARGUMENT && cli_word(cli, 1) && strcmp(cli_word(cli, 1), "-") != 0)
        cli_usage(err);
    request.model = (char *)(uintptr_t)cli_word(cli, 0);
    request.version = (char *)(uintptr_t)cli->settings.version;
    /* a given --special keeps special tokens in the text */
    request.has_skip_special_tokens = cli->settings.special;
    if (!rc)
        rc = cli_call_server(cli, "Detokenize", &request.base, &message, err);
    free(request.ids);
    if (rc)
        return rc;
    if (cli->settings.json)
        output_json(message);
    else
        puts(((const Sluice__V1__DetokenizeResponse *)message)->text);
    rpc_message_free(message);
    return 0;
}

static int check_usage(const struct cli *cli, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    if (s->detokenize && (s->chat || s->pieces || s->no_bos))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--detokenize: leave out --chat, --pieces and --no-bos");
    if (!s->detokenize && cli_word(cli, 2))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "\"%s\": too many arguments; put the text in quotes", cli_word(cli, 2));
    if ((s->system[0] || s->template_name[0]) && !s->chat)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: give --chat too",
                         s->system[0] ? "system" : "template");
    return 0;
}

static int run_tokenize(struct cli *cli)
{
    struct error err;
    struct strbuf typed;
    const char *text = cli_word(cli, 1);
    bool ids = cli->settings.detokenize;
    if (check_usage(cli, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    strbuf_init(&typed, CLI_TEXT_MAX_BYTES);
    int rc = 0;
    if (!text || strcmp(text, "-") == 0) {
        rc = cli_read_stdin(ids ? "the list of ids" : "the text", &typed, &err);
        text = strbuf_str(&typed);
    }
    if (!rc)
        rc = ids ? detokenize(cli, text, &err) : tokenize(cli, text, &err);
    strbuf_fini(&typed);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec tokenize_specs[] = {
    {"detokenize", 'd', OPTION_BOOL, CLI_OPTION(detokenize), "false", NULL,
     "convert token ids to text", 0, 0},
    {"pieces", 'p', OPTION_BOOL, CLI_OPTION(pieces), "false", NULL,
     "print a line per token: id and text, with \\xNN for bytes that are not text", 0, 0},
    {"chat", 0, OPTION_BOOL, CLI_OPTION(chat), "false", NULL,
     "treat the text as a user's message and apply the chat template", 0, 0},
    {"system", 0, OPTION_STRING, CLI_OPTION(system), "", "TEXT",
     "system message before the user's message", 0, 0},
    {"template", 0, OPTION_STRING, CLI_OPTION(template_name), "", "NAME",
     "chat template of the model to use; empty: default", 0, 0},
    {"special", 0, OPTION_BOOL, CLI_OPTION(special), "false", NULL,
     "accept special tokens in the text, and show them in the result", 0, 0},
    {"no-bos", 0, OPTION_BOOL, CLI_OPTION(no_bos), "false", NULL,
     "add no tokens before and after the text", 0, 0},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to use; empty: by the model's traffic, else the ready version registered last", 0, 0},
};
static const struct manual_example tokenize_examples[] = {
    {"sluice tokenize smol \"Hello, world\"", NULL},
    {"sluice tokenize smol --chat --pieces \"Hello\"", NULL},
    {"sluice tokenize smol < page.txt | wc -w", NULL},
    {"sluice tokenize smol --detokenize 19556 28 905", NULL},
};

const struct cli_command cmd_tokenize = {
    .name = "tokenize",
    .arguments = "MODEL [TEXT...]",
    .summary = "convert text to token ids, and back",
    .description = "Without TEXT, or with -, the text comes from stdin, without one newline at its "
                   "end. Ids are printed on one line.",
    .examples = tokenize_examples,
    .n_examples = CLI_N(tokenize_examples),
    .specs = tokenize_specs,
    .n_specs = CLI_N(tokenize_specs),
    .groups = CLI_DIAL,
    .run = run_tokenize,
};
