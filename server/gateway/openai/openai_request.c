#include "server/gateway/openai/openai_request.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_cursor.h"

enum { MAX_KEY = 256, CHAT = 1, TEXT = 2, BOTH = 3, DEFAULT_MAX_TOKENS = 16 };

struct reader {
    struct openai_request *out;
    struct json_cursor cursor;
    struct error *err;
};

/* Reads the value of a field, which is not null. */
struct field;
typedef int read_fn(struct reader *r, const struct field *field);

struct field {
    const char *name;
    unsigned where;
    read_fn *read;
    size_t at, has; /* offsets in struct openai_request; see the read function */
};

/* --- errors --- */

static int bad(struct reader *r, const char *name, const char *rule)
{
    return error_field(r->err, name, "%s", rule);
}

/* The cursor's errors speak of files. */
static int broken(struct reader *r)
{
    r->err->reason = REASON_NONE;
    return r->err->status;
}

static int no_memory(struct reader *r)
{
    return error_no_memory(r->err);
}

/* --- single values --- */

static void *place(struct reader *r, size_t offset)
{
    return (char *)r->out + offset;
}

static void mark(struct reader *r, const struct field *field)
{
    if (field->has)
        *(protobuf_c_boolean *)place(r, field->has) = true;
}

static int expect(struct reader *r, const char *name, enum json_value wanted, const char *rule)
{
    enum json_value kind;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    return kind == wanted ? 0 : bad(r, name, rule);
}

static int read_bool(struct reader *r, const struct field *field)
{
    bool value = false;
    int rc = expect(r, field->name, JSON_VALUE_BOOL, "must be true or false");
    if (rc)
        return rc;
    if (json_cursor_bool(&r->cursor, &value, r->err) != 0)
        return broken(r);
    *(bool *)place(r, field->at) = value;
    mark(r, field);
    return 0;
}

static int number(struct reader *r, const char *name, struct json_number *out)
{
    int rc = expect(r, name, JSON_VALUE_NUMBER, "must be a number");
    if (rc)
        return rc;
    return json_cursor_number(&r->cursor, out, r->err) == 0 ? 0 : broken(r);
}

static int whole(struct reader *r, const char *name, uint64_t most, uint64_t *out)
{
    struct json_number n;
    int rc = number(r, name, &n);
    if (rc)
        return rc;
    if (!n.is_integer || n.is_negative || n.u > most)
        return error_field(r->err, name, "must be a whole number from 0 to %llu",
                           (unsigned long long)most);
    *out = n.u;
    return 0;
}

static int read_u32(struct reader *r, const struct field *field)
{
    uint64_t value = 0;
    int rc = whole(r, field->name, UINT32_MAX, &value);
    if (rc)
        return rc;
    *(uint32_t *)place(r, field->at) = (uint32_t)value;
    mark(r, field);
    return 0;
}

/* Negative numbers, -1 above all, mean that the limit is off. */
static int read_top_k(struct reader *r, const struct field *field)
{
    struct json_number n;
    int rc = number(r, field->name, &n);
    if (rc)
        return rc;
    if (!n.is_integer || (!n.is_negative && n.u > UINT32_MAX))
        return bad(r, field->name, "must be a whole number");
    r->out->sampling.top_k = n.is_negative ? 0 : (uint32_t)n.u;
    mark(r, field);
    return 0;
}

static int read_seed(struct reader *r, const struct field *field)
{
    struct json_number n;
    int rc = number(r, field->name, &n);
    if (rc)
        return rc;
    if (!n.is_integer)
        return bad(r, field->name, "must be a whole number");
    r->out->sampling.seed = n.is_negative ? (uint64_t)n.i : n.u;
    mark(r, field);
    return 0;
}

static int read_priority(struct reader *r, const struct field *field)
{
    struct json_number n;
    int rc = number(r, field->name, &n);
    if (rc)
        return rc;
    if (!n.is_integer || (n.is_negative ? n.i < INT32_MIN : n.u > INT32_MAX))
        return bad(r, field->name, "must be a whole number");
    r->out->request.priority = n.is_negative ? (int32_t)n.i : (int32_t)n.u;
    mark(r, field);
    return 0;
}

static int read_float(struct reader *r, const struct field *field)
{
    struct json_number n;
    int rc = number(r, field->name, &n);
    if (rc)
        return rc;
    *(float *)place(r, field->at) = (float)n.f;
    mark(r, field);
    return 0;
}

