#include "server/worker/base/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/engine.h"

enum { ARENA_LIMIT_BYTES = 64 << 20 };

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt: out of memory");
}

/* Returns the text of a token, or NULL if the model has no such token. */
static const char *token_text(const struct tokenizer *tok, int32_t id)
{
    size_t n_bytes;
    return id == TOKENIZER_NO_ID ? NULL : tokenizer_token_bytes(tok, (uint32_t)id, &n_bytes);
}

/* Appends a text as a JSON string. */
static void add_json_string(struct strbuf *out, const char *text)
{
    strbuf_add_char(out, '"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            strbuf_printf(out, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            strbuf_printf(out, "\\u%04x", (unsigned)*c);
        else
            strbuf_add_char(out, *c);
    }
    strbuf_add_char(out, '"');
}

static char *take_text(struct arena *arena, struct strbuf *text)
{
    char *copy = strbuf_failed(text) ? NULL : arena_strndup(arena, strbuf_str(text), text->n_bytes);
    strbuf_fini(text);
    return copy;
}

/* Makes a JSON object of a message's fields beyond role and content. The client's own JSON is
 * copied unchanged, so that no number loses digits. */
static int extra_json(const Sluice__V1__ChatMessage *m, const char *field, struct arena *arena,
                      const char **out_text, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    struct strbuf text = {0};
    const struct {
        const char *key, *value;
        bool is_json;
    } members[] = {{"tool_calls", m->tool_calls_json, true},
                   {"tool_call_id", m->tool_call_id, false},
                   {"reasoning_content", m->reasoning_content, false}};
    if (m->tool_calls_json[0]) {
        snprintf(name, sizeof(name), "%.60s.tool_calls_json", field);
        int rc = chat_template_check_json(name, m->tool_calls_json, CHAT_TEMPLATE_JSON_ARRAY, err);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (!members[i].value[0])
            continue;
        strbuf_printf(&text, "%c\"%s\":", text.n_bytes ? ',' : '{', members[i].key);
        if (members[i].is_json)
            strbuf_add_str(&text, members[i].value);
        else
            add_json_string(&text, members[i].value);
    }
    if (!text.n_bytes)
        return 0;
    strbuf_add_char(&text, '}');
    *out_text = take_text(arena, &text);
    return *out_text ? 0 : out_of_memory(err);
}

/* --- the guard ---
 *
 * A template reads one text per message and writes one text. Literals of control tokens in a
 * user's text must not become those tokens afterwards. So each literal gets a mark after its
 * first character before the template runs. Afterwards the marks are removed and their places
 * are kept. A mark is a noncharacter, U+FDD0 to U+FDEF, that no message contains. */

enum { MARK_BYTES = 3, N_MARKS = 32 };

static void spell_mark(unsigned i, char out[MARK_BYTES + 1])
{
    memcpy(out, "\xEF\xB7", 2);
    out[2] = (char)(0x90 + i);
    out[3] = '\0';
}

/* Finds a mark that no message contains. */
static bool find_mark(const Sluice__V1__Chat *chat, char out[MARK_BYTES + 1])
{
    for (unsigned i = 0; i < N_MARKS; i++) {
        bool held = false;
        spell_mark(i, out);
        for (size_t m = 0; m < chat->n_messages && !held; m++)
            held = strstr(chat->messages[m]->content, out) != NULL;
        if (!held)
            return true;
    }
    return false;
}

static bool is_untrusted(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "tool") == 0;
}

static size_t character_bytes(const char *text)
{
    size_t n = 1;
    while (((unsigned char)text[n] & 0xC0) == 0x80)
        n++;
    return n;
}

/* Returns the content with a mark after the first character of each literal of a control token.
 * Returns the content itself if it has no such literal. */
