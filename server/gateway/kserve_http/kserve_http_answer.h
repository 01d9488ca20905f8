/* kserve_http_answer.h: writes answers of Triton's generate extension: an object with an output per
 * name, or events with such objects. An output with a single element is the element itself. An
 * output with several elements is a list. Plain functions; the state belongs to the caller. */
#pragma once

#include <stdint.h>

#include "base/strbuf.h"
#include "server/gateway/kserve/kserve_request.h"
#include "server/gateway/relay/relay.h"

struct relay_frame;

struct kserve_http_answer {
    char id[KSERVE_MAX_ID_BYTES + 1]; /* empty: none */
    uint64_t given;                   /* the fields of the request, for errors */
    unsigned outputs;                 /* bits of enum kserve_output */
    uint32_t n_choices;
    char *prompt; /* owned: text before each output text; NULL: none */

    char model[65], version[65]; /* model and version that answer */
    uint32_t n_prompt_tokens;
    double logprob_sums[RELAY_MAX_CHOICES];
    struct strbuf whole; /* the answer, unless it is a stream */
};

void kserve_http_answer_fini(struct kserve_http_answer *answer);

/* Takes a frame. Appends the event of a stream to `out`, or fills `whole`. */
void kserve_http_answer_frame(struct kserve_http_answer *answer, const struct relay_frame *frame,
                              struct strbuf *out);