/* A text without NUL, in the arena. */
static int text(struct reader *r, const char *name, char **out)
{
    const char *bytes;
    size_t n;
    int rc = expect(r, name, JSON_VALUE_STRING, "must be a string");
    if (rc)
        return rc;
    if (json_cursor_text(&r->cursor, &r->out->arena, &bytes, &n, r->err) != 0)
        return broken(r);
    if (memchr(bytes, '\0', n))
        return bad(r, name, "must not have a NUL character");
    *out = arena_strndup(&r->out->arena, bytes, n);
    return *out ? 0 : no_memory(r);
}

static int read_text(struct reader *r, const struct field *field)
{
    return text(r, field->name, place(r, field->at));
}

/* The JSON text of a value, unchanged, so that templates see what was sent. */
static int raw(struct reader *r, char **out)
{
    enum json_value kind;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    size_t begin = r->cursor.at;
    if (json_cursor_skip(&r->cursor, r->err) != 0)
        return broken(r);
    *out = arena_strndup(&r->out->arena, r->cursor.text + begin, r->cursor.at - begin);
    return *out ? 0 : no_memory(r);
}

static int read_object(struct reader *r, const struct field *field)
{
    int rc = expect(r, field->name, JSON_VALUE_OBJECT, "must be an object");
    return rc ? rc : raw(r, place(r, field->at));
}

/* --- lists --- */

/* Grows an array of the arena: call with the number of elements in it. */
static void *grow(struct reader *r, void *list, size_t n, size_t size)
{
    if (n & (n - 1))
        return list; /* room up to the next power of two */
    void *more = arena_calloc(&r->out->arena, n ? 2 * n : 1, size);
    if (more && n)
        memcpy(more, list, n * size);
    return more;
}

/* A string, or a list of strings. */
static int texts(struct reader *r, const char *name, char ***out, size_t *out_n)
{
    enum json_value kind;
    bool more = true;
    int rc = 0;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    *out_n = 0;
    if (kind == JSON_VALUE_STRING) {
        *out = arena_calloc(&r->out->arena, 1, sizeof(char *));
        *out_n = 1;
        return *out ? text(r, name, &(*out)[0]) : no_memory(r);
    }
    if (kind != JSON_VALUE_ARRAY)
        return bad(r, name, "must be a string or a list of strings");
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    while (!rc) {
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            return broken(r);
        if (!more)
            return 0;
        *out = grow(r, *out, *out_n, sizeof(char *));
        rc = *out ? text(r, name, &(*out)[(*out_n)++]) : no_memory(r);
    }
    return rc;
}

static int read_texts(struct reader *r, const struct field *field)
{
    return texts(r, field->name, place(r, field->at), place(r, field->has));
}

static int ids(struct reader *r, const char *name, uint32_t **out, size_t *out_n)
{
    bool more = true;
    int rc = expect(r, name, JSON_VALUE_ARRAY, "must be a list of token ids");
    *out_n = 0;
    if (rc)
        return rc;
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    while (!rc) {
        uint64_t id = 0;
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            return broken(r);
        if (!more)
            return 0;
        rc = whole(r, name, UINT32_MAX, &id);
        *out = rc ? *out : grow(r, *out, *out_n, sizeof(uint32_t));
        if (!rc && !*out)
            rc = no_memory(r);
        if (!rc)
            (*out)[(*out_n)++] = (uint32_t)id;
    }
    return rc;
}

static int read_ids(struct reader *r, const struct field *field)
{
    return ids(r, field->name, place(r, field->at), place(r, field->has));
}