static const char *mark_content(const struct tokenizer *tok, const char *content, const char *mark,
                                struct arena *arena)
{
    size_t n = strlen(content), n_found = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        n_found += tokenizer_control_at(tok, content + i, n - i);
    if (!n_found)
        return content;
    char *out = arena_alloc(arena, n + n_found * MARK_BYTES + 1);
    for (size_t i = 0; out && i < n;) {
        bool found = tokenizer_control_at(tok, content + i, n - i);
        size_t n_first = character_bytes(content + i);
        memcpy(out + at, content + i, n_first);
        at += n_first;
        i += n_first;
        if (!found)
            continue;
        memcpy(out + at, mark, MARK_BYTES);
        at += MARK_BYTES;
    }
    return out;
}

/* Removes the marks from the rendered text and keeps the places where their literals begin. */
static int take_marks(struct strbuf *text, const char *mark, struct prompt_guard *out_guard,
                      struct error *err)
{
    size_t n = 0, to = 0;
    if (!text->n_bytes)
        return 0;
    const char *end = text->data + text->n_bytes, *at = text->data;
    for (; (at = memmem(at, (size_t)(end - at), mark, MARK_BYTES)); at += MARK_BYTES)
        n++;
    if (!n)
        return 0;
    out_guard->places = calloc(n, sizeof(*out_guard->places));
    if (!out_guard->places)
        return out_of_memory(err);
    for (size_t i = 0; i < text->n_bytes;) {
        if (text->n_bytes - i < MARK_BYTES || memcmp(text->data + i, mark, MARK_BYTES) != 0) {
            text->data[to++] = text->data[i++];
            continue;
        }
        size_t begin = to ? to - 1 : 0;
        while (begin && ((unsigned char)text->data[begin] & 0xC0) == 0x80)
            begin--;
        out_guard->places[out_guard->n++] = begin;
        i += MARK_BYTES;
    }
    text->data[to] = '\0';
    text->n_bytes = to;
    return 0;
}

void prompt_guard_fini(struct prompt_guard *guard)
{
    free(guard->places);
    *guard = (struct prompt_guard){0};
}

/* --- rendering --- */

static int fill_messages(const Sluice__V1__Chat *chat, const struct tokenizer *tok,
                         const char *mark, const char *field, struct arena *arena,
                         struct chat_template_input *input, struct error *err)
{
    struct chat_message *messages = arena_calloc(arena, chat->n_messages + 1, sizeof(*messages));
    if (!messages)
        return out_of_memory(err);
    for (size_t i = 0; i < chat->n_messages; i++) {
        char name[ERROR_FIELD_BYTES];
        const Sluice__V1__ChatMessage *m = chat->messages[i];
        snprintf(name, sizeof(name), "%.60s.messages[%zu]", field, i);
        const char *content =
            is_untrusted(m->role) ? mark_content(tok, m->content, mark, arena) : m->content;
        if (!content)
            return out_of_memory(err);
        messages[i] = (struct chat_message){.role = m->role,
                                            .content = content,
                                            .n_content_bytes = strlen(content),
                                            .name = m->name[0] ? m->name : NULL};
        int rc = extra_json(m, name, arena, &messages[i].extra_json, err);
        if (rc)
            return rc;
    }
    input->messages = messages;
    input->n_messages = chat->n_messages;
    return 0;
}

static int fill_tools(const Sluice__V1__Chat *chat, const char *field, struct arena *arena,
                      struct chat_template_input *input, struct error *err)
{
    int rc = 0;
    if (!chat->n_tools_json)
        return 0;
    struct strbuf tools = {0};
    for (size_t i = 0; i < chat->n_tools_json && !rc; i++) {
        char name[ERROR_FIELD_BYTES];
        snprintf(name, sizeof(name), "%.60s.tools_json[%zu]", field, i);
        rc = chat_template_check_json(name, chat->tools_json[i], CHAT_TEMPLATE_JSON_OBJECT, err);
        strbuf_add_char(&tools, i ? ',' : '[');
        strbuf_add_str(&tools, chat->tools_json[i]);
    }
    strbuf_add_char(&tools, ']');
    input->tools_json = take_text(arena, &tools);
    return rc ? rc : input->tools_json ? 0 : out_of_memory(err);
}

