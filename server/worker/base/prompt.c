#include "server/worker/base/prompt.h"

#include <ctype.h>
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
 * are kept. A mark is a noncharacter, U+FDD0 to U+FDEF, that no message contains. Another mark
 * shows the end of the last message if that is to be continued. */

enum { MARK_BYTES = 3, N_MARKS = 32 };

static void spell_mark(unsigned i, char out[MARK_BYTES + 1])
{
    memcpy(out, "\xEF\xB7", 2);
    out[2] = (char)(0x90 + i);
    out[3] = '\0';
}

struct marks {
    char literal[MARK_BYTES + 1], end[MARK_BYTES + 1];
};

/* Finds the next unused mark, from *i on. */
static bool find_mark(const Sluice__V1__Chat *chat, unsigned *i, char out[MARK_BYTES + 1])
{
    while (*i < N_MARKS) {
        bool held = false;
        spell_mark((*i)++, out);
        for (size_t m = 0; m < chat->n_messages && !held; m++)
            held = strstr(chat->messages[m]->content, out) != NULL;
        if (!held)
            return true;
    }
    return false;
}

static bool find_marks(const Sluice__V1__Chat *chat, struct marks *out)
{
    unsigned i = 0;
    return find_mark(chat, &i, out->literal) &&
           (!chat->continue_final_message || find_mark(chat, &i, out->end));
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

/* Returns the content with a mark and a space at its end. If the template trims, the space is
 * gone afterwards. */
static const char *mark_end(const char *content, const char *mark, struct arena *arena)
{
    size_t n_bytes = strlen(content) + MARK_BYTES + 2;
    char *out = arena_alloc(arena, n_bytes);
    if (out)
        snprintf(out, n_bytes, "%s%s ", content, mark);
    return out;
}

static int fill_messages(const Sluice__V1__Chat *chat, const struct tokenizer *tok,
                         const struct marks *marks, const char *field, struct arena *arena,
                         struct chat_template_input *input, struct error *err)
{
    struct chat_message *messages = arena_calloc(arena, chat->n_messages + 1, sizeof(*messages));
    if (!messages)
        return out_of_memory(err);
    for (size_t i = 0; i < chat->n_messages; i++) {
        char name[ERROR_FIELD_BYTES];
        const Sluice__V1__ChatMessage *m = chat->messages[i];
        snprintf(name, sizeof(name), "%.60s.messages[%zu]", field, i);
        bool open = chat->continue_final_message && i + 1 == chat->n_messages;
        const char *content = is_untrusted(m->role)
                                  ? mark_content(tok, m->content, marks->literal, arena)
                                  : m->content;
        if (content && open)
            content = mark_end(content, marks->end, arena);
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

/* Removes the marks of content that a template renders more than once. */
static void drop_marks(struct strbuf *text, const char *mark)
{
    size_t to = 0;
    for (size_t i = 0; i < text->n_bytes;) {
        if (text->n_bytes - i >= MARK_BYTES && memcmp(text->data + i, mark, MARK_BYTES) == 0)
            i += MARK_BYTES;
        else
            text->data[to++] = text->data[i++];
    }
    text->data[to] = '\0';
    text->n_bytes = to;
}

/* Leaves the last message open: cuts the text at the last end mark. Also cuts the white space
 * before the mark that the template would have trimmed. */
static int cut_after_content(const char *content, const char *mark, const char *field,
                             struct strbuf *out, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    size_t n = out->n_bytes;
    while (n >= MARK_BYTES && memcmp(out->data + n - MARK_BYTES, mark, MARK_BYTES) != 0)
        n--;
    if (n < MARK_BYTES) {
        snprintf(name, sizeof(name), "%.60s.continue_final_message", field);
        return error_field(err, name, "the template does not render the last message's content");
    }
    bool trimmed = out->data[n] != ' ';
    n -= MARK_BYTES;
    size_t n_content = strlen(content), n_text = n_content;
    while (n_text && isspace((unsigned char)content[n_text - 1]))
        n_text--;
    if (trimmed && n_text) /* n_text 0: the template has trimmed all from the left */
        while (n_content > n_text && n && out->data[n - 1] == content[n_content - 1]) {
            n_content--;
            n--;
        }
    out->n_bytes = n;
    out->data[n] = '\0';
    drop_marks(out, mark);
    return 0;
}

static int render(const struct chat_template *template, const struct chat_template_limits *limits,
                  const struct tokenizer *tok, const Sluice__V1__Chat *chat,
                  const struct marks *marks, const char *field, int64_t now_unix_s,
                  struct arena *arena, struct strbuf *out, struct error *err)
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
    if (chat->continue_final_message)
        input.add_generation_prompt = false;
    int rc = fill_messages(chat, tok, marks, field, arena, &input, err);
    if (!rc)
        rc = fill_tools(chat, field, arena, &input, err);
    if (!rc)
        rc = chat_template_render(template, &input, out, err);
    if (!rc && chat->continue_final_message && chat->n_messages)
        rc = cut_after_content(chat->messages[chat->n_messages - 1]->content, marks->end, field,
                               out, err);
    return rc;
}

int prompt_render_chat(const struct chat_template *template,
                       const struct chat_template_limits *limits, const struct tokenizer *tok,
                       const Sluice__V1__Chat *chat, const char *field, int64_t now_unix_s,
                       struct strbuf *out, struct prompt_guard *out_guard, struct error *err)
{
    char name[ERROR_FIELD_BYTES];
    struct marks marks;
    struct chat_template *own = NULL;
    struct arena arena;
    if (!chat->n_messages) {
        snprintf(name, sizeof(name), "%.60s.messages", field);
        return error_field(err, name, "is empty");
    }
    if (!find_marks(chat, &marks)) {
        snprintf(name, sizeof(name), "%.60s.messages", field);
        return error_field(
            err, name,
            "use too many of the noncharacters U+FDD0 to U+FDEF; leave two of them unused");
    }
    if (chat->template_override[0]) {
        const char *text = chat->template_override;
        int rc = chat_template_compile(text, strlen(text), &own, err);
        if (rc) {
            snprintf(err->field, sizeof(err->field), "%s.template_override", field);
            return error_prefix(err, "%s.template_override", field);
        }
        template = own;
    }
    if (!template) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "%s: the model has no chat template; give text or token_ids, or "
                  "template_override",
                  field);
        return error_reason(err, REASON_NO_CHAT_TEMPLATE);
    }
    arena_init(&arena, 0, ARENA_LIMIT_BYTES);
    int rc = render(template, limits, tok, chat, &marks, field, now_unix_s, &arena, out, err);
    if (!rc)
        rc = take_marks(out, marks.literal, out_guard, err);
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
