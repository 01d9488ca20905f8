#include "server/gateway/openai/openai_request.h"

#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/http/http_body.h"
#include "server/gateway/openai/openai_chat.h"

enum { CHAT = 1, TEXT = 2, BOTH = 3, DEFAULT_MAX_TOKENS = 16 };

enum { MAX_FIELDS = 128 };

struct reader {
    struct openai_request *out;
    struct http_body body;
    bool given[MAX_FIELDS]; /* by field */
};

struct field;
/* Reads the value of a field, which is not null. */
typedef int read_fn(struct reader *r, const struct field *field);

struct field {
    const char *name;
    unsigned where;
    read_fn *read;
    size_t at, has; /* offsets in struct openai_request; see the read function */
    double neutral; /* refused fields: a number that asks for nothing */
};

static void *place(struct reader *r, size_t offset)
{
    return (char *)r->out + offset;
}

static void mark(struct reader *r, const struct field *field)
{
    if (field->has)
        *(protobuf_c_boolean *)place(r, field->has) = true;
}

/* --- read functions --- */

static int read_bool(struct reader *r, const struct field *field)
{
    bool value = false;
    int rc = http_body_bool(&r->body, field->name, &value);
    if (rc)
        return rc;
    *(bool *)place(r, field->at) = value;
    mark(r, field);
    return 0;
}

static int read_u32(struct reader *r, const struct field *field)
{
    int rc = http_body_u32(&r->body, field->name, place(r, field->at));
    if (!rc)
        mark(r, field);
    return rc;
}

static int read_float(struct reader *r, const struct field *field)
{
    int rc = http_body_float(&r->body, field->name, place(r, field->at));
    if (!rc)
        mark(r, field);
    return rc;
}

static int read_text(struct reader *r, const struct field *field)
{
    return http_body_text(&r->body, field->name, place(r, field->at));
}

static int read_texts(struct reader *r, const struct field *field)
{
    return http_body_texts(&r->body, field->name, place(r, field->at), place(r, field->has));
}

static int read_ids(struct reader *r, const struct field *field)
{
    return http_body_ids(&r->body, field->name, place(r, field->at), place(r, field->has));
}

static int read_object(struct reader *r, const struct field *field)
{
    return http_body_object(&r->body, field->name, place(r, field->at));
}

/* A whole number in [low, high], as JSON has it. */
static int read_signed(struct reader *r, const struct field *field, int64_t low, int64_t high,
                       int64_t *out)
{
    struct json_number n;
    int rc = http_body_integer(&r->body, field->name, &n);
    if (rc)
        return rc;
    bool fits = n.is_negative ? n.i >= low : n.u <= (uint64_t)high;
    if (!fits)
        return error_field(r->body.err, field->name, "must be a whole number from %lld to %lld",
                           (long long)low, (long long)high);
    *out = n.is_negative ? n.i : (int64_t)n.u;
    mark(r, field);
    return 0;
}

/* Negative numbers, -1 above all, mean that the limit is off. */
static int read_top_k(struct reader *r, const struct field *field)
{
    int64_t value = 0;
    int rc = read_signed(r, field, INT32_MIN, INT32_MAX, &value);
    r->out->sampling.top_k = value > 0 ? (uint32_t)value : 0;
    return rc;
}

static int read_priority(struct reader *r, const struct field *field)
{
    int64_t value = 0;
    int rc = read_signed(r, field, INT32_MIN, INT32_MAX, &value);
    r->out->request.priority = (int32_t)value;
    return rc;
}

/* Any 64-bit number; -1 is the highest. */
static int read_seed(struct reader *r, const struct field *field)
{
    struct json_number n;
    int rc = http_body_integer(&r->body, field->name, &n);
    if (rc)
        return rc;
    r->out->sampling.seed = n.is_negative ? (uint64_t)n.i : n.u;
    mark(r, field);
    return 0;
}

