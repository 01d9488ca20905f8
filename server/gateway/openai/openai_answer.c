#include "server/gateway/openai/openai_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json_write.h"
#include "server/gateway/base/ranked_logprobs.h"
#include "server/gateway/relay/relay.h"

static void write_str(struct strbuf *out, const char *text)
{
    json_write_text(out, text, strlen(text));
}

static void append(struct strbuf *out, const struct strbuf *more)
{
    strbuf_add(out, strbuf_str(more), more->n_bytes);
    out->failed |= more->failed;
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

static void write_numbers(struct strbuf *out, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i)
            strbuf_add_char(out, ',');
        strbuf_add_number(out, ids[i]);
    }
}

static void write_ids(const struct openai_answer *answer, struct strbuf *out, const uint32_t *ids,
                      size_t n)
{
    if (!answer->returns_ids)
        return;
    strbuf_add_str(out, ",\"token_ids\":[");
    write_numbers(out, ids, n);
    strbuf_add_char(out, ']');
}

static void write_prompt_ids(const struct openai_answer *answer, struct strbuf *out,
                             const struct strbuf *ids)
{
    if (!answer->returns_ids)
        return;
    strbuf_add_str(out, ",\"prompt_token_ids\":[");
    append(out, ids);
    strbuf_add_char(out, ']');
}

/* --- objects --- */

static void write_usage(const struct openai_answer *answer, struct strbuf *out)
{
    const struct {
        const char *before;
        uint32_t number;
    } fields[] = {
        {"\"usage\":{\"prompt_tokens\":", answer->n_prompt_tokens},
        {",\"completion_tokens\":", answer->n_generated_tokens},
        {",\"total_tokens\":", answer->n_prompt_tokens + answer->n_generated_tokens},
        {",\"prompt_tokens_details\":{\"cached_tokens\":", answer->n_cached_tokens},
        {"},\"completion_tokens_details\":{\"reasoning_tokens\":", answer->n_reasoning_tokens},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        strbuf_add_str(out, fields[i].before);
        strbuf_add_number(out, fields[i].number);
    }
    strbuf_add_str(out, "}}");
}

/* Writes the object's begin, up to the list of choices. */
static void open_object(const struct openai_answer *answer, const char *object, struct strbuf *out)
{
    strbuf_printf(out,
                  "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", answer->id,
                  object, answer->created);
    write_str(out, answer->model);
    strbuf_add_str(out, ",\"system_fingerprint\":");
    if (answer->fingerprint[0])
        write_str(out, answer->fingerprint);
    else
        strbuf_add_str(out, "null");
    strbuf_add_str(out, ",\"choices\":[");
}

static void set_fingerprint(struct openai_answer *answer, const char *fingerprint)
{
    if (answer->fingerprint[0])
        return;
    snprintf(answer->fingerprint, sizeof(answer->fingerprint), "%s", fingerprint);
    strbuf_clear(&answer->chunk_begin);
}

void openai_answer_fini(struct openai_answer *answer)
{
    strbuf_fini(&answer->prompt_lists);
    strbuf_fini(&answer->chunk_begin);
}

void openai_answer_prompt_fini(struct openai_answer_prompt *prompt)
{
    openai_logprobs_fini(&prompt->logprobs);
    strbuf_fini(&prompt->ids);
    strbuf_fini(&prompt->choices);
}

/* --- a stream --- */

static const char *chunk_object(const struct openai_answer *answer)
{
    return answer->is_chat ? "chat.completion.chunk" : "text_completion";
}

void openai_answer_prompt_info(struct openai_answer *answer, struct openai_answer_prompt *prompt,
                               const Sluice__V1__PromptInfo *info)
{
    if (!prompt->has_info) {
        prompt->has_info = true;
        answer->n_prompt_tokens += info->n_prompt_tokens;
        answer->n_cached_tokens += info->n_cached_tokens;
        set_fingerprint(answer, info->fingerprint);
        if (answer->returns_ids)
            write_numbers(&prompt->ids, info->prompt_token_ids, info->n_prompt_token_ids);
    }
    if (answer->echoes && answer->wants_logprobs)
        openai_logprobs_add(&prompt->logprobs, info->prompt_logprobs, info->n_prompt_logprobs,
                            answer->n_top, NULL);
}

