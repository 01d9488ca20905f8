#include "server/gateway/openai/openai_request.h"

#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/http/http_fields.h"
#include "server/gateway/openai/openai_chat.h"

/* The paths of the two requests. */
enum { CHAT = 1, TEXT = 2 };
enum { DEFAULT_MAX_TOKENS = 16 };

/* --- readers of single fields --- */

/* Negative numbers, -1 above all, mean that the limit is off. */
static int read_top_k(struct http_fields *r, const struct http_field *field)
{
    int64_t value = 0;
    int rc = http_fields_signed(r, INT32_MIN, INT32_MAX, &value);
    uint32_t top_k = value > 0 ? (uint32_t)value : 0;
    return http_fields_put(r, field, rc, &top_k, sizeof(top_k));
}

static int read_priority(struct http_fields *r, const struct http_field *field)
{
    int64_t value = 0;
    int rc = http_fields_signed(r, INT32_MIN, INT32_MAX, &value);
    return http_fields_put(r, field, rc, &(int32_t){(int32_t)value}, sizeof(int32_t));
}

/* Any 64-bit number; -1 is the highest. */
static int read_seed(struct http_fields *r, const struct http_field *field)
{
    struct json_number n = {0};
    int rc = http_body_integer(&r->body, r->label, &n);
    uint64_t seed = n.is_negative ? (uint64_t)n.i : n.u;
    return http_fields_put(r, field, rc, &seed, sizeof(seed));
}

/* -1 means the whole context. */
static int read_truncate(struct http_fields *r, const struct http_field *field)
{
    struct openai_request *out = r->out;
    int64_t value = 0;
    int rc = http_fields_signed(r, -1, INT32_MAX, &value);
    (void)field;
    out->output.has_truncate = value >= 0;
    out->output.truncate = (uint32_t)value;
    return rc;
}

/* {"50256": -100}: a token id as text, and the amount. */
static int read_logit_bias(struct http_fields *r, const struct http_field *field)
{
    struct openai_request *out = r->out;
    Sluice__V1__Sampling *sampling = &out->sampling;
    const char *key;
    int rc = http_body_enter_object(&r->body, r->label);
    (void)field;
    while (!rc && (rc = http_body_key(&r->body, &key)) == 0 && key) {
        uint64_t id = 0;
        for (const char *p = key; *p && id <= UINT32_MAX; p++)
            id = *p >= '0' && *p <= '9' ? id * 10 + (uint64_t)(*p - '0') : UINT64_MAX / 16;
        if (id > UINT32_MAX)
            return http_fields_bad(r, "has a key that is no token id");
        Sluice__V1__LogitBias *bias = arena_alloc(&out->arena, sizeof(*bias));
        void *list =
            http_body_grow(&r->body, sampling->logit_bias, sampling->n_logit_bias, sizeof(bias));
        if (!bias || !list)
            return http_body_no_memory(&r->body);
        sampling->logit_bias = list;
        sluice__v1__logit_bias__init(bias);
        bias->token_id = (uint32_t)id;
        rc = http_body_float(&r->body, r->label, &bias->bias);
        sampling->logit_bias[sampling->n_logit_bias++] = bias;
    }
    return rc;
}

/* Completions: the number of alternatives. vLLM also takes a bool. */
static int read_logprobs(struct http_fields *r, const struct http_field *field)
{
    struct openai_request *out = r->out;
    enum json_value kind;
    int rc = http_body_kind(&r->body, &kind);
    (void)field;
    if (rc)
        return rc;
    if (out->is_chat || kind == JSON_VALUE_BOOL)
        return http_body_bool(&r->body, r->label, &out->wants_logprobs);
    out->wants_logprobs = true;
    return http_body_u32(&r->body, r->label, &out->n_top);
}

/* Extra of vLLM: the number of alternatives for each token of the prompt. */
static int read_prompt_logprobs(struct http_fields *r, const struct http_field *field)
{
    struct openai_request *out = r->out;
    out->output.prompt_logprobs = out->wants_prompt_logprobs = true;
    return http_fields_u32(r, field);
}

/* Only answers of text are built. */
static int read_modalities(struct http_fields *r, const struct http_field *field)
{
    char **list = NULL;
    size_t n = 0;
    int rc = http_body_texts(&r->body, r->label, &list, &n);
    (void)field;
    for (size_t i = 0; !rc && i < n; i++)
        if (strcmp(list[i], "text") != 0)
            rc = http_fields_not_built(r, "only \"text\" is built");
    return rc;
}

