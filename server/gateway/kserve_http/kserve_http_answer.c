#include "server/gateway/kserve_http/kserve_http_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json_write.h"
#include "server/gateway/base/ranked_logprobs.h"
#include "server/gateway/kserve/kserve_output.h"
#include "server/gateway/kserve/kserve_part.h"
#include "server/gateway/relay/relay_sink.h"

void kserve_http_answer_fini(struct kserve_http_answer *answer)
{
    free(answer->prompt);
    strbuf_fini(&answer->whole);
}

/* --- values --- */

static void write_text(struct strbuf *out, const char *text)
{
    json_write_text(out, text, strlen(text));
}

/* Writes the text of a choice behind the prompt, if the answer begins with it. */
static void write_output_text(const struct kserve_http_answer *answer, const char *text,
                              struct strbuf *out)
{
    struct strbuf both = {0};
    if (!answer->prompt) {
        write_text(out, text);
        return;
    }
    strbuf_add_str(&both, answer->prompt);
    strbuf_add_str(&both, text);
    json_write_text(out, strbuf_str(&both), both.n_bytes);
    out->failed |= strbuf_failed(&both);
    strbuf_fini(&both);
}

/* The output logprobs is a text that is JSON itself. */
static void write_logprobs(const struct kserve_part *part, struct strbuf *out)
{
    struct strbuf text = {0};
    ranked_logprobs_write(part->logprobs, part->n_logprobs, UINT32_MAX, &text);
    json_write_text(out, strbuf_str(&text), text.n_bytes);
    out->failed |= strbuf_failed(&text);
    strbuf_fini(&text);
}

static void write_element(const struct kserve_http_answer *answer, enum kserve_output output,
                          const struct kserve_part *part, double logprob_sum, struct strbuf *out)
{
    if (output == KSERVE_OUTPUT_TEXT)
        write_output_text(answer, part->text, out);
    else if (output == KSERVE_OUTPUT_FINISH_REASON)
        write_text(out, part->reason ? part->reason : "None");
    else if (output == KSERVE_OUTPUT_LOGPROBS)
        write_logprobs(part, out);
    else if (output == KSERVE_OUTPUT_NUM_OUTPUT_TOKENS)
        strbuf_printf(out, "%zu", part->n_tokens);
    else
        json_write_float(out, logprob_sum);
}

static void write_output(const struct kserve_http_answer *answer, enum kserve_output output,
                         const struct kserve_part *parts, struct strbuf *out)
{
    bool is_list = answer->n_choices > 1 || output == KSERVE_OUTPUT_OUTPUT_LOG_PROBS;
    strbuf_printf(out, ",\"%s\":%s", kserve_output_facts[output].name, is_list ? "[" : "");
    if (output == KSERVE_OUTPUT_NUM_INPUT_TOKENS) {
        strbuf_printf(out, "%" PRIu32, answer->n_prompt_tokens);
    } else if (output == KSERVE_OUTPUT_OUTPUT_LOG_PROBS) { /* a single choice */
        for (size_t i = 0; i < parts[0].n_logprobs; i++) {
            strbuf_add_str(out, i ? "," : "");
            json_write_float(out, (double)parts[0].logprobs[i]->logprob);
        }
    } else {
        for (uint32_t i = 0; i < answer->n_choices; i++) {
            strbuf_add_str(out, i ? "," : "");
            write_element(answer, output, &parts[i], answer->logprob_sums[i], out);
        }
    }
    strbuf_add_str(out, is_list ? "]" : "");
}

/* Writes the object: the model, then the outputs that the request asked for. */
static void write_answer(const struct kserve_http_answer *answer, const struct kserve_part *parts,
                         struct strbuf *out)
{
    strbuf_add_char(out, '{');
    if (answer->id[0]) {
        strbuf_add_str(out, "\"id\":");
        write_text(out, answer->id);
        strbuf_add_char(out, ',');
    }
    strbuf_add_str(out, "\"model_name\":");
    write_text(out, answer->model);
    strbuf_add_str(out, ",\"model_version\":");
    write_text(out, answer->version);
    for (int i = 0; i < N_KSERVE_OUTPUTS; i++)
        if (answer->outputs & 1u << i)
            write_output(answer, (enum kserve_output)i, parts, out);
    strbuf_add_char(out, '}');
}

/* --- frames --- */

static void take_info(struct kserve_http_answer *answer, const Sluice__V1__PromptInfo *info)
{
    answer->n_prompt_tokens = info->n_prompt_tokens;
    snprintf(answer->model, sizeof(answer->model), "%s", info->model);
    snprintf(answer->version, sizeof(answer->version), "%s", info->version);
}

static void write_event(const struct kserve_http_answer *answer, const struct kserve_part *parts,
                        struct strbuf *out)
{
    strbuf_add_str(out, "data: ");
    write_answer(answer, parts, out);
    strbuf_add_str(out, "\n\n");
}

void kserve_http_answer_frame(struct kserve_http_answer *answer, const struct relay_frame *frame,
                              struct strbuf *out)
{
    struct kserve_part parts[RELAY_MAX_CHOICES];
    kserve_part_fill(frame, parts, answer->logprob_sums);
    if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        take_info(answer, &frame->prompt_info);
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        write_event(answer, parts, out);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        /* The end of a choice is an event only where the request asks for the reason. */
        if (answer->outputs & 1u << KSERVE_OUTPUT_FINISH_REASON)
            write_event(answer, parts, out);
    } else if (frame->kind == RELAY_FRAME_WHOLE) {
        if (frame->whole->prompt_info)
            take_info(answer, frame->whole->prompt_info);
        write_answer(answer, parts, &answer->whole);
    }
}
