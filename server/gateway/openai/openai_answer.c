#include "server/gateway/openai/openai_answer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text/json_write.h"

static void write_str(struct strbuf *out, const char *text)
{
    json_write_text(out, text, strlen(text));
}

static const char *finish_reason(const Sluice__V1__Finished *finished)
{
    switch (finished->reason) {
    case SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH:
    case SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH:
        return "\"length\"";
    default:
        return "\"stop\"";
    }
}

/* --- log-probabilities --- */

/* JSON has no infinity: a token that cannot be drawn gets the lowest number of a float. */
static void write_logprob(struct strbuf *out, float logprob)
{
    if (isnan(logprob))
        strbuf_add_str(out, "null");
    else
        strbuf_printf(out, "%.9g", isinf(logprob) ? -3.4028234e38 : (double)logprob);
}

/* {"token", "logprob", "bytes"} without the closing brace. */
static void write_token(struct strbuf *out, const ProtobufCBinaryData *token, float logprob)
{
    strbuf_add_str(out, "{\"token\":");
    json_write_text(out, (const char *)token->data, token->len);
    strbuf_add_str(out, ",\"logprob\":");
    write_logprob(out, logprob);
    strbuf_add_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < token->len; i++)
        strbuf_printf(out, i ? ",%u" : "%u", (unsigned)token->data[i]);
    strbuf_add_char(out, ']');
}

static void write_chat_logprobs(struct strbuf *out, Sluice__V1__TokenLogprob *const *list, size_t n)
{
    strbuf_add_str(out, "{\"content\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            strbuf_add_char(out, ',');
        write_token(out, &list[i]->token, list[i]->logprob);
        strbuf_add_str(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < list[i]->n_top; k++) {
            if (k)
                strbuf_add_char(out, ',');
            write_token(out, &list[i]->top[k]->token, list[i]->top[k]->logprob);
            strbuf_add_char(out, '}');
        }
        strbuf_add_str(out, "]}");
    }
    strbuf_add_str(out, "],\"refusal\":null}");
}

/* Code points that begin in the bytes. */
static uint64_t code_points(const ProtobufCBinaryData *token)
{
    uint64_t n = 0;
    for (size_t i = 0; i < token->len; i++)
        n += (token->data[i] & 0xC0) != 0x80;
    return n;
}

static void write_text_logprobs(struct strbuf *out, Sluice__V1__TokenLogprob *const *list, size_t n,
                                uint64_t *offset)
{
    strbuf_add_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        strbuf_add_str(out, i ? "," : "");
        json_write_text(out, (const char *)list[i]->token.data, list[i]->token.len);
    }
    strbuf_add_str(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        strbuf_add_str(out, i ? "," : "");
        write_logprob(out, list[i]->logprob);
    }
    strbuf_add_str(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        strbuf_add_str(out, i ? ",{" : "{");
        for (size_t k = 0; k < list[i]->n_top; k++) {
            const Sluice__V1__TopLogprob *top = list[i]->top[k];
            strbuf_add_str(out, k ? "," : "");
            json_write_text(out, (const char *)top->token.data, top->token.len);
            strbuf_add_char(out, ':');
            write_logprob(out, top->logprob);
        }
        strbuf_add_char(out, '}');
    }
    strbuf_add_str(out, "],\"text_offset\":[");
    for (size_t i = 0; i < n; i++) {
        strbuf_printf(out, i ? ",%" PRIu64 : "%" PRIu64, *offset);
        *offset += code_points(&list[i]->token);
    }
    strbuf_add_str(out, "]}");
}

static void write_logprobs(const struct openai_answer *answer, struct strbuf *out,
                           Sluice__V1__TokenLogprob *const *list, size_t n, uint64_t *offset)
{
    strbuf_add_str(out, ",\"logprobs\":");
    if (!answer->wants_logprobs || n == 0)
        strbuf_add_str(out, "null");
    else if (answer->is_chat)
        write_chat_logprobs(out, list, n);
    else
        write_text_logprobs(out, list, n, offset);
}

static void write_ids(const struct openai_answer *answer, struct strbuf *out, const uint32_t *ids,
                      size_t n)
{
    if (!answer->returns_ids)
        return;
    strbuf_add_str(out, ",\"token_ids\":[");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, i ? ",%" PRIu32 : "%" PRIu32, ids[i]);
    strbuf_add_char(out, ']');
}

/* --- objects --- */