/* -1 means the whole context. */
static int read_truncate(struct reader *r, const struct field *field)
{
    int64_t value = 0;
    int rc = read_signed(r, field, -1, INT32_MAX, &value);
    r->out->output.truncate = (uint32_t)value;
    if (!rc && value < 0)
        r->out->output.has_truncate = false;
    return rc;
}

/* {"50256": -100}: a token id as text, and the amount. */
static int read_logit_bias(struct reader *r, const struct field *field)
{
    Sluice__V1__Sampling *sampling = &r->out->sampling;
    const char *key;
    int rc = http_body_enter_object(&r->body, field->name);
    sampling->n_logit_bias = 0;
    while (!rc && (rc = http_body_key(&r->body, &key)) == 0 && key) {
        uint64_t id = 0;
        for (const char *p = key; *p && id <= UINT32_MAX; p++)
            id = *p >= '0' && *p <= '9' ? id * 10 + (uint64_t)(*p - '0') : UINT64_MAX / 16;
        if (id > UINT32_MAX)
            return http_body_bad(&r->body, field->name, "has a key that is no token id");
        Sluice__V1__LogitBias *bias = arena_alloc(&r->out->arena, sizeof(*bias));
        void *list =
            http_body_grow(&r->body, sampling->logit_bias, sampling->n_logit_bias, sizeof(bias));
        if (!bias || !list)
            return http_body_no_memory(&r->body);
        sampling->logit_bias = list;
        sluice__v1__logit_bias__init(bias);
        bias->token_id = (uint32_t)id;
        rc = http_body_float(&r->body, field->name, &bias->bias);
        sampling->logit_bias[sampling->n_logit_bias++] = bias;
    }
    return rc;
}

/* Completions: the number of alternatives. vLLM also takes a bool. */
static int read_logprobs(struct reader *r, const struct field *field)
{
    enum json_value kind;
    int rc = http_body_kind(&r->body, &kind);
    if (rc)
        return rc;
    if (r->out->is_chat || kind == JSON_VALUE_BOOL)
        return http_body_bool(&r->body, field->name, &r->out->wants_logprobs);
    r->out->wants_logprobs = true;
    return http_body_u32(&r->body, field->name, &r->out->n_top);
}

/* Extra of vLLM: the number of alternatives for each token of the prompt. */
static int read_prompt_logprobs(struct reader *r, const struct field *field)
{
    r->out->output.prompt_logprobs = r->out->wants_prompt_logprobs = true;
    return http_body_u32(&r->body, field->name, &r->out->n_prompt_top);
}

static int read_stream_options(struct reader *r, const struct field *field)
{
    const char *key;
    int rc = http_body_enter_object(&r->body, field->name);
    r->out->has_stream_options = true;
    while (!rc && (rc = http_body_key(&r->body, &key)) == 0 && key) {
        bool is_null;
        rc = http_body_null(&r->body, &is_null);
        if (rc || is_null)
            continue;
        if (strcmp(key, "include_usage") == 0)
            rc = http_body_bool(&r->body, "stream_options.include_usage", &r->out->include_usage);
        else if (strcmp(key, "continuous_usage_stats") == 0)
            rc = http_body_bool(&r->body, "stream_options.continuous_usage_stats",
                                &r->out->continuous_usage);
        else
            rc = openai_field_ignore(&r->body, &r->out->ignored, "stream_options[]");
    }
    return rc;
}

static int read_messages(struct reader *r, const struct field *field)
{
    (void)field;
    return openai_chat_messages(&r->body, &r->out->chat, &r->out->ignored);
}

static int read_tools(struct reader *r, const struct field *field)
{
    (void)field;
    return openai_chat_tools(&r->body, &r->out->chat);
}

static int read_tool_choice(struct reader *r, const struct field *field)
{
    (void)field;
    return openai_chat_tool_choice(&r->body);
}

static int read_response_format(struct reader *r, const struct field *field)
{
    (void)field;
    return openai_chat_response_format(&r->body);
}

static int read_prompt(struct reader *r, const struct field *field)
{
    (void)field;
    return openai_prompt_read(&r->body, &r->out->prompts);
}