/* A chat's template adds the special tokens, and the tokenizer adds those of a plain prompt. Only
 * the value for this behaviour is built: false for a chat, true for a prompt. */
static int read_add_special_tokens(struct http_fields *r, const struct http_field *field)
{
    const struct openai_request *out = r->out;
    bool value = false;
    int rc = http_body_bool(&r->body, r->label, &value);
    (void)field;
    if (!rc && value == out->is_chat)
        rc = http_fields_not_built(r, out->is_chat ? "true is not built for a chat"
                                                   : "false is not built; give token ids");
    return rc;
}

/* As llama.cpp has it: "none" leaves the reasoning in the content. */
static int read_reasoning_format(struct http_fields *r, const struct http_field *field)
{
    char *text = NULL;
    int rc = http_body_text(&r->body, r->label, &text);
    if (rc)
        return rc;
    protobuf_c_boolean splits = strcmp(text, "none") != 0;
    if (splits && strcmp(text, "auto") != 0 && strcmp(text, "deepseek") != 0)
        rc = http_fields_bad(r, "is neither \"auto\", \"deepseek\" nor \"none\"");
    return http_fields_put(r, field, rc, &splits, sizeof(splits));
}

/* --- the fields --- */

#define AT(member)       HTTP_FIELD(struct openai_request, member)
#define SAMPLING(member) HTTP_FIELD_HAS(struct openai_request, sampling., member)
#define STOPPING(member) HTTP_FIELD_HAS(struct openai_request, stopping., member)
#define OUTPUT(member)   HTTP_FIELD_HAS(struct openai_request, output., member)
#define LIST(part, name) HTTP_FIELD_LIST(struct openai_request, part, name)
/* A place for a reader of this file. */
#define PLACE(part, name)                                                                          \
    .at = offsetof(struct openai_request, part name),                                              \
    .has = offsetof(struct openai_request, part has_##name)
#define REFUSED(name)                                                                              \
    {                                                                                              \
        name, http_fields_refuse, .neutral = 0                                                     \
    }
#define REFUSED_BUT(name, number)                                                                  \
    {                                                                                              \
        name, http_fields_refuse, .neutral = (number)                                              \
    }

static const struct http_field stream_option_fields[] = {
    {"include_usage", AT(include_usage)},
    {"continuous_usage_stats", AT(continuous_usage)},
};

static const struct http_table stream_options = {HTTP_TABLE(stream_option_fields)};

static const struct http_field fields[] = {
    {"model", AT(model_name)},
    {"messages", openai_chat_messages, .at = offsetof(struct openai_request, chat), .paths = CHAT},
    {"prompt", openai_prompt_read, .at = offsetof(struct openai_request, prompts), .paths = TEXT},
    {"stream", AT(streams)},
    {"stream_options", http_fields_object,
     .has = offsetof(struct openai_request, has_stream_options), .table = &stream_options},
    {"max_tokens", STOPPING(max_tokens)},
    {"max_completion_tokens", STOPPING(max_tokens), .paths = CHAT},
    {"temperature", SAMPLING(temperature)},
    {"top_p", SAMPLING(top_p)},
    {"top_k", read_top_k, PLACE(sampling., top_k)},
    {"min_p", SAMPLING(min_p)},
    {"typical_p", SAMPLING(typical_p)},
    {"n", SAMPLING(n)},
    {"best_of", SAMPLING(best_of)},
    {"seed", read_seed, PLACE(sampling., seed)},
    {"presence_penalty", SAMPLING(presence_penalty)},
    {"frequency_penalty", SAMPLING(frequency_penalty)},
    {"repetition_penalty", SAMPLING(repetition_penalty)},
    {"logit_bias", read_logit_bias, .at = 0},
    {"allowed_token_ids", LIST(sampling., allowed_token_ids)},
    {"bad_words", LIST(sampling., bad_words)},
    {"stop", LIST(stopping., stop)},
    {"stop_token_ids", LIST(stopping., stop_token_ids)},
    {"min_tokens", STOPPING(min_tokens)},
    {"ignore_eos", STOPPING(ignore_eos)},
    {"include_stop_str_in_output", STOPPING(include_stop)},
    {"logprobs", read_logprobs, .at = 0},
    {"top_logprobs", AT(n_top), .paths = CHAT},
    {"prompt_logprobs", read_prompt_logprobs, .at = offsetof(struct openai_request, n_prompt_top)},
    {"skip_special_tokens", OUTPUT(skip_special_tokens)},
    {"truncate_prompt_tokens", read_truncate, .at = 0},
    {"return_token_ids", AT(returns_ids)},
    {"echo", AT(echoes), .paths = TEXT},
    {"suffix", AT(request.suffix), .paths = TEXT},
    {"tools", openai_chat_tools, .at = offsetof(struct openai_request, chat), .paths = CHAT},
    {"tool_choice", openai_chat_tool_choice, .paths = CHAT},
    {"parallel_tool_calls", http_fields_skip, .paths = CHAT},
    {"response_format", openai_chat_response_format, .at = 0},
    {"modalities", read_modalities, .paths = CHAT},
    {"chat_template_kwargs", http_fields_json,
     .at = offsetof(struct openai_request, chat.template_variables_json), .paths = CHAT},
    {"chat_template", AT(chat.template_override), .paths = CHAT},
    {"reasoning_effort", AT(reasoning_effort), .paths = CHAT},
    {"include_reasoning", AT(includes_reasoning), .paths = CHAT},
    {"separate_reasoning", OUTPUT(split_reasoning), .paths = CHAT},
    {"reasoning_format", read_reasoning_format, PLACE(output., split_reasoning), .paths = CHAT},
    {"add_generation_prompt", HTTP_FIELD_HAS(struct openai_request, chat., add_generation_prompt),
     .paths = CHAT},
    {"continue_final_message", AT(chat.continue_final_message), .paths = CHAT},
    {"add_special_tokens", read_add_special_tokens, .at = 0},
    {"priority", read_priority, PLACE(request., priority)},
    {"cache_salt", AT(request.cache_salt)},
    {"parse_special", HTTP_FIELD_HAS(struct openai_request, , parses_special), .paths = TEXT},
    /* These would change what is generated, and are not built. */
    REFUSED("audio"),
    REFUSED("prediction"),
    REFUSED("web_search_options"),
    REFUSED("functions"),
    REFUSED("function_call"),
    REFUSED("structured_outputs"),
    REFUSED("guided_json"),
    REFUSED("guided_regex"),
    REFUSED("guided_choice"),
    REFUSED("guided_grammar"),
    REFUSED("grammar"),
    REFUSED("json_schema"),
    REFUSED("documents"),
    REFUSED("lora"),
    REFUSED("prompt_embeds"),
    REFUSED("logits_processors"),
    REFUSED("thinking_token_budget"),
    REFUSED("use_beam_search"),
    REFUSED_BUT("length_penalty", 1),
    REFUSED_BUT("repeat_penalty", 1),
    REFUSED_BUT("typ_p", 1),
    REFUSED_BUT("tfs_z", 1),
    REFUSED("top_a"),
    REFUSED_BUT("top_n_sigma", -1),
    REFUSED("n_predict"),
    REFUSED("mirostat"),
    REFUSED("dynatemp_range"),
    REFUSED("dry_multiplier"),
    REFUSED("xtc_probability"),
};

static const struct http_table table = {HTTP_TABLE(fields)};

/* --- checks that concern several fields, and defaults --- */

/* Puts reasoning_effort before the variables that the client gave. */
static int add_effort(struct openai_request *out, struct error *err)
{
    const char *given = out->chat.template_variables_json;
    struct strbuf text;
    if (!out->reasoning_effort || strstr(given, "\"reasoning_effort\""))
        return 0;
    const char *rest = given[0] ? given + 1 : "}";
    bool has_more = rest[strspn(rest, " \t\r\n")] != '}';
    strbuf_init(&text, 0);
    strbuf_add_str(&text, "{\"reasoning_effort\":");
    json_write_text(&text, out->reasoning_effort, strlen(out->reasoning_effort));
    strbuf_add_str(&text, has_more ? "," : "");
    strbuf_add_str(&text, rest);
    char *joined =
        strbuf_failed(&text) ? NULL : arena_strndup(&out->arena, strbuf_str(&text), text.n_bytes);
    strbuf_fini(&text);
    if (!joined)
        return error_no_memory(err);
    out->chat.template_variables_json = joined;
    return 0;
}

/* A prompt of ids has no text to parse. The two texts around a gap are never parsed. */
static int check_parse_special(const struct openai_request *out, struct error *err)
{
    bool has_ids = false;
    for (size_t i = 0; i < out->prompts.n; i++)
        has_ids = has_ids || !out->prompts.list[i].text;
    if (!out->has_parses_special || !out->parses_special || (!has_ids && !out->request.suffix[0]))
        return 0;
    return error_field(err, "parse_special", "true %s",
                       has_ids ? "needs prompts of text" : "excludes suffix");
}

static void set_defaults(struct openai_request *out)
{
    if (!out->is_chat && !out->stopping.has_max_tokens) {
        out->stopping.has_max_tokens = true;
        out->stopping.max_tokens = DEFAULT_MAX_TOKENS;
    }
    if (!out->chat.has_add_generation_prompt && out->chat.continue_final_message)
        out->chat.has_add_generation_prompt = true; /* with the value false */
    out->output.logprobs = out->wants_logprobs;
    out->output.return_full_text = out->echoes;
    out->output.return_prompt_token_ids = out->returns_ids;
    if (out->echoes && out->wants_logprobs)
        out->output.prompt_logprobs = true;
    out->output.top_n = out->n_top > out->n_prompt_top ? out->n_top : out->n_prompt_top;
    out->output.has_top_n = out->output.top_n > 0;
}

static int complete(struct openai_request *out, struct error *err)
{
    if (out->is_chat ? out->chat.n_messages == 0 : out->prompts.n == 0)
        return error_field(err, out->is_chat ? "messages" : "prompt", "is missing or empty");
    if (out->has_stream_options && !out->streams)
        return error_field(err, "stream_options", "needs stream: true");
    if (out->n_top && !out->wants_logprobs)
        return error_field(err, "top_logprobs", "needs logprobs: true");
    if (out->output.prompt_logprobs && out->streams)
        return error_field(err, "prompt_logprobs", "needs stream: false");
    int rc = check_parse_special(out, err);
    if (rc)
        return rc;
    set_defaults(out);
    return add_effort(out, err);
}

/* --- the whole --- */

static void init(struct openai_request *request, bool is_chat)
{
    *request = (struct openai_request){
        .is_chat = is_chat, .parses_special = true, .includes_reasoning = true};
    arena_init(&request->arena, 0, 0);
    strbuf_init(&request->ignored, 0);
    sluice__v1__generate_request__init(&request->request);
    sluice__v1__sampling__init(&request->sampling);
    sluice__v1__stopping__init(&request->stopping);
    sluice__v1__output__init(&request->output);
    sluice__v1__chat__init(&request->chat);
    request->request.sampling = &request->sampling;
    request->request.stopping = &request->stopping;
    request->request.output = &request->output;
}

int openai_request_read(struct openai_request *request, bool is_chat, bool is_strict,
                        const char *body, size_t n_bytes, struct error *err)
{
    struct http_fields r = {.body = {.arena = &request->arena, .err = err},
                            .ignored = &request->ignored,
                            .is_strict = is_strict,
                            .path = is_chat ? CHAT : TEXT,
                            .out = request};
    init(request, is_chat);
    int rc = http_fields_read_body(&r, body, n_bytes, &table);
    return rc ? rc : complete(request, err);
}

void openai_request_fini(struct openai_request *request)
{
    arena_fini(&request->arena);
    strbuf_fini(&request->ignored);
}

size_t openai_request_n_prompts(const struct openai_request *request)
{
    return request->is_chat ? 1 : request->prompts.n;
}

bool openai_request_choose(struct openai_request *request, size_t i)
{
    Sluice__V1__GenerateRequest *out = &request->request;
    if (request->is_chat) {
        out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
        out->chat = &request->chat;
        return true;
    }
    const struct openai_prompt *prompt = &request->prompts.list[i];
    if (prompt->text) {
        out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        out->text = (char *)(uintptr_t)prompt->text;
        out->parse_special_tokens = request->parses_special && !out->suffix[0];
        return true;
    }
    Sluice__V1__TokenIds *ids = arena_alloc(&request->arena, sizeof(*ids));
    if (!ids)
        return false;
    *ids = (Sluice__V1__TokenIds)SLUICE__V1__TOKEN_IDS__INIT;
    out->parse_special_tokens = false;
    ids->ids = prompt->ids;
    ids->n_ids = prompt->n_ids;
    out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    out->token_ids = ids;
    return true;
}

bool openai_request_unbind(struct openai_request *request, const struct error *err)
{
    if (err->reason != REASON_TOTAL_TOO_LONG || strcmp(err->field, "stopping.max_tokens") != 0)
        return false;
    request->stopping.has_max_tokens = false;
    return true;
}

void openai_request_set_model(struct openai_request *request, const struct model_name *name)
{
    request->name = *name;
    request->request.model = request->name.model;
    request->request.version = request->name.version;
    if (!request->model_name || !request->model_name[0])
        request->model_name = request->name.model;
}