static void write_usage(const struct openai_answer *answer, struct strbuf *out)
{
    strbuf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%" PRIu32 ",\"completion_tokens\":%" PRIu32
                  ",\"total_tokens\":%" PRIu32
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu32
                  "},\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
                  answer->n_prompt_tokens, answer->n_generated_tokens,
                  answer->n_prompt_tokens + answer->n_generated_tokens, answer->n_cached_tokens);
}

/* Writes the object's begin, up to the list of choices. */
static void open_object(const struct openai_answer *answer, const char *object, struct strbuf *out)
{
    strbuf_printf(out,
                  "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", answer->id,
                  object, answer->created);
    write_str(out, answer->model);
    strbuf_add_str(out, ",\"choices\":[");
}

static const char *chunk_object(const struct openai_answer *answer)
{
    return answer->is_chat ? "chat.completion.chunk" : "text_completion";
}

void openai_answer_chunk(struct openai_answer *answer, struct openai_choice *choice, uint32_t index,
                         const Sluice__V1__Tokens *tokens, const Sluice__V1__Finished *finished,
                         struct strbuf *out)
{
    const char *text = tokens ? tokens->text : "";
    strbuf_add_str(out, "data: ");
    open_object(answer, chunk_object(answer), out);
    strbuf_printf(out, "{\"index\":%" PRIu32 ",", index);
    if (answer->is_chat) {
        strbuf_add_str(out, "\"delta\":{");
        if (!choice->has_begun)
            strbuf_add_str(out, "\"role\":\"assistant\",");
        if (!choice->has_begun || tokens) {
            strbuf_add_str(out, "\"content\":");
            write_str(out, text);
        }
        strbuf_add_char(out, '}');
    } else {
        strbuf_add_str(out, "\"text\":");
        write_str(out, text);
    }
    choice->has_begun = true;
    write_logprobs(answer, out, tokens ? tokens->logprobs : NULL, tokens ? tokens->n_logprobs : 0,
                   &choice->n_text);
    write_ids(answer, out, tokens ? tokens->ids : NULL, tokens ? tokens->n_ids : 0);
    strbuf_printf(out, ",\"finish_reason\":%s}]", finished ? finish_reason(finished) : "null");
    answer->n_generated_tokens += tokens ? (uint32_t)tokens->n_ids : 0;
    if (answer->continuous_usage) {
        strbuf_add_char(out, ',');
        write_usage(answer, out);
    } else if (answer->include_usage) {
        strbuf_add_str(out, ",\"usage\":null");
    }
    strbuf_add_str(out, "}\n\n");
}

void openai_answer_end(const struct openai_answer *answer, struct strbuf *out)
{
    if (answer->include_usage) {
        strbuf_add_str(out, "data: ");
        open_object(answer, chunk_object(answer), out);
        strbuf_add_str(out, "],");
        write_usage(answer, out);
        strbuf_add_str(out, "}\n\n");
    }
    strbuf_add_str(out, "data: [DONE]\n\n");
}

void openai_answer_choices(struct openai_answer *answer, const Sluice__V1__CompleteResponse *whole,
                           uint32_t first, struct strbuf *out)
{
    for (size_t i = 0; i < whole->n_choices; i++) {
        const Sluice__V1__Choice *choice = whole->choices[i];
        uint64_t offset = 0;
        strbuf_printf(out, "%s{\"index\":%" PRIu32 ",", out->n_bytes ? "," : "",
                      first + choice->index);
        if (answer->is_chat) {
            strbuf_add_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
            write_str(out, choice->text);
            strbuf_add_str(out, ",\"refusal\":null}");
        } else {
            strbuf_add_str(out, "\"text\":");
            write_str(out, choice->text);
        }
        write_logprobs(answer, out, choice->logprobs, choice->n_logprobs, &offset);
        write_ids(answer, out, choice->ids, choice->n_ids);
        strbuf_printf(out, ",\"finish_reason\":%s}",
                      choice->finished ? finish_reason(choice->finished) : "null");
    }
    if (whole->usage) {
        answer->n_prompt_tokens += whole->usage->n_prompt_tokens;
        answer->n_cached_tokens += whole->usage->n_cached_tokens;
        answer->n_generated_tokens += whole->usage->n_generated_tokens;
    }
}

void openai_answer_whole(const struct openai_answer *answer, const struct strbuf *choices,
                         struct strbuf *out)
{
    open_object(answer, answer->is_chat ? "chat.completion" : "text_completion", out);
    strbuf_add(out, strbuf_str(choices), choices->n_bytes);
    strbuf_add_str(out, "],");
    write_usage(answer, out);
    strbuf_add_str(out, "}\n");
}