/* Only answers of text are built. */
static int read_modalities(struct reader *r, const struct field *field)
{
    char **list = NULL;
    size_t n = 0;
    int rc = http_body_texts(&r->body, field->name, &list, &n);
    for (size_t i = 0; !rc && i < n; i++)
        if (strcmp(list[i], "text") != 0)
            rc = openai_field_not_built(&r->body, field->name, "only \"text\" is built");
    return rc;
}

/* A chat's template adds the special tokens, and the tokenizer adds those of a plain prompt. Only
 * the value for this behaviour is built: false for a chat, true for a prompt. */
static int read_add_special_tokens(struct reader *r, const struct field *field)
{
    bool value = false;
    int rc = http_body_bool(&r->body, field->name, &value);
    if (!rc && value == r->out->is_chat)
        rc = openai_field_not_built(&r->body, field->name,
                                    r->out->is_chat ? "true is not built for a chat"
                                                    : "false is not built; give token ids");
    return rc;
}

static int read_nothing(struct reader *r, const struct field *field)
{
    (void)field;
    return http_body_skip(&r->body);
}

/* As llama.cpp has it: "none" leaves the reasoning in the content. */
static int read_reasoning_format(struct reader *r, const struct field *field)
{
    char *text = NULL;
    int rc = http_body_text(&r->body, field->name, &text);
    if (rc)
        return rc;
    bool is_none = strcmp(text, "none") == 0;
    if (!is_none && strcmp(text, "auto") != 0 && strcmp(text, "deepseek") != 0)
        return http_body_bad(&r->body, field->name,
                             "is neither \"auto\", \"deepseek\" nor \"none\"");
    r->out->output.has_split_reasoning = true;
    r->out->output.split_reasoning = !is_none;
    return 0;
}

static int ignore_field(struct reader *r, const struct field *field)
{
    return openai_field_ignore(&r->body, &r->out->ignored, field->name);
}

static int refuse_field(struct reader *r, const struct field *field)
{
    return openai_field_refuse(&r->body, field->name, field->neutral);
}

/* --- the fields --- */

#define AT(member)       .at = offsetof(struct openai_request, member)
#define HAS(member)      .has = offsetof(struct openai_request, member)
#define SAMPLING(member) AT(sampling.member), HAS(sampling.has_##member)
#define STOPPING(member) AT(stopping.member), HAS(stopping.has_##member)
#define OUTPUT(member)   AT(output.member), HAS(output.has_##member)
#define REFUSED(name)                                                                              \
    {                                                                                              \
        name, BOTH, refuse_field, .neutral = 0                                                     \
    }
#define REFUSED_BUT(name, number)                                                                  \
    {                                                                                              \
        name, BOTH, refuse_field, .neutral = (number)                                              \
    }

