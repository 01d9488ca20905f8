#include "server/gateway/tgi/tgi_answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json_write.h"
#include "base/utf8.h"
#include "server/gateway/relay/relay_sink.h"
#include "server/gateway/tgi/tgi_error.h"

void tgi_answer_init(struct tgi_answer *answer)
{
    *answer = (struct tgi_answer){0};
}

void tgi_answer_fini(struct tgi_answer *answer)
{
    free(answer->full_text);
    strbuf_fini(&answer->text);
    strbuf_fini(&answer->held);
    strbuf_fini(&answer->whole);
}

/* --- tokens --- */

/* A token of an answer, and the part of the answer's text that belongs to it. */
struct token {
    uint32_t id;
    const char *text;
    size_t n_text;
    const Sluice__V1__TokenLogprob *logprob; /* NULL: not known */
};

static bool is_end_id(const struct tgi_answer *answer, uint32_t id)
{
    for (uint32_t i = 0; i < answer->n_end_ids; i++)
        if (answer->end_ids[i] == id)
            return true;
    return false;
}

static bool is_blank(const ProtobufCBinaryData *bytes)
{
    for (size_t i = 0; i < bytes->len; i++)
        if (bytes->data[i] != ' ')
            return false;
    return true;
}

/* True for a token that has a text of its own, and still adds none to the answer. A part of a cut
 * character adds none either, but is no text. A leading space may be dropped. */
static bool is_hidden(const struct token *token)
{
    if (token->n_text || !token->logprob)
        return false;
    const ProtobufCBinaryData *bytes = &token->logprob->token;
    size_t at;
    return !is_blank(bytes) && utf8_valid((const char *)bytes->data, bytes->len, &at);
}

static void write_token(const struct tgi_answer *answer, const struct token *token,
                        struct strbuf *out)
{
    bool special = is_end_id(answer, token->id) || is_hidden(token);
    const char *text = token->text;
    size_t n_text = token->n_text;
    if (special && !n_text && token->logprob) {
        text = (const char *)token->logprob->token.data;
        n_text = token->logprob->token.len;
    }
    strbuf_printf(out, "{\"id\":%" PRIu32 ",\"text\":", token->id);
    json_write_text(out, text, n_text);
    strbuf_add_str(out, ",\"logprob\":");
    json_write_float(out, token->logprob ? (double)token->logprob->logprob : (double)NAN);
    strbuf_printf(out, ",\"special\":%s}", special ? "true" : "false");
}

/* Writes the list of a token's alternatives. */
static void write_top(const struct tgi_answer *answer, const Sluice__V1__TokenLogprob *logprob,
                      struct strbuf *out)
{
    strbuf_add_char(out, '[');
    for (size_t i = 0; logprob && i < logprob->n_top; i++) {
        const Sluice__V1__TopLogprob *top = logprob->top[i];
        strbuf_printf(out, "%s{\"id\":%" PRIu32 ",\"text\":", i ? "," : "", top->id);
        json_write_text(out, (const char *)top->token.data, top->token.len);
        strbuf_add_str(out, ",\"logprob\":");
        json_write_float(out, (double)top->logprob);
        strbuf_printf(out, ",\"special\":%s}", is_end_id(answer, top->id) ? "true" : "false");
    }
    strbuf_add_char(out, ']');
}

static const char *finish_reason(const Sluice__V1__Finished *finished)
{
    switch (finished->reason) {
    case SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH:
    case SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH:
        return "length";
    case SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP_STRING:
        return "stop_sequence";
    default:
        return "eos_token";
    }
}

/* Writes {"finish_reason", "generated_tokens", "seed"} without the closing brace. */
static void write_end(const struct tgi_answer *answer, const Sluice__V1__Finished *finished,
                      uint32_t n_tokens, struct strbuf *out)
{
    strbuf_printf(out, "\"finish_reason\":\"%s\",\"generated_tokens\":%" PRIu32 ",\"seed\":",
                  finish_reason(finished), n_tokens);
    if (answer->samples)
        strbuf_printf(out, "%" PRIu64, answer->seed);
    else
        strbuf_add_str(out, "null");
}

/* Writes the text before the generated text, and the generated text. */
static void write_text(const struct tgi_answer *answer, const char *text, size_t n_text,
                       struct strbuf *out)
{
    struct strbuf both = {0};
    if (!answer->full_text) {
        json_write_text(out, text, n_text);
        return;
    }
    strbuf_add_str(&both, answer->full_text);
    strbuf_add(&both, text, n_text);
    json_write_text(out, strbuf_str(&both), both.n_bytes);
    out->failed |= strbuf_failed(&both);
    strbuf_fini(&both);
}