static void write_chunk_logprobs(const struct openai_answer *answer,
                                 const struct openai_answer_prompt *prompt,
                                 struct openai_answer_choice *choice,
                                 const struct relay_frame *frame, struct strbuf *out)
{
    const Sluice__V1__Tokens *tokens = &frame->tokens;
    bool joins = !choice->has_begun && answer->echoes;
    bool is_thought = answer->is_chat && tokens->kind == SLUICE__V1__PART_KIND__PART_KIND_REASONING;
    strbuf_add_str(out, ",\"logprobs\":");
    if (!answer->wants_logprobs || is_thought || (!tokens->n_logprobs && !joins)) {
        strbuf_add_str(out, "null");
    } else if (answer->is_chat) {
        openai_logprobs_write_chat(tokens->logprobs, tokens->n_logprobs, answer->n_top, out);
    } else {
        struct openai_logprobs lists = {.n_text = choice->n_text};
        if (joins)
            openai_logprobs_join(&lists, &prompt->logprobs);
        if (joins && !frame->text_ends)
            lists.n_text = prompt->logprobs.n_text;
        const struct openai_logprobs_text text = {tokens->text, frame->text_ends, frame->text_begin,
                                                  joins};
        openai_logprobs_add(&lists, tokens->logprobs, tokens->n_logprobs, answer->n_top,
                            frame->text_ends ? &text : NULL);
        choice->n_text = lists.n_text;
        openai_logprobs_write(&lists, out);
        openai_logprobs_fini(&lists);
    }
}

/* Ends the open chunk with a reason. */
static void close_chunk(struct openai_answer *answer, const char *reason, struct strbuf *out)
{
    if (!answer->is_open)
        return;
    answer->is_open = false;
    strbuf_add_str(out, ",\"finish_reason\":");
    strbuf_add_str(out, reason);
    if (answer->continuous_usage) {
        strbuf_add_str(out, "}],");
        write_usage(answer, out);
        strbuf_add_str(out, "}\n\n");
    } else if (answer->include_usage) {
        strbuf_add_str(out, "}],\"usage\":null}\n\n");
    } else {
        strbuf_add_str(out, "}]}\n\n");
    }
}

void openai_answer_flush(struct openai_answer *answer, struct strbuf *out)
{
    close_chunk(answer, "null", out);
}

/* Most bytes of a chunk are the same in all chunks of an answer, so they are formatted once. */
static void open_chunk(struct openai_answer *answer, struct strbuf *out)
{
    if (!answer->chunk_begin.n_bytes) {
        strbuf_add_str(&answer->chunk_begin, "data: ");
        open_object(answer, chunk_object(answer), &answer->chunk_begin);
    }
    append(out, &answer->chunk_begin);
}

/* Clients read the reasoning under one of two names, so the answer has both. */
static void write_reasoning(struct strbuf *out, const char *text)
{
    strbuf_add_str(out, "\"reasoning_content\":");
    write_str(out, text);
    strbuf_add_str(out, ",\"reasoning\":");
    write_str(out, text);
}

/* The part of a choice that this chunk adds. */
static void write_delta(const struct openai_answer *answer,
                        const struct openai_answer_choice *choice, const char *text,
                        bool is_reasoning, struct strbuf *out)
{
    if (!answer->is_chat) {
        strbuf_add_str(out, "\"text\":");
        write_str(out, text);
        return;
    }
    strbuf_add_str(out, "\"delta\":{");
    if (!choice->has_begun)
        strbuf_add_str(out, "\"role\":\"assistant\",");
    strbuf_add_str(out, "\"content\":");
    if (is_reasoning) {
        strbuf_add_str(out, "null,");
        write_reasoning(out, text);
    } else {
        write_str(out, text);
    }
    strbuf_add_char(out, '}');
}