static const struct field fields[] = {
    {"model", BOTH, read_text, AT(model_name)},
    {"messages", CHAT, read_messages, .at = 0},
    {"prompt", TEXT, read_prompt, .at = 0},
    {"stream", BOTH, read_bool, AT(streams)},
    {"stream_options", BOTH, read_stream_options, .at = 0},
    {"max_tokens", BOTH, read_u32, STOPPING(max_tokens)},
    {"max_completion_tokens", CHAT, read_u32, AT(completion_tokens), HAS(has_completion_tokens)},
    {"temperature", BOTH, read_float, SAMPLING(temperature)},
    {"top_p", BOTH, read_float, SAMPLING(top_p)},
    {"top_k", BOTH, read_top_k, SAMPLING(top_k)},
    {"min_p", BOTH, read_float, SAMPLING(min_p)},
    {"typical_p", BOTH, read_float, SAMPLING(typical_p)},
    {"n", BOTH, read_u32, SAMPLING(n)},
    {"best_of", BOTH, read_u32, SAMPLING(best_of)},
    {"seed", BOTH, read_seed, SAMPLING(seed)},
    {"presence_penalty", BOTH, read_float, SAMPLING(presence_penalty)},
    {"frequency_penalty", BOTH, read_float, SAMPLING(frequency_penalty)},
    {"repetition_penalty", BOTH, read_float, SAMPLING(repetition_penalty)},
    {"logit_bias", BOTH, read_logit_bias, .at = 0},
    {"allowed_token_ids", BOTH, read_ids, AT(sampling.allowed_token_ids),
     HAS(sampling.n_allowed_token_ids)},
    {"bad_words", BOTH, read_texts, AT(sampling.bad_words), HAS(sampling.n_bad_words)},
    {"stop", BOTH, read_texts, AT(stopping.stop), HAS(stopping.n_stop)},
    {"stop_token_ids", BOTH, read_ids, AT(stopping.stop_token_ids), HAS(stopping.n_stop_token_ids)},
    {"min_tokens", BOTH, read_u32, STOPPING(min_tokens)},
    {"ignore_eos", BOTH, read_bool, STOPPING(ignore_eos)},
    {"include_stop_str_in_output", BOTH, read_bool, STOPPING(include_stop)},
    {"logprobs", BOTH, read_logprobs, .at = 0},
    {"top_logprobs", CHAT, read_u32, AT(n_top)},
    {"prompt_logprobs", BOTH, read_prompt_logprobs, .at = 0},
    {"skip_special_tokens", BOTH, read_bool, OUTPUT(skip_special_tokens)},
    {"truncate_prompt_tokens", BOTH, read_truncate, OUTPUT(truncate)},
    {"return_token_ids", BOTH, read_bool, AT(returns_ids)},
    {"echo", TEXT, read_bool, AT(echoes)},
    {"suffix", TEXT, read_text, AT(request.suffix)},
    {"tools", CHAT, read_tools, .at = 0},
    {"tool_choice", CHAT, read_tool_choice, .at = 0},
    {"parallel_tool_calls", CHAT, read_nothing, .at = 0},
    {"response_format", BOTH, read_response_format, .at = 0},
    {"modalities", CHAT, read_modalities, .at = 0},
    {"chat_template_kwargs", CHAT, read_object, AT(chat.template_variables_json)},
    {"chat_template", CHAT, read_text, AT(chat.template_override)},
    {"reasoning_effort", CHAT, read_text, AT(reasoning_effort)},
    {"include_reasoning", CHAT, read_bool, AT(includes_reasoning)},
    {"separate_reasoning", CHAT, read_bool, OUTPUT(split_reasoning)},
    {"reasoning_format", CHAT, read_reasoning_format, .at = 0},
    {"add_generation_prompt", CHAT, read_bool, AT(chat.add_generation_prompt),
     HAS(chat.has_add_generation_prompt)},
    {"continue_final_message", CHAT, read_bool, AT(chat.continue_final_message)},
    {"add_special_tokens", BOTH, read_add_special_tokens, .at = 0},
    {"priority", BOTH, read_priority, AT(request.priority), HAS(request.has_priority)},
    {"cache_salt", BOTH, read_text, AT(request.cache_salt)},
    {"parse_special", TEXT, read_bool, AT(parses_special), HAS(has_parses_special)},
    {"user", BOTH, ignore_field, .at = 0},
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

static int read_once(struct reader *r, size_t i)
{
    _Static_assert(sizeof(fields) / sizeof(fields[0]) <= MAX_FIELDS, "raise MAX_FIELDS");
    const struct field *field = &fields[i];
    if (r->given[i] && field->read != ignore_field)
        return http_body_bad(&r->body, field->name, "is given twice");
    r->given[i] = true;
    return field->read(r, field);
}

/* Reads the value of a key, or passes it over. */
static int read_key(struct reader *r, unsigned where, const char *key)
{
    bool is_null;
    int rc = http_body_null(&r->body, &is_null);
    if (rc || is_null) /* as if it were absent */
        return rc;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if ((fields[i].where & where) && strcmp(fields[i].name, key) == 0)
            return read_once(r, i);
    return openai_field_ignore(&r->body, &r->out->ignored, key);
}

/* --- checks that concern several fields, and defaults --- */

/* Puts reasoning_effort before the variables that the client gave. */
static int add_effort(struct reader *r)
{
    struct openai_request *out = r->out;
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
        return http_body_no_memory(&r->body);
    out->chat.template_variables_json = joined;
    return 0;
}

/* OpenAI's older and newer name of one limit. */
static int join_max_tokens(struct reader *r)
{
    Sluice__V1__Stopping *stopping = &r->out->stopping;
    if (!r->out->has_completion_tokens)
        return 0;
    if (stopping->has_max_tokens && stopping->max_tokens != r->out->completion_tokens)
        return http_body_bad(&r->body, "max_completion_tokens", "differs from max_tokens");
    stopping->has_max_tokens = true;
    stopping->max_tokens = r->out->completion_tokens;
    return 0;
}

/* A prompt of ids has no text to parse. The two texts around a gap are never parsed. */
static int check_parse_special(struct reader *r)
{
    const struct openai_request *out = r->out;
    bool has_ids = false;
    for (size_t i = 0; i < out->prompts.n; i++)
        has_ids = has_ids || !out->prompts.list[i].text;
    if (!out->has_parses_special || !out->parses_special || (!has_ids && !out->request.suffix[0]))
        return 0;
    return http_body_bad(&r->body, "parse_special",
                         has_ids ? "true needs prompts of text" : "true excludes suffix");
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

static int complete(struct reader *r)
{
    struct openai_request *out = r->out;
    struct http_body *body = &r->body;
    if (out->is_chat ? out->chat.n_messages == 0 : out->prompts.n == 0)
        return http_body_bad(body, out->is_chat ? "messages" : "prompt", "is missing or empty");
    if (out->has_stream_options && !out->streams)
        return http_body_bad(body, "stream_options", "needs stream: true");
    if (out->n_top && !out->wants_logprobs)
        return http_body_bad(body, "top_logprobs", "needs logprobs: true");
    if (out->output.prompt_logprobs && out->streams)
        return http_body_bad(body, "prompt_logprobs", "needs stream: false");
    int rc = join_max_tokens(r);
    if (!rc)
        rc = check_parse_special(r);
    if (rc)
        return rc;
    set_defaults(out);
    rc = add_effort(r);
    return rc || !strbuf_failed(&out->ignored.names) ? rc : http_body_no_memory(body);
}

/* --- the whole --- */

static void init(struct openai_request *request, bool is_chat, bool is_strict)
{
    *request = (struct openai_request){.is_chat = is_chat,
                                       .parses_special = true,
                                       .includes_reasoning = true,
                                       .ignored.is_strict = is_strict};
    arena_init(&request->arena, 0, 0);
    strbuf_init(&request->ignored.names, 0);
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
    struct reader r = {.out = request};
    const char *key = "";
    init(request, is_chat, is_strict);
    int rc = http_body_init(&r.body, body, n_bytes, &request->arena, err);
    while (!rc && (rc = http_body_key(&r.body, &key)) == 0 && key)
        rc = read_key(&r, is_chat ? CHAT : TEXT, key);
    if (!rc)
        rc = http_body_end(&r.body);
    return rc ? rc : complete(&r);
}

void openai_request_fini(struct openai_request *request)
{
    arena_fini(&request->arena);
    strbuf_fini(&request->ignored.names);
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

bool openai_request_split_model(struct arena *arena, const char *text, char **out_model,
                                char **out_version)
{
    size_t n = strcspn(text, ":");
    char *model = arena_strndup(arena, text, n);
    const char *version = text[n] ? text + n + 1 : "";
    char *copy = arena_strndup(arena, version, strlen(version));
    if (!model || !copy)
        return false;
    *out_model = model;
    *out_version = copy;
    return true;
}

bool openai_request_set_model(struct openai_request *request, const char *name)
{
    request->model_name = name;
    return openai_request_split_model(&request->arena, name, &request->request.model,
                                      &request->request.version);
}
