#include "server/gateway/openai/openai_tokens.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/text_call.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/http_fields.h"
#include "server/gateway/http/http_ignored.h"
#include "server/gateway/openai/openai_chat.h"
#include "server/gateway/openai/openai_models.h"
#include "server/gateway/replicas/model_name.h"
#include "sluice/v1/inference.pb-c.h"

/* A request. The exchange has a reference, and the text call has one until the answer. */
struct tokens {
    _Atomic unsigned n_refs;
    struct openai_tokens *context;
    struct http_exchange *http; /* retained */
    struct text_call *call;     /* retained; loop's thread */
    struct arena arena;
    char *model_name;
    struct model_name name;
    char *text;            /* the field "prompt"; NULL: absent */
    struct strbuf ignored; /* names of fields without effect */
    protobuf_c_boolean is_chat, has_returns_texts;
    bool returns_texts;
    Sluice__V1__TokenizeRequest encode;
    Sluice__V1__DetokenizeRequest decode;
    Sluice__V1__Chat chat;
    atomic_bool is_answered; /* `reply` and `headers` are set */
    struct http_reply reply;
    char headers[HTTP_ERROR_HEADER_BYTES + HTTP_IGNORED_HEADER_BYTES];
};

static void release(struct tokens *tokens)
{
    if (atomic_fetch_sub(&tokens->n_refs, 1) != 1)
        return;
    http_exchange_release(tokens->http);
    arena_fini(&tokens->arena);
    strbuf_fini(&tokens->ignored);
    strbuf_fini(&tokens->reply.body);
    free(tokens);
}

/* --- the answer --- */

static void write_ids(struct tokens *tokens, const Sluice__V1__TokenizeResponse *response)
{
    struct strbuf *out = &tokens->reply.body;
    uint32_t context =
        openai_models_context(tokens->context->dispatch, tokens->name.model, response->version);
    strbuf_printf(out, "{\"count\":%zu,\"max_model_len\":", response->n_ids);
    if (context)
        strbuf_printf(out, "%" PRIu32, context);
    else
        strbuf_add_str(out, "null");
    strbuf_add_str(out, ",\"tokens\":[");
    for (size_t i = 0; i < response->n_ids; i++)
        strbuf_printf(out, i ? ",%" PRIu32 : "%" PRIu32, response->ids[i]);
    strbuf_add_str(out, tokens->returns_texts ? "],\"token_strs\":[" : "],\"token_strs\":null");
    for (size_t i = 0; tokens->returns_texts && i < response->n_pieces; i++) {
        strbuf_add_str(out, i ? "," : "");
        json_write_text(out, (const char *)response->pieces[i].data, response->pieces[i].len);
    }
    strbuf_add_str(out, tokens->returns_texts ? "]}\n" : "}\n");
}

static void write_text(struct tokens *tokens, const Sluice__V1__DetokenizeResponse *response)
{
    struct strbuf *out = &tokens->reply.body;
    strbuf_add_str(out, "{\"prompt\":");
    json_write_text(out, response->text, strlen(response->text));
    strbuf_add_str(out, "}\n");
}

static void on_answer(void *arg, const ProtobufCMessage *response, const struct error *err)
{
    struct tokens *tokens = arg;
    tokens->reply = (struct http_reply){
        .status = 200, .content_type = "application/json", .headers = tokens->headers};
    if (!response)
        openai_models_error_reply(tokens->context->dispatch, err, tokens->is_chat, tokens->headers,
                                  &tokens->reply);
    else if (response->descriptor == &sluice__v1__tokenize_response__descriptor)
        write_ids(tokens, (const Sluice__V1__TokenizeResponse *)response);
    else
        write_text(tokens, (const Sluice__V1__DetokenizeResponse *)response);
    atomic_store(&tokens->is_answered, true);
    http_exchange_kick(tokens->http);
    release(tokens);
}

static const struct text_call_ops ops = {.answer = on_answer};

static void next(void *arg, struct http_out *out)
{
    struct tokens *tokens = arg;
    if (!atomic_load(&tokens->is_answered))
        return;
    http_out_reply(out, &tokens->reply);
    tokens->reply.body = (struct strbuf){0};
}

static void on_gone(void *arg, struct http_exchange *http)
{
    struct tokens *tokens = arg;
    (void)http;
    text_call_cancel(tokens->call);
}

static void on_done(void *arg, struct http_exchange *http)
{
    struct tokens *tokens = arg;
    (void)http;
    text_call_release(tokens->call);
    release(tokens);
}

static const struct http_exchange_events events = {
    .next = next, .on_gone = on_gone, .on_done = on_done};

/* --- the request --- */

#define AT(member) HTTP_FIELD(struct tokens, member)

static const struct http_field encode_fields[] = {
    {"model", AT(model_name)},
    {"prompt", AT(text)},
    {"messages", openai_chat_messages, .at = offsetof(struct tokens, chat),
     .has = offsetof(struct tokens, is_chat)},
    {"tools", openai_chat_tools, .at = offsetof(struct tokens, chat)},
    {"chat_template", AT(chat.template_override)},
    {"chat_template_kwargs", http_fields_json,
     .at = offsetof(struct tokens, chat.template_variables_json)},
    {"add_special_tokens", HTTP_FIELD_HAS(struct tokens, encode., add_special_tokens)},
    {"add_generation_prompt", HTTP_FIELD_HAS(struct tokens, chat., add_generation_prompt)},
    {"continue_final_message", AT(chat.continue_final_message)},
    {"return_token_strs", HTTP_FIELD_HAS(struct tokens, , returns_texts)},
    {"return_token_strings", HTTP_FIELD_HAS(struct tokens, , returns_texts)},
    {"parse_special", AT(encode.parse_special_tokens)},
};