void openai_answer_tokens(struct openai_answer *answer, const struct openai_answer_prompt *prompt,
                          struct openai_answer_choice *choice, uint32_t index,
                          const struct relay_frame *frame, struct strbuf *out)
{
    const Sluice__V1__Tokens *tokens = &frame->tokens;
    bool is_reasoning = tokens->kind == SLUICE__V1__PART_KIND__PART_KIND_REASONING;
    answer->n_generated_tokens += (uint32_t)tokens->n_ids;
    answer->n_reasoning_tokens += is_reasoning ? (uint32_t)tokens->n_ids : 0;
    if (is_reasoning && answer->hides_reasoning)
        return;
    openai_answer_flush(answer, out);
    open_chunk(answer, out);
    strbuf_add_str(out, "{\"index\":");
    strbuf_add_number(out, index);
    strbuf_add_char(out, ',');
    write_delta(answer, choice, tokens->text, is_reasoning, out);
    write_chunk_logprobs(answer, prompt, choice, frame, out);
    write_ids(answer, out, tokens->ids, tokens->n_ids);
    if (!choice->has_begun)
        write_prompt_ids(answer, out, &prompt->ids);
    choice->has_begun = true;
    answer->is_open = true;
    answer->i_open = index;
}

void openai_answer_finish(struct openai_answer *answer, const struct openai_answer_prompt *prompt,
                          struct openai_answer_choice *choice, uint32_t index,
                          const Sluice__V1__Finished *finished, struct strbuf *out)
{
    static const struct relay_frame none = {.kind = RELAY_FRAME_TOKENS,
                                            .tokens = SLUICE__V1__TOKENS__INIT};
    if (!answer->is_open || answer->i_open != index)
        openai_answer_tokens(answer, prompt, choice, index, &none, out);
    close_chunk(answer, finish_reason(finished), out);
}

void openai_answer_end(struct openai_answer *answer, struct strbuf *out)
{
    openai_answer_flush(answer, out);
    if (answer->include_usage) {
        open_chunk(answer, out);
        strbuf_add_str(out, "],");
        write_usage(answer, out);
        strbuf_add_str(out, "}\n\n");
    }
    strbuf_add_str(out, "data: [DONE]\n\n");
    strbuf_fini(&answer->chunk_begin);
}

/* --- a whole answer --- */

static void write_whole_logprobs(const struct openai_answer *answer,
                                 const Sluice__V1__Choice *choice, const uint32_t *text_ends,
                                 const Sluice__V1__PromptInfo *info, struct strbuf *out)
{
    strbuf_add_str(out, ",\"logprobs\":");
    if (!answer->wants_logprobs) {
        strbuf_add_str(out, "null");
    } else if (answer->is_chat) {
        openai_logprobs_write_chat(choice->logprobs, choice->n_logprobs, answer->n_top, out);
    } else {
        struct openai_logprobs lists = {0};
        const struct openai_logprobs_text text = {choice->text, text_ends, 0, answer->echoes};
        if (answer->echoes && info)
            openai_logprobs_add(&lists, info->prompt_logprobs, info->n_prompt_logprobs,
                                answer->n_top, NULL);
        lists.n_text = text_ends ? 0 : lists.n_text;
        openai_logprobs_add(&lists, choice->logprobs, choice->n_logprobs, answer->n_top,
                            text_ends ? &text : NULL);
        openai_logprobs_write(&lists, out);
        openai_logprobs_fini(&lists);
    }
}

/* The lists of a prompt: vLLM has them in each choice of completions, and beside a chat's choices.
 */
static void write_prompt_lists(const struct openai_answer *answer,
                               const Sluice__V1__PromptInfo *info, struct strbuf *out)
{
    if (!info)
        return;
    if (answer->has_prompt_logprobs) {
        strbuf_add_str(out, ",\"prompt_logprobs\":");
        ranked_logprobs_write(info->prompt_logprobs, info->n_prompt_logprobs, answer->n_prompt_top,
                              out);
    }
    if (answer->returns_ids) {
        strbuf_add_str(out, ",\"prompt_token_ids\":[");
        write_numbers(out, info->prompt_token_ids, info->n_prompt_token_ids);
        strbuf_add_char(out, ']');
    }
}