/* --- a stream --- */

/* Writes the event of the held token, up to "generated_text". */
static void begin_event(struct tgi_answer *answer, struct strbuf *out)
{
    strbuf_printf(out, "data:{\"index\":%" PRIu32 ",", answer->n_tokens);
    strbuf_add(out, strbuf_str(&answer->held), answer->held.n_bytes);
    out->failed |= strbuf_failed(&answer->held);
    strbuf_clear(&answer->held);
    strbuf_add_str(out, ",\"generated_text\":");
}

static void release_held(struct tgi_answer *answer, struct strbuf *out)
{
    if (!answer->held.n_bytes)
        return;
    begin_event(answer, out);
    strbuf_add_str(out, "null,\"details\":null}\n\n");
}

static void hold_token(struct tgi_answer *answer, const struct token *token)
{
    strbuf_add_str(&answer->held, "\"token\":");
    write_token(answer, token, &answer->held);
    if (answer->top_n) {
        strbuf_add_str(&answer->held, ",\"top_tokens\":");
        write_top(answer, token->logprob, &answer->held);
    }
    strbuf_add(&answer->text, token->text, token->n_text);
    answer->n_tokens++;
}

static void take_tokens(struct tgi_answer *answer, const struct relay_frame *frame,
                        struct strbuf *out)
{
    const Sluice__V1__Tokens *tokens = &frame->tokens;
    uint64_t begin = frame->text_begin;
    for (size_t i = 0; i < tokens->n_ids; i++) {
        struct token token = {.id = tokens->ids[i],
                              .text = tokens->text + (begin - frame->text_begin),
                              .n_text = (size_t)(frame->text_ends[i] - begin),
                              .logprob = i < tokens->n_logprobs ? tokens->logprobs[i] : NULL};
        release_held(answer, out);
        hold_token(answer, &token);
        begin = frame->text_ends[i];
    }
    strbuf_add_str(&answer->text,
                   tokens->text + (begin - frame->text_begin)); /* text that belongs to no id */
}

/* Writes the last event. Without a held token its token is an empty special one, so that readers
 * of events need no other case. */
static void finish(struct tgi_answer *answer, const Sluice__V1__Finished *finished,
                   struct strbuf *out)
{
    if (!answer->held.n_bytes)
        hold_token(answer, &(struct token){.id = finished->stop_token_id, .text = ""});
    begin_event(answer, out);
    write_text(answer, strbuf_str(&answer->text), answer->text.n_bytes, out);
    out->failed |= strbuf_failed(&answer->text);
    strbuf_add_str(out, ",\"details\":");
    if (answer->details) {
        strbuf_add_char(out, '{');
        write_end(answer, finished, answer->n_tokens, out);
        strbuf_printf(out, ",\"input_length\":%" PRIu32 "}", answer->n_prompt_tokens);
    } else {
        strbuf_add_str(out, "null");
    }
    strbuf_add_str(out, "}\n\n");
}

void tgi_answer_frame(struct tgi_answer *answer, const struct relay_frame *frame,
                      struct strbuf *out)
{
    if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        answer->seed = frame->prompt_info.seed;
        answer->n_prompt_tokens = frame->prompt_info.n_prompt_tokens;
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        take_tokens(answer, frame, out);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        finish(answer, &frame->finished, out);
    }
}

void tgi_answer_flush(struct tgi_answer *answer, struct strbuf *out)
{
    release_held(answer, out);
}

void tgi_answer_fail(struct tgi_answer *answer, const struct error *err, struct strbuf *out)
{
    release_held(answer, out);
    strbuf_add_str(out, "data:");
    tgi_error_write(err, out);
    strbuf_add_str(out, "\n\n");
}

/* --- a whole answer --- */

static double mean_logprob(const Sluice__V1__Choice *choice)
{
    double sum = 0;
    for (size_t i = 0; i < choice->n_logprobs; i++)
        sum += (double)choice->logprobs[i]->logprob;
    return choice->n_logprobs ? sum / (double)choice->n_logprobs : -HUGE_VAL;
}

static size_t find_best(const Sluice__V1__CompleteResponse *whole)
{
    size_t best = 0;
    for (size_t i = 1; i < whole->n_choices; i++)
        if (mean_logprob(whole->choices[i]) > mean_logprob(whole->choices[best]))
            best = i;
    return best;
}