static int render(const struct chat_template *template, const struct chat_template_limits *limits,
                  const struct tokenizer *tok, const Sluice__V1__Chat *chat, const char *mark,
                  const char *field, int64_t now_unix_s, struct arena *arena, struct strbuf *out,
                  struct error *err)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    char kwargs_name[ERROR_FIELD_BYTES];
    snprintf(kwargs_name, sizeof(kwargs_name), "%.60s.template_variables_json", field);
    struct chat_template_input input = {
        .kwargs_name = kwargs_name,
        .kwargs_json = chat->template_variables_json[0] ? chat->template_variables_json : NULL,
        .bos_token = token_text(tok, info->bos_id),
        .eos_token = token_text(tok, info->eos_id),
        .unk_token = token_text(tok, info->unknown_id),
        .pad_token = token_text(tok, info->padding_id),
        .add_generation_prompt =
            chat->has_add_generation_prompt ? chat->add_generation_prompt : true,
        .now_unix_s = now_unix_s,
        .limits = *limits};
    if (chat->continue_final_message) {
        input.add_generation_prompt = false;
        input.continue_field = chat->continue_field[0] ? chat->continue_field : "content";
    }
    int rc = fill_messages(chat, tok, mark, field, arena, &input, err);
    if (!rc)
        rc = fill_tools(chat, field, arena, &input, err);
    if (rc)
        return rc;
    rc = chat_template_render(template, &input, out, err);
    if (rc && strcmp(err->field, "continue_final_message") == 0)
        snprintf(err->field, sizeof(err->field), "%.60s.continue_final_message", field);
    return rc;
}

/* Checks fields that exclude each other, and the names of fields. */
static int check_chat(const Sluice__V1__Chat *chat, const char *field, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    snprintf(name, sizeof(name), "%.60s.messages", field);
    if (!chat->n_messages)
        return error_field(err, name, "is empty");
    snprintf(name, sizeof(name), "%.60s.template", field);
    if (chat->template_[0] && chat->template_override[0])
        return error_field(err, name, "excludes template_override");
    snprintf(name, sizeof(name), "%.60s.continue_field", field);
    if (chat->continue_field[0] && !chat->continue_final_message)
        return error_field(err, name, "needs continue_final_message");
    if (chat->continue_field[0] && strcmp(chat->continue_field, "content") != 0 &&
        strcmp(chat->continue_field, "reasoning_content") != 0)
        return error_field(err, name, "is neither \"content\" nor \"reasoning_content\"");
    snprintf(name, sizeof(name), "%.60s.add_generation_prompt", field);
    if (chat->continue_final_message && chat->has_add_generation_prompt &&
        chat->add_generation_prompt)
        return error_field(err, name, "excludes continue_final_message");
    return 0;
}

/* Compiles the request's own template. */
static int compile_override(const Sluice__V1__Chat *chat, const char *field,
                            struct chat_template **out_template, struct error *err)
{
    const char *text = chat->template_override;
    int rc = chat_template_compile(text, strlen(text), out_template, err);
    if (rc) {
        snprintf(err->field, sizeof(err->field), "%s.template_override", field);
        return error_prefix(err, "%s.template_override", field);
    }
    for (size_t i = 0; i < chat->n_messages; i++)
        if (chat->messages[i]->tool_calls_json[0]) {
            chat_template_probe(*out_template);
            break;
        }
    return 0;
}

/* Finds the template of a chat: the model's by name, or *out_own (owned), which the request has. */
static int choose_template(const struct chat_templates *templates, const Sluice__V1__Chat *chat,
                           const char *field, const struct chat_template **out_template,
                           struct chat_template **out_own, struct error *err)
{
    if (chat->template_override[0]) {
        int rc = compile_override(chat, field, out_own, err);
        *out_template = *out_own;
        return rc;
    }
    int rc =
        chat_templates_find(templates, chat->template_, chat->n_tools_json > 0, out_template, err);
    if (rc && err->field[0])
        snprintf(err->field, sizeof(err->field), "%.60s.template", field);
    return rc;
}

