/* kserve_part.h: what a frame of a relay adds to each choice of an answer. Both forms of KServe's
 * API, gRPC and HTTP, write outputs from these parts. Plain functions. */
#pragma once

#include <stddef.h>

#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

struct kserve_part {
    const char *text;   /* never NULL */
    const char *reason; /* "stop" or "length"; NULL: the choice has not ended */
    size_t n_tokens;
    Sluice__V1__TokenLogprob *const *logprobs;
    size_t n_logprobs;
};

/* Fills a part for each choice from a frame of tokens, of an end, or of the whole answer. Choices
 * that the frame does not name get an empty part. Adds the log-probabilities of a choice to its
 * sum. The parts borrow from the frame. */
void kserve_part_fill(const struct relay_frame *frame,
                      struct kserve_part out_parts[RELAY_MAX_CHOICES],
                      double sums[RELAY_MAX_CHOICES]);
