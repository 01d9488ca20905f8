#include "server/gateway/openai/openai_logprobs.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/text/json_write.h"
#include "base/utf8.h"

/* --- chat --- */

/* {"token", "logprob", "bytes"} without the closing brace. */
static void write_token(struct strbuf *out, const ProtobufCBinaryData *token, float logprob)
{
    strbuf_add_str(out, "{\"token\":");
    json_write_text(out, (const char *)token->data, token->len);
    strbuf_add_str(out, ",\"logprob\":");
    json_write_float(out, (double)logprob);
    strbuf_add_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < token->len; i++)
        strbuf_printf(out, i ? ",%u" : "%u", (unsigned)token->data[i]);
    strbuf_add_char(out, ']');
}

/* The number of alternatives to write. */
static size_t count_top(const Sluice__V1__TokenLogprob *entry, uint32_t n_top)
{
    return entry->n_top < n_top ? entry->n_top : n_top;
}

void openai_logprobs_write_chat(Sluice__V1__TokenLogprob *const *list, size_t n, uint32_t n_top,
                                struct strbuf *out)
{
    strbuf_add_str(out, "{\"content\":[");
    for (size_t i = 0; i < n; i++) {
        strbuf_add_str(out, i ? "," : "");
        write_token(out, &list[i]->token, list[i]->logprob);
        strbuf_add_str(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < count_top(list[i], n_top); k++) {
            strbuf_add_str(out, k ? "," : "");
            write_token(out, &list[i]->top[k]->token, list[i]->top[k]->logprob);
            strbuf_add_char(out, '}');
        }
        strbuf_add_str(out, "]}");
    }
    strbuf_add_str(out, "],\"refusal\":null}");
}

/* --- completions --- */

/* Code points that begin in the bytes. */
static uint64_t code_points(const char *bytes, size_t n_bytes)
{
    uint64_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return n;
}

/* The token as a JSON text. Bytes that are no UTF-8 must stay apart from other tokens: they are
 * keys of an object. */
static void write_name(struct strbuf *out, const ProtobufCBinaryData *token)
{
    size_t wrong;
    if (utf8_valid((const char *)token->data, token->len, &wrong)) {
        json_write_text(out, (const char *)token->data, token->len);
        return;
    }
    strbuf_add_str(out, "\"bytes:");
    for (size_t i = 0; i < token->len; i++)
        strbuf_printf(out, "\\\\x%02x", (unsigned)token->data[i]);
    strbuf_add_char(out, '"');
}

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

/* True if alternative k has the bytes of the token, or of an alternative before k. A key of an
 * object may appear once only. */
static bool is_repeated(const Sluice__V1__TokenLogprob *entry, size_t k)
{
    if (same_bytes(&entry->top[k]->token, &entry->token))
        return true;
    for (size_t i = 0; i < k; i++)
        if (same_bytes(&entry->top[k]->token, &entry->top[i]->token))
            return true;
    return false;
}

/* The token itself and its alternatives: {"<token>": <logprob>}. */
static void write_top(struct strbuf *out, const Sluice__V1__TokenLogprob *entry, uint32_t n_top)
{
    if (isnan(entry->logprob)) {
        strbuf_add_str(out, "null");
        return;
    }
    strbuf_add_char(out, '{');
    write_name(out, &entry->token);
    strbuf_add_char(out, ':');
    json_write_float(out, (double)entry->logprob);
    for (size_t k = 0; k < count_top(entry, n_top); k++) {
        if (is_repeated(entry, k))
            continue;
        strbuf_add_char(out, ',');
        write_name(out, &entry->top[k]->token);
        strbuf_add_char(out, ':');
        json_write_float(out, (double)entry->top[k]->logprob);
    }
    strbuf_add_char(out, '}');
}

void openai_logprobs_fini(struct openai_logprobs *lists)
{
    strbuf_fini(&lists->tokens);
    strbuf_fini(&lists->logprobs);
    strbuf_fini(&lists->top);
    strbuf_fini(&lists->offsets);
}

/* Returns the byte of the text where token i begins. */
static size_t begin_of(const struct openai_logprobs_text *text, size_t n_text, size_t i,
                       const ProtobufCBinaryData *token)
{
    if (!i && !text->has_prompt)
        return 0;
    size_t end = (size_t)(text->ends[i ? i - 1 : 0] - text->begin);
    end = end < n_text ? end : n_text;
    bool is_shown = !i && token->len <= end && token->len &&
                    memcmp(text->text + end - token->len, token->data, token->len) == 0;
    return is_shown ? end - token->len : end;
}

void openai_logprobs_add(struct openai_logprobs *lists, Sluice__V1__TokenLogprob *const *list,
                         size_t n, uint32_t n_top, const struct openai_logprobs_text *text)
{
    size_t n_text = text ? strlen(text->text) : 0;
    uint64_t before = lists->n_text;
    for (size_t i = 0; i < n; i++) {
        const ProtobufCBinaryData *token = &list[i]->token;
        if (text)
            lists->n_text = before + code_points(text->text, begin_of(text, n_text, i, token));
        const char *comma = lists->tokens.n_bytes ? "," : "";
        strbuf_add_str(&lists->tokens, comma);
        write_name(&lists->tokens, &list[i]->token);
        strbuf_add_str(&lists->logprobs, comma);
        json_write_float(&lists->logprobs, (double)list[i]->logprob);
        strbuf_add_str(&lists->top, comma);
        write_top(&lists->top, list[i], n_top);
        strbuf_printf(&lists->offsets, "%s%" PRIu64, comma, lists->n_text);
        lists->n_text += code_points((const char *)token->data, token->len);
    }
    if (text)
        lists->n_text = before + code_points(text->text, n_text);
}

void openai_logprobs_join(struct openai_logprobs *lists, const struct openai_logprobs *first)
{
    strbuf_add(&lists->tokens, strbuf_str(&first->tokens), first->tokens.n_bytes);
    strbuf_add(&lists->logprobs, strbuf_str(&first->logprobs), first->logprobs.n_bytes);
    strbuf_add(&lists->top, strbuf_str(&first->top), first->top.n_bytes);
    strbuf_add(&lists->offsets, strbuf_str(&first->offsets), first->offsets.n_bytes);
    lists->tokens.failed |=
        first->tokens.failed | first->logprobs.failed | first->top.failed | first->offsets.failed;
}

static void write_list(struct strbuf *out, const char *before, const struct strbuf *list)
{
    strbuf_add_str(out, before);
    strbuf_add(out, strbuf_str(list), list->n_bytes);
    out->failed |= list->failed;
}

void openai_logprobs_write(const struct openai_logprobs *lists, struct strbuf *out)
{
    write_list(out, "{\"tokens\":[", &lists->tokens);
    write_list(out, "],\"token_logprobs\":[", &lists->logprobs);
    write_list(out, "],\"top_logprobs\":[", &lists->top);
    write_list(out, "],\"text_offset\":[", &lists->offsets);
    strbuf_add_str(out, "]}");
}