/* {"50256": -100}: a token id as text, and the amount. */
static int read_logit_bias(struct reader *r, const struct field *field)
{
    Sluice__V1__Sampling *sampling = &r->out->sampling;
    const char *key;
    int rc = expect(r, field->name, JSON_VALUE_OBJECT, "must be an object of token ids");
    if (rc)
        return rc;
    if (json_cursor_enter_object(&r->cursor, r->err) != 0)
        return broken(r);
    for (;;) {
        struct json_number n;
        uint64_t id = 0;
        if (json_cursor_next_key(&r->cursor, &r->out->arena, MAX_KEY, &key, r->err) != 0)
            return broken(r);
        if (!key)
            return 0;
        for (const char *p = key; *p && id <= UINT32_MAX; p++)
            id = *p >= '0' && *p <= '9' ? id * 10 + (uint64_t)(*p - '0') : UINT64_MAX / 16;
        if (id > UINT32_MAX)
            return bad(r, field->name, "has a key that is no token id");
        if ((rc = number(r, field->name, &n)) != 0)
            return rc;
        Sluice__V1__LogitBias *bias = arena_alloc(&r->out->arena, sizeof(*bias));
        void *list = grow(r, sampling->logit_bias, sampling->n_logit_bias, sizeof(bias));
        if (!bias || !list)
            return no_memory(r);
        sampling->logit_bias = list;
        sluice__v1__logit_bias__init(bias);
        bias->token_id = (uint32_t)id;
        bias->bias = (float)n.f;
        sampling->logit_bias[sampling->n_logit_bias++] = bias;
    }
}

/* --- a conversation --- */

/* Content: null, a string, or a list of parts of type text. */
static int read_content(struct reader *r, const char *name, char **out)
{
    struct strbuf joined;
    enum json_value kind;
    bool more = true;
    size_t n_parts = 0;
    char part_name[96];
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    if (kind == JSON_VALUE_STRING)
        return text(r, name, out);
    if (kind == JSON_VALUE_NULL)
        return json_cursor_null(&r->cursor, r->err) == 0 ? 0 : broken(r);
    if (kind != JSON_VALUE_ARRAY)
        return bad(r, name, "must be a string or a list of parts");
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    strbuf_init(&joined, 0);
    int rc = 0;
    while (!rc) {
        const char *key;
        char *type = NULL, *part = NULL;
        snprintf(part_name, sizeof(part_name), "%s[%zu]", name, n_parts++);
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            rc = broken(r);
        if (rc || !more)
            break;
        rc = expect(r, part_name, JSON_VALUE_OBJECT, "must be a part: an object with a type");
        if (!rc && json_cursor_enter_object(&r->cursor, r->err) != 0)
            rc = broken(r);
        while (!rc) {
            if (json_cursor_next_key(&r->cursor, &r->out->arena, MAX_KEY, &key, r->err) != 0)
                rc = broken(r);
            if (rc || !key)
                break;
            if (strcmp(key, "type") == 0)
                rc = text(r, part_name, &type);
            else if (strcmp(key, "text") == 0)
                rc = text(r, part_name, &part);
            else if (json_cursor_skip(&r->cursor, r->err) != 0)
                rc = broken(r);
        }
        if (!rc && (!type || strcmp(type, "text") != 0 || !part))
            rc = bad(r, part_name, "is no part of type text; images and sound are not built");
        if (!rc)
            strbuf_add_str(&joined, part);
    }
    if (!rc) {
        *out = strbuf_failed(&joined)
                   ? NULL
                   : arena_strndup(&r->out->arena, strbuf_str(&joined), joined.n_bytes);
        rc = *out ? 0 : no_memory(r);
    }
    strbuf_fini(&joined);
    return rc;
}

static int read_message(struct reader *r, size_t i, Sluice__V1__ChatMessage *message)
{
    char name[64];
    const char *key;
    bool has_role = false;
    snprintf(name, sizeof(name), "messages[%zu]", i);
    int rc = expect(r, name, JSON_VALUE_OBJECT, "must be an object");
    if (!rc && json_cursor_enter_object(&r->cursor, r->err) != 0)
        rc = broken(r);
    while (!rc) {
        enum json_value kind;
        if (json_cursor_next_key(&r->cursor, &r->out->arena, MAX_KEY, &key, r->err) != 0)
            return broken(r);
        if (!key)
            break;
        snprintf(name, sizeof(name), "messages[%zu].%.40s", i, key);
        if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
            return broken(r);
        bool is_null = kind == JSON_VALUE_NULL;
        if (strcmp(key, "content") == 0)
            rc = read_content(r, name, &message->content);
        else if (is_null)
            rc = json_cursor_null(&r->cursor, r->err) == 0 ? 0 : broken(r);
        else if (strcmp(key, "role") == 0)
            rc = text(r, name, &message->role);
        else if (strcmp(key, "name") == 0)
            rc = text(r, name, &message->name);
        else if (strcmp(key, "tool_call_id") == 0)
            rc = text(r, name, &message->tool_call_id);
        else if (strcmp(key, "reasoning_content") == 0 || strcmp(key, "reasoning") == 0)
            rc = text(r, name, &message->reasoning_content);
        else if (strcmp(key, "tool_calls") == 0)
            rc = raw(r, &message->tool_calls_json);
        else if (json_cursor_skip(&r->cursor, r->err) != 0)
            rc = broken(r);
        has_role = has_role || strcmp(key, "role") == 0;
    }
    if (!rc && strcmp(message->role, "developer") == 0) {
        static char system[] = "system";
        message->role = system;
    }
    snprintf(name, sizeof(name), "messages[%zu].role", i);
    return rc || has_role ? rc : bad(r, name, "is missing");
}