static const struct http_field decode_fields[] = {
    {"model", AT(model_name)},
    {"tokens", HTTP_FIELD_LIST(struct tokens, decode., ids)},
    {"skip_special_tokens", HTTP_FIELD_HAS(struct tokens, decode., skip_special_tokens)},
};

static const struct http_table encode_table = {HTTP_TABLE(encode_fields)};
static const struct http_table decode_table = {HTTP_TABLE(decode_fields)};

static int read_body(struct tokens *tokens, bool encodes, struct error *err)
{
    const struct http_request *given = http_exchange_request(tokens->http);
    struct http_fields r = {.body = {.arena = &tokens->arena, .err = err},
                            .ignored = &tokens->ignored,
                            .is_strict = tokens->context->is_strict,
                            .out = tokens};
    int rc = http_fields_read_body(&r, given->body, given->n_body,
                                   encodes ? &encode_table : &decode_table);
    return rc ? rc
              : openai_models_choose(tokens->context->dispatch, tokens->model_name, &tokens->name,
                                     err);
}

static int check_encode(struct tokens *tokens, struct error *err)
{
    Sluice__V1__TokenizeRequest *request = &tokens->encode;
    struct limit_check check = {.limits = tokens->context->dispatch->relays->limits};
    request->model = tokens->name.model;
    request->version = tokens->name.version;
    if (tokens->is_chat) {
        if (tokens->text)
            return error_field(err, "messages", "cannot stand beside prompt");
        request->input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT;
        request->chat = &tokens->chat;
        if (tokens->chat.continue_final_message && !tokens->chat.has_add_generation_prompt)
            tokens->chat.has_add_generation_prompt = true; /* with the value false */
    } else {
        if (!tokens->text)
            return error_field(err, "prompt", "is missing; give prompt or messages");
        request->input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
        request->text = tokens->text;
    }
    request->with_pieces = tokens->returns_texts;
    int rc = validate_tokenize(request, &check, err);
    if (check.over != LIMIT_NONE)
        counters_refusal(tokens->context->dispatch->relays->counters, check.over);
    return rc;
}

static int check_decode(struct tokens *tokens, struct error *err)
{
    tokens->decode.model = tokens->name.model;
    tokens->decode.version = tokens->name.version;
    return validate_detokenize(&tokens->decode, err);
}

static struct tokens *make_tokens(struct openai_tokens *context, struct http_exchange *http)
{
    struct tokens *tokens = calloc(1, sizeof(*tokens));
    if (!tokens)
        return NULL;
    atomic_init(&tokens->n_refs, 1);
    tokens->context = context;
    tokens->http = http;
    http_exchange_retain(http);
    arena_init(&tokens->arena, 0, 0);
    sluice__v1__tokenize_request__init(&tokens->encode);
    tokens->encode.parse_special_tokens = true; /* as for the prompt of completions */
    sluice__v1__detokenize_request__init(&tokens->decode);
    sluice__v1__chat__init(&tokens->chat);
    return tokens;
}

static int begin(struct tokens *tokens, bool encodes, struct error *err)
{
    int rc = read_body(tokens, encodes, err);
    if (!rc)
        rc = encodes ? check_encode(tokens, err) : check_decode(tokens, err);
    if (rc)
        return rc;
    const struct text_call_params params = {.method = encodes ? "Tokenize" : "Detokenize",
                                            .request = encodes ? &tokens->encode.base
                                                               : &tokens->decode.base,
                                            .model = tokens->name.model,
                                            .version = tokens->name.version,
                                            .deadline_ns = INT64_MAX,
                                            .ops = &ops,
                                            .arg = tokens};
    http_ignored_header(&tokens->ignored, tokens->headers, sizeof(tokens->headers));
    return text_call_create(tokens->context->calls, &params, &tokens->call, err);
}

static void answer(struct openai_tokens *context, struct http_exchange *http, bool encodes)
{
    struct error err;
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {.status = 400};
    error_clear(&err);
    struct tokens *tokens = make_tokens(context, http);
    int rc = tokens ? begin(tokens, encodes, &err) : error_no_memory(&err);
    if (!rc) {
        atomic_fetch_add(&tokens->n_refs, 1); /* on_answer releases it */
        http_exchange_set_events(http, &events, tokens);
        text_call_start(tokens->call);
        return;
    }
    openai_models_error_reply(context->dispatch, &err, tokens && tokens->is_chat, headers, &reply);
    if (tokens)
        release(tokens);
    http_exchange_reply(http, &reply);
}

void openai_tokens_encode(void *arg, struct http_exchange *http)
{
    answer(arg, http, true);
}

void openai_tokens_decode(void *arg, struct http_exchange *http)
{
    answer(arg, http, false);
}