/* Copies the lists of a choice without its reasoning. Returns false if memory is exhausted. */
static bool drop_reasoning(const struct relay_frame *frame, size_t i, Sluice__V1__Choice *choice)
{
    const struct relay_run *runs = frame->whole_runs[i];
    uint32_t *ids = calloc(choice->n_ids + 1, sizeof(*ids));
    Sluice__V1__TokenLogprob **logprobs = calloc(choice->n_logprobs + 1, sizeof(*logprobs));
    size_t n_ids = 0, n_logprobs = 0, at = 0;
    bool is_hidden = false;
    for (size_t k = 0; ids && logprobs && k < choice->n_ids; k++) {
        for (; at < frame->n_whole_runs[i] && runs[at].begin_id <= k; at++)
            is_hidden = runs[at].kind == SLUICE__V1__PART_KIND__PART_KIND_REASONING;
        if (is_hidden)
            continue;
        ids[n_ids++] = choice->ids[k];
        if (k < choice->n_logprobs)
            logprobs[n_logprobs++] = choice->logprobs[k];
    }
    choice->ids = ids;
    choice->logprobs = logprobs;
    choice->n_ids = n_ids;
    choice->n_logprobs = n_logprobs;
    return ids && logprobs;
}

static void write_choice(const struct openai_answer *answer, const struct relay_frame *frame,
                         size_t i, uint32_t index, struct strbuf *out)
{
    const Sluice__V1__Choice *choice = frame->whole->choices[i];
    const Sluice__V1__PromptInfo *info = frame->whole->prompt_info;
    bool hides = answer->hides_reasoning;
    bool drops = (answer->is_chat || hides) && i < RELAY_SINK_MAX_CHOICES && frame->n_whole_runs[i];
    Sluice__V1__Choice shown = *choice; /* a chat's log-probabilities are those of the content */
    if (drops && !drop_reasoning(frame, i, &shown))
        out->failed = true;
    strbuf_printf(out, "%s{\"index\":%" PRIu32 ",", out->n_bytes ? "," : "", index);
    if (answer->is_chat) {
        strbuf_add_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        write_str(out, choice->text);
        if (choice->reasoning_text[0] && !hides) {
            strbuf_add_char(out, ',');
            write_reasoning(out, choice->reasoning_text);
        }
        strbuf_add_str(out, ",\"refusal\":null}");
    } else {
        strbuf_add_str(out, "\"text\":");
        write_str(out, choice->text);
    }
    write_whole_logprobs(answer, &shown,
                         i < RELAY_SINK_MAX_CHOICES ? frame->whole_text_ends[i] : NULL, info, out);
    if (hides)
        write_ids(answer, out, shown.ids, shown.n_ids);
    else
        write_ids(answer, out, choice->ids, choice->n_ids);
    if (!answer->is_chat)
        write_prompt_lists(answer, info, out);
    strbuf_printf(out, ",\"finish_reason\":%s}",
                  choice->finished ? finish_reason(choice->finished) : "null");
    if (drops) {
        free(shown.ids);
        free(shown.logprobs);
    }
}

void openai_answer_choices(struct openai_answer *answer, struct openai_answer_prompt *prompt,
                           const struct relay_frame *frame, uint32_t first)
{
    const Sluice__V1__CompleteResponse *whole = frame->whole;
    for (size_t i = 0; i < whole->n_choices; i++)
        write_choice(answer, frame, i, first + whole->choices[i]->index, &prompt->choices);
    if (answer->is_chat)
        write_prompt_lists(answer, whole->prompt_info, &answer->prompt_lists);
    if (whole->prompt_info)
        set_fingerprint(answer, whole->prompt_info->fingerprint);
    if (whole->usage) {
        answer->n_prompt_tokens += whole->usage->n_prompt_tokens;
        answer->n_cached_tokens += whole->usage->n_cached_tokens;
        answer->n_generated_tokens += whole->usage->n_generated_tokens;
        answer->n_reasoning_tokens += whole->usage->n_reasoning_tokens;
    }
}

void openai_answer_whole(const struct openai_answer *answer,
                         const struct openai_answer_prompt *prompts, size_t n_prompts,
                         struct strbuf *out)
{
    open_object(answer, answer->is_chat ? "chat.completion" : "text_completion", out);
    for (size_t i = 0; i < n_prompts; i++) {
        strbuf_add_str(out, i ? "," : "");
        append(out, &prompts[i].choices);
    }
    strbuf_add_str(out, "],");
    write_usage(answer, out);
    append(out, &answer->prompt_lists);
    strbuf_add_str(out, "}\n");
}
