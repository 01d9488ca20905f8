/* tgi_answer.h: writes answers as text-generation-inference 3 does: an object, a list with that
 * object, or an event per token. Plain functions; the state belongs to the caller, and a single
 * thread uses it at a time.
 *
 * An event shows the text that its token adds to the answer. A token that adds none because it is a
 * special token shows its literal, and is marked as special. The last token's event also has the
 * whole text. Therefore the newest token waits in the state until it is known whether the answer
 * goes on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

struct error;
struct relay_frame;

enum { TGI_ANSWER_MAX_END_IDS = 16 };

struct tgi_answer {
    bool is_list;    /* the object is in a list */
    bool details;    /* as requested */
    bool samples;    /* the answer reports the seed */
    uint32_t top_n;  /* alternatives of each token; 0: none */
    char *full_text; /* owned: text before the generated text; NULL: none */
    uint32_t end_ids[TGI_ANSWER_MAX_END_IDS];
    uint32_t n_end_ids;

    /* State of a stream, which has a single choice. */
    uint64_t seed;
    uint32_t n_prompt_tokens, n_tokens;
    struct strbuf text; /* generated so far */
    struct strbuf held; /* the newest token, as JSON; empty: none */

    struct strbuf whole; /* the answer, unless it is a stream */
};

/* Begins an answer. The fields that describe the request are set by the caller afterwards. */
void tgi_answer_init(struct tgi_answer *answer);
void tgi_answer_fini(struct tgi_answer *answer);

/* Takes a frame of a stream, and appends the events that are complete. */
void tgi_answer_frame(struct tgi_answer *answer, const struct relay_frame *frame,
                      struct strbuf *out);
/* Every ready frame was taken: appends the event of the newest token, if the answer goes on. */
void tgi_answer_flush(struct tgi_answer *answer, struct strbuf *out);
/* Appends the event of an error. */
void tgi_answer_fail(struct tgi_answer *answer, const struct error *err, struct strbuf *out);

/* Takes the frame of a whole answer. The best choice is the one with the highest mean of
 * log-probabilities; details have the others, too. */
void tgi_answer_whole(struct tgi_answer *answer, const struct relay_frame *frame);