static int read_messages(struct reader *r, const struct field *field)
{
    Sluice__V1__Chat *chat = &r->out->chat;
    bool more = true;
    int rc = expect(r, field->name, JSON_VALUE_ARRAY, "must be a list of messages");
    if (rc)
        return rc;
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    while (!rc) {
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            return broken(r);
        if (!more)
            break;
        Sluice__V1__ChatMessage *message = arena_alloc(&r->out->arena, sizeof(*message));
        void *list = grow(r, chat->messages, chat->n_messages, sizeof(message));
        if (!message || !list)
            return no_memory(r);
        sluice__v1__chat_message__init(message);
        chat->messages = list;
        chat->messages[chat->n_messages] = message;
        rc = read_message(r, chat->n_messages++, message);
    }
    return rc;
}

static int read_tools(struct reader *r, const struct field *field)
{
    Sluice__V1__Chat *chat = &r->out->chat;
    bool more = true;
    int rc = expect(r, field->name, JSON_VALUE_ARRAY, "must be a list of tools");
    if (rc)
        return rc;
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    while (!rc) {
        char name[32];
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            return broken(r);
        if (!more)
            break;
        snprintf(name, sizeof(name), "tools[%zu]", chat->n_tools_json);
        void *list = grow(r, chat->tools_json, chat->n_tools_json, sizeof(char *));
        if (!list)
            return no_memory(r);
        chat->tools_json = list;
        rc = expect(r, name, JSON_VALUE_OBJECT, "must be an object");
        if (!rc)
            rc = raw(r, &chat->tools_json[chat->n_tools_json++]);
    }
    return rc;
}

static int not_built(struct reader *r, const char *name, const char *what)
{
    error_set(r->err, STATUS_UNIMPLEMENTED, "%s: %s", name, what);
    snprintf(r->err->field, sizeof(r->err->field), "%s", name);
    return STATUS_UNIMPLEMENTED;
}

/* "none" and "auto": the tools are in the prompt, and the answer is content. */
static int read_tool_choice(struct reader *r, const struct field *field)
{
    static const char rule[] = "only \"auto\" and \"none\" are built";
    enum json_value kind;
    char *choice = NULL;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    if (kind != JSON_VALUE_STRING)
        return not_built(r, field->name, rule);
    int rc = text(r, field->name, &choice);
    if (!rc && strcmp(choice, "auto") != 0 && strcmp(choice, "none") != 0)
        rc = not_built(r, field->name, rule);
    return rc;
}

static int read_response_format(struct reader *r, const struct field *field)
{
    const char *key;
    char *type = NULL;
    int rc = expect(r, field->name, JSON_VALUE_OBJECT, "must be an object with a type");
    if (!rc && json_cursor_enter_object(&r->cursor, r->err) != 0)
        rc = broken(r);
    while (!rc) {
        if (json_cursor_next_key(&r->cursor, &r->out->arena, MAX_KEY, &key, r->err) != 0)
            return broken(r);
        if (!key)
            break;
        if (strcmp(key, "type") == 0)
            rc = text(r, field->name, &type);
        else if (json_cursor_skip(&r->cursor, r->err) != 0)
            rc = broken(r);
    }
    if (!rc && !type)
        rc = bad(r, field->name, "has no type");
    if (!rc && strcmp(type, "text") != 0)
        rc = not_built(r, field->name, "only the type text is built");
    return rc;
}