/* Writes the prompt's tokens. The first one has no log-probability. */
static void write_prefill(const Sluice__V1__PromptInfo *info, struct strbuf *out)
{
    strbuf_add_char(out, '[');
    for (size_t i = 0; info && i < info->n_prompt_logprobs; i++) {
        const Sluice__V1__TokenLogprob *entry = info->prompt_logprobs[i];
        strbuf_printf(out, "%s{\"id\":%" PRIu32 ",\"text\":", i ? "," : "", entry->id);
        json_write_text(out, (const char *)entry->token.data, entry->token.len);
        strbuf_add_str(out, ",\"logprob\":");
        json_write_float(out, (double)entry->logprob);
        strbuf_add_char(out, '}');
    }
    strbuf_add_char(out, ']');
}

static void write_tokens(const struct tgi_answer *answer, const Sluice__V1__Choice *choice,
                         const uint32_t *text_ends, struct strbuf *out)
{
    uint64_t begin = 0;
    strbuf_add_char(out, '[');
    for (size_t i = 0; i < choice->n_ids; i++) {
        struct token token = {.id = choice->ids[i],
                              .text = choice->text + begin,
                              .n_text = (size_t)(text_ends[i] - begin),
                              .logprob = i < choice->n_logprobs ? choice->logprobs[i] : NULL};
        if (i)
            strbuf_add_char(out, ',');
        write_token(answer, &token, out);
        begin = text_ends[i];
    }
    strbuf_add_char(out, ']');
}

/* Writes the fields of Details and of BestOfSequence, from finish_reason to tokens. */
static void write_sequence(const struct tgi_answer *answer, const struct relay_frame *frame,
                           size_t i, struct strbuf *out)
{
    const Sluice__V1__Choice *choice = frame->whole->choices[i];
    write_end(answer, choice->finished, (uint32_t)choice->n_ids, out);
    strbuf_add_str(out, ",\"prefill\":");
    write_prefill(frame->whole->prompt_info, out);
    strbuf_add_str(out, ",\"tokens\":");
    write_tokens(answer, choice, frame->whole_text_ends[i], out);
}

static void write_all_top(const struct tgi_answer *answer, const Sluice__V1__Choice *choice,
                          struct strbuf *out)
{
    if (!answer->top_n)
        return;
    strbuf_add_str(out, ",\"top_tokens\":[");
    for (size_t i = 0; i < choice->n_logprobs; i++) {
        if (i)
            strbuf_add_char(out, ',');
        write_top(answer, choice->logprobs[i], out);
    }
    strbuf_add_char(out, ']');
}

/* Writes the choices beside the best one. */
static void write_others(const struct tgi_answer *answer, const struct relay_frame *frame,
                         size_t best, struct strbuf *out)
{
    bool is_first = true;
    if (frame->whole->n_choices < 2)
        return;
    strbuf_add_str(out, ",\"best_of_sequences\":[");
    for (size_t i = 0; i < frame->whole->n_choices; i++) {
        const Sluice__V1__Choice *choice = frame->whole->choices[i];
        if (i == best)
            continue;
        strbuf_add_str(out, is_first ? "{\"generated_text\":" : ",{\"generated_text\":");
        is_first = false;
        write_text(answer, choice->text, strlen(choice->text), out);
        strbuf_add_char(out, ',');
        write_sequence(answer, frame, i, out);
        write_all_top(answer, choice, out);
        strbuf_add_char(out, '}');
    }
    strbuf_add_char(out, ']');
}

void tgi_answer_whole(struct tgi_answer *answer, const struct relay_frame *frame)
{
    struct strbuf *out = &answer->whole;
    size_t best = find_best(frame->whole);
    const Sluice__V1__Choice *choice = frame->whole->choices[best];
    if (frame->whole->prompt_info)
        answer->seed = frame->whole->prompt_info->seed;
    strbuf_add_str(out, answer->is_list ? "[{\"generated_text\":" : "{\"generated_text\":");
    write_text(answer, choice->text, strlen(choice->text), out);
    if (answer->details) {
        strbuf_add_str(out, ",\"details\":{");
        write_sequence(answer, frame, best, out);
        write_others(answer, frame, best, out);
        write_all_top(answer, choice, out);
        strbuf_add_char(out, '}');
    }
    strbuf_add_str(out, answer->is_list ? "}]" : "}");
}