int prompt_render_chat(const struct chat_templates *templates,
                       const struct chat_template_limits *limits, const struct tokenizer *tok,
                       const Sluice__V1__Chat *chat, const char *field, int64_t now_unix_s,
                       struct strbuf *out, struct prompt_guard *out_guard, struct error *err)
{
    char name[ERROR_FIELD_BYTES], mark[MARK_BYTES + 1];
    const struct chat_template *template = NULL;
    struct chat_template *own = NULL;
    struct arena arena;
    int rc = check_chat(chat, field, err);
    if (rc)
        return rc;
    if (!find_mark(chat, mark)) {
        snprintf(name, sizeof(name), "%.60s.messages", field);
        return error_field(
            err, name, "use all of the noncharacters U+FDD0 to U+FDEF; leave one of them unused");
    }
    rc = choose_template(templates, chat, field, &template, &own, err);
    if (rc)
        return rc;
    arena_init(&arena, 0, ARENA_LIMIT_BYTES);
    rc = render(template, limits, tok, chat, mark, field, now_unix_s, &arena, out, err);
    if (!rc)
        rc = take_marks(out, mark, out_guard, err);
    if (rc && own && !err->field[0] && (rc != STATUS_RESOURCE_EXHAUSTED || err->reason))
        snprintf(err->field, sizeof(err->field), "%s.template_override", field);
    arena_fini(&arena);
    chat_template_destroy(own);
    return rc;
}

int prompt_encode_rendered(const struct tokenizer *tok, const struct strbuf *text,
                           const struct prompt_guard *guard, struct token_list *ids,
                           struct error *err)
{
    return tokenizer_encode_guarded(tok, strbuf_str(text), text->n_bytes, TOKENIZER_PARSE_SPECIAL,
                                    guard->places, guard->n, ids, err);
}

int prompt_encode_text(const struct tokenizer *tok, const char *text, bool add_special,
                       bool parse_special, struct token_list *ids, struct error *err)
{
    unsigned flags = parse_special ? TOKENIZER_PARSE_SPECIAL : 0;
    if (add_special && tokenizer_info(tok)->add_bos)
        flags |= TOKENIZER_ADD_BOS;
    return tokenizer_encode(tok, text, strlen(text), flags, ids, NULL, err);
}

static int add_fim(const struct tokenizer *tok, enum tokenizer_fim fim, struct token_list *ids,
                   struct error *err)
{
    return token_list_add(ids, (uint32_t)tokenizer_info(tok)->fim_ids[fim], err);
}

int prompt_encode_gap(const struct tokenizer *tok, const char *prefix, const char *suffix,
                      struct token_list *ids, struct error *err)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    if (!tokenizer_fills_gaps(info))
        return error_field(err, "suffix",
                           "the model has no tokens for fill-in-the-middle prompts; leave the "
                           "suffix out, or use a model with such tokens");
    int rc = tokenizer_encode(tok, "", 0, info->add_bos ? TOKENIZER_ADD_BOS : 0, ids, NULL, err);
    if (!rc)
        rc = add_fim(tok, TOKENIZER_FIM_PREFIX, ids, err);
    if (!rc)
        rc = tokenizer_encode(tok, prefix, strlen(prefix), TOKENIZER_NO_FIM, ids, NULL, err);
    if (!rc)
        rc = add_fim(tok, TOKENIZER_FIM_SUFFIX, ids, err);
    if (!rc)
        rc = tokenizer_encode(tok, suffix, strlen(suffix), TOKENIZER_NO_FIM | TOKENIZER_NO_SPACE,
                              ids, NULL, err);
    return rc ? rc : add_fim(tok, TOKENIZER_FIM_MIDDLE, ids, err);
}