static int read_stream_options(struct reader *r, const struct field *field)
{
    const char *key;
    int rc = expect(r, field->name, JSON_VALUE_OBJECT, "must be an object");
    if (!rc && json_cursor_enter_object(&r->cursor, r->err) != 0)
        rc = broken(r);
    while (!rc) {
        if (json_cursor_next_key(&r->cursor, &r->out->arena, MAX_KEY, &key, r->err) != 0)
            return broken(r);
        if (!key)
            return 0;
        struct field part = {.name = key};
        if (strcmp(key, "include_usage") == 0)
            part.at = offsetof(struct openai_request, include_usage);
        else if (strcmp(key, "continuous_usage_stats") == 0)
            part.at = offsetof(struct openai_request, continuous_usage);
        if (part.at)
            rc = read_bool(r, &part);
        else if (json_cursor_skip(&r->cursor, r->err) != 0)
            rc = broken(r);
    }
    return rc;
}

/* Chat: a bool. Completions: the number of alternatives. */
static int read_logprobs(struct reader *r, const struct field *field)
{
    uint64_t n = 0;
    enum json_value kind;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    if (kind == JSON_VALUE_BOOL)
        return read_bool(r, &(struct field){.name = field->name,
                                            .at = offsetof(struct openai_request, wants_logprobs)});
    int rc = whole(r, field->name, UINT32_MAX, &n);
    if (rc)
        return rc;
    r->out->wants_logprobs = true;
    r->out->output.top_n = (uint32_t)n;
    r->out->output.has_top_n = n > 0;
    return 0;
}

/* --- prompts of completions --- */

static struct openai_prompt *add_prompt(struct reader *r)
{
    struct openai_request *out = r->out;
    if (out->n_prompts == OPENAI_MAX_PROMPTS) {
        error_field(r->err, "prompt", "has more than %d prompts", OPENAI_MAX_PROMPTS);
        return NULL;
    }
    void *list = grow(r, out->prompts, out->n_prompts, sizeof(*out->prompts));
    if (!list) {
        no_memory(r);
        return NULL;
    }
    out->prompts = list;
    return &out->prompts[out->n_prompts++];
}

static int read_text_prompt(struct reader *r)
{
    struct openai_prompt *prompt = add_prompt(r);
    char *words = NULL;
    int rc = prompt ? text(r, "prompt", &words) : r->err->status;
    if (!rc)
        prompt->text = words;
    return rc;
}

/* A string, a list of strings, a list of ids, or a list of lists of ids. */
static int read_prompt(struct reader *r, const struct field *field)
{
    enum json_value kind;
    bool more = true;
    struct openai_prompt *one = NULL; /* the prompt of a list of ids */
    int rc = 0;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    if (kind == JSON_VALUE_STRING)
        return read_text_prompt(r);
    if (kind != JSON_VALUE_ARRAY)
        return bad(r, field->name, "must be a string or a list");
    if (json_cursor_enter_array(&r->cursor, r->err) != 0)
        return broken(r);
    while (!rc) {
        uint64_t id = 0;
        if (json_cursor_next_element(&r->cursor, &more, r->err) != 0)
            return broken(r);
        if (!more)
            break;
        if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
            return broken(r);
        if (kind == JSON_VALUE_NUMBER && (one || r->out->n_prompts == 0)) {
            one = one ? one : add_prompt(r);
            rc = one ? whole(r, field->name, UINT32_MAX, &id) : r->err->status;
            void *list = rc ? NULL : grow(r, one->ids, one->n_ids, sizeof(uint32_t));
            if (!rc && !list)
                rc = no_memory(r);
            if (!rc) {
                one->ids = list;
                one->ids[one->n_ids++] = (uint32_t)id;
            }
        } else if (kind == JSON_VALUE_STRING && !one) {
            rc = read_text_prompt(r);
        } else if (kind == JSON_VALUE_ARRAY && !one) {
            struct openai_prompt *prompt = add_prompt(r);
            rc = prompt ? ids(r, field->name, &prompt->ids, &prompt->n_ids) : r->err->status;
        } else {
            rc = bad(r, field->name, "mixes strings, ids and lists");
        }
    }
    return rc || r->out->n_prompts ? rc : bad(r, field->name, "is empty");
}

/* --- the fields --- */

static int refuse_field(struct reader *r, const struct field *field)
{
    return not_built(r, field->name, "this field is not built and would change the answer");
}

