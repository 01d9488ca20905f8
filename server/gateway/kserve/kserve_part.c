#include "server/gateway/kserve/kserve_part.h"

static const char *finish_name(Sluice__V1__FinishReason reason)
{
    return reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH ||
                   reason == SLUICE__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH
               ? "length"
               : "stop";
}

static void fill_whole(const Sluice__V1__CompleteResponse *whole, struct kserve_part *parts)
{
    for (size_t i = 0; i < whole->n_choices && i < RELAY_MAX_CHOICES; i++) {
        const Sluice__V1__Choice *choice = whole->choices[i];
        parts[i] = (struct kserve_part){.text = choice->text,
                                        .reason = finish_name(choice->finished->reason),
                                        .n_tokens = choice->n_ids,
                                        .logprobs = choice->logprobs,
                                        .n_logprobs = choice->n_logprobs};
    }
}

void kserve_part_fill(const struct relay_frame *frame,
                      struct kserve_part out_parts[RELAY_MAX_CHOICES],
                      double sums[RELAY_MAX_CHOICES])
{
    const Sluice__V1__Tokens *tokens = &frame->tokens;
    for (size_t i = 0; i < RELAY_MAX_CHOICES; i++)
        out_parts[i] = (struct kserve_part){.text = ""};
    if (frame->kind == RELAY_FRAME_TOKENS)
        out_parts[tokens->choice] = (struct kserve_part){.text = tokens->text,
                                                         .n_tokens = tokens->n_ids,
                                                         .logprobs = tokens->logprobs,
                                                         .n_logprobs = tokens->n_logprobs};
    else if (frame->kind == RELAY_FRAME_FINISHED)
        out_parts[frame->finished.choice].reason = finish_name(frame->finished.reason);
    else if (frame->kind == RELAY_FRAME_WHOLE)
        fill_whole(frame->whole, out_parts);
    for (size_t i = 0; i < RELAY_MAX_CHOICES; i++)
        for (size_t k = 0; k < out_parts[i].n_logprobs; k++)
            sums[i] += (double)out_parts[i].logprobs[k]->logprob;
}