static int ignore_field(struct reader *r, const struct field *field)
{
    if (json_cursor_skip(&r->cursor, r->err) != 0)
        return broken(r);
    if (r->out->ignored.n_bytes)
        strbuf_add_str(&r->out->ignored, ", ");
    strbuf_add_str(&r->out->ignored, field->name);
    return 0;
}

#define AT(member)       offsetof(struct openai_request, member)
#define SAMPLING(member) AT(sampling.member), AT(sampling.has_##member)
#define STOPPING(member) AT(stopping.member), AT(stopping.has_##member)

static const struct field fields[] = {
    {"model", BOTH, read_text, AT(request.model), 0},
    {"messages", CHAT, read_messages, 0, 0},
    {"prompt", TEXT, read_prompt, 0, 0},
    {"stream", BOTH, read_bool, AT(streams), 0},
    {"stream_options", BOTH, read_stream_options, 0, 0},
    {"max_tokens", BOTH, read_u32, STOPPING(max_tokens)},
    {"max_completion_tokens", CHAT, read_u32, STOPPING(max_tokens)},
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
    {"logit_bias", BOTH, read_logit_bias, 0, 0},
    {"allowed_token_ids", BOTH, read_ids, AT(sampling.allowed_token_ids),
     AT(sampling.n_allowed_token_ids)},
    {"bad_words", BOTH, read_texts, AT(sampling.bad_words), AT(sampling.n_bad_words)},
    {"stop", BOTH, read_texts, AT(stopping.stop), AT(stopping.n_stop)},
    {"stop_token_ids", BOTH, read_ids, AT(stopping.stop_token_ids), AT(stopping.n_stop_token_ids)},
    {"min_tokens", BOTH, read_u32, STOPPING(min_tokens)},
    {"ignore_eos", BOTH, read_bool, STOPPING(ignore_eos)},
    {"include_stop_str_in_output", BOTH, read_bool, STOPPING(include_stop)},
    {"logprobs", BOTH, read_logprobs, 0, 0},
    {"top_logprobs", CHAT, read_u32, AT(output.top_n), AT(output.has_top_n)},
    {"skip_special_tokens", BOTH, read_bool, AT(output.skip_special_tokens),
     AT(output.has_skip_special_tokens)},
    {"truncate_prompt_tokens", BOTH, read_u32, AT(output.truncate), AT(output.has_truncate)},
    {"return_token_ids", BOTH, read_bool, AT(returns_ids), 0},
    {"echo", TEXT, read_bool, AT(echoes), 0},
    {"suffix", TEXT, read_text, AT(suffix), 0},
    {"tools", CHAT, read_tools, 0, 0},
    {"tool_choice", CHAT, read_tool_choice, 0, 0},
    {"parallel_tool_calls", CHAT, ignore_field, 0, 0},
    {"response_format", BOTH, read_response_format, 0, 0},
    {"chat_template_kwargs", CHAT, read_object, AT(chat.template_variables_json), 0},
    {"add_generation_prompt", CHAT, read_bool, AT(chat.add_generation_prompt),
     AT(chat.has_add_generation_prompt)},
    {"continue_final_message", CHAT, read_bool, AT(chat.continue_final_message), 0},
    {"priority", BOTH, read_priority, AT(request.priority), AT(request.has_priority)},
    {"cache_salt", BOTH, read_text, AT(request.cache_salt), 0},
    /* These change what is generated, and are not built. */
    {"audio", CHAT, refuse_field, 0, 0},
    {"prediction", CHAT, refuse_field, 0, 0},
    {"web_search_options", CHAT, refuse_field, 0, 0},
    {"functions", CHAT, refuse_field, 0, 0},
    {"function_call", CHAT, refuse_field, 0, 0},
    {"structured_outputs", BOTH, refuse_field, 0, 0},
    {"guided_json", BOTH, refuse_field, 0, 0},
    {"guided_regex", BOTH, refuse_field, 0, 0},
    {"guided_choice", BOTH, refuse_field, 0, 0},
    {"guided_grammar", BOTH, refuse_field, 0, 0},
    {"grammar", BOTH, refuse_field, 0, 0},
    {"json_schema", BOTH, refuse_field, 0, 0},
    {"lora", BOTH, refuse_field, 0, 0},
    {"prompt_logprobs", BOTH, refuse_field, 0, 0},
    {"use_beam_search", BOTH, refuse_field, 0, 0},
    {"length_penalty", BOTH, refuse_field, 0, 0},
    {"typ_p", BOTH, refuse_field, 0, 0},
    {"mirostat", BOTH, refuse_field, 0, 0},
    {"dry_multiplier", BOTH, refuse_field, 0, 0},
    {"xtc_probability", BOTH, refuse_field, 0, 0},
};

/* Reads the value of a key, or passes it over. */
static int read_key(struct reader *r, unsigned where, bool is_strict, const char *key)
{
    enum json_value kind;
    if (json_cursor_peek(&r->cursor, &kind, r->err) != 0)
        return broken(r);
    if (kind == JSON_VALUE_NULL) /* as if it were absent */
        return json_cursor_null(&r->cursor, r->err) == 0 ? 0 : broken(r);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if ((fields[i].where & where) && strcmp(fields[i].name, key) == 0)
            return fields[i].read(r, &fields[i]);
    if (is_strict)
        return bad(r, key, "is unknown");
    return ignore_field(r, &(struct field){.name = key});
}

/* Checks that concern several fields, and what OpenAI sets by default. */
static int complete(struct reader *r)
{
    struct openai_request *out = r->out;
    if (!out->request.model[0])
        return bad(r, "model", "is missing");
    if (out->is_chat ? out->chat.n_messages == 0 : out->n_prompts == 0)
        return bad(r, out->is_chat ? "messages" : "prompt", "is missing or empty");
    if (!out->streams && (out->include_usage || out->continuous_usage))
        return bad(r, "stream_options", "needs stream: true");
    if (!out->is_chat && !out->stopping.has_max_tokens) {
        out->stopping.has_max_tokens = true;
        out->stopping.max_tokens = DEFAULT_MAX_TOKENS;
    }
    if (out->chat.has_add_generation_prompt == 0 && out->chat.continue_final_message) {
        out->chat.has_add_generation_prompt = true;
        out->chat.add_generation_prompt = false;
    }
    out->output.logprobs = out->wants_logprobs;
    if (out->output.has_top_n && !out->wants_logprobs)
        return bad(r, "top_logprobs", "needs logprobs: true");
    out->output.return_full_text = out->echoes;
    return strbuf_failed(&out->ignored) ? no_memory(r) : 0;
}

int openai_request_read(struct openai_request *request, bool is_chat, bool is_strict,
                        const char *body, size_t n_bytes, struct error *err)
{
    struct reader r = {.out = request, .err = err};
    const char *key = "";
    *request = (struct openai_request){.is_chat = is_chat};
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
    if (json_cursor_init(&r.cursor, body, n_bytes, "body", 0, err) != 0 ||
        json_cursor_enter_object(&r.cursor, err) != 0)
        return broken(&r);
    int rc = 0;
    while (!rc && key) {
        if (json_cursor_next_key(&r.cursor, &request->arena, MAX_KEY, &key, err) != 0)
            rc = broken(&r);
        else if (key)
            rc = read_key(&r, is_chat ? CHAT : TEXT, is_strict, key);
    }
    if (!rc && json_cursor_end(&r.cursor, err) != 0)
        rc = broken(&r);
    return rc ? rc : complete(&r);
}

void openai_request_fini(struct openai_request *request)
{
    arena_fini(&request->arena);
    strbuf_fini(&request->ignored);
}

void openai_request_choose(struct openai_request *request, size_t i)
{
    static const Sluice__V1__TokenIds none = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__GenerateRequest *out = &request->request;
    if (request->is_chat) {
        out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
        out->chat = &request->chat;
        return;
    }
    const struct openai_prompt *prompt = &request->prompts[i];
    if (prompt->text) {
        out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        out->text = (char *)(uintptr_t)prompt->text;
        return;
    }
    Sluice__V1__TokenIds *ids = arena_alloc(&request->arena, sizeof(*ids));
    if (ids) {
        *ids = none;
        ids->ids = prompt->ids;
        ids->n_ids = prompt->n_ids;
    }
    out->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    out->token_ids = ids;
}

void openai_request_name_field(struct error *err)
{
    static const char *const prefixes[] = {"sampling.", "stopping.", "output.", "chat."};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(err->field, prefixes[i], n) == 0)
            memmove(err->field, err->field + n, strlen(err->field + n) + 1);
    }
}
