/* request_output.h: from a choice's tokens to its text and its end: detokenizer, stop ids and
 * strings, limits; and what of it was published to readers. The upper half is the engine thread's;
 * the `published` half is under the engine's events lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/request/stop.h"

struct detokenizer;
struct engine_resume;
struct request;
struct sequence;
struct stop_matcher;
struct tokenizer;

struct output_text {
    char *data;
    size_t n_bytes, capacity;
};

struct request_output {
    struct detokenizer *detok;
    struct stop_matcher *stop; /* NULL without stop strings */
    uint32_t n_taken;          /* ids of the sequence that came through here */
    uint32_t n_released;       /* of them: their text is out */
    uint32_t n_prompt_held;    /* prompt ids (return_full_text) whose text is not out */
    size_t n_skip_bytes;       /* text the client of a resume has: still to be dropped */
    bool past_skip;            /* text goes on behind it: stop strings are looked for */
    enum finish_reason reason; /* FINISH_NONE while it goes on */
    bool matched;              /* a stop string: */
    char matched_stop[STOP_MAX_BYTES + 1];
    int64_t matched_stop_id; /* or -1 */
    int status;              /* of FINISH_ERROR */
    char message[256];
    struct output_text staged; /* released, not yet published */

    struct { /* under the events lock */
        uint32_t n_ids, n_ids_read;
        uint32_t n_released, n_released_read;
        struct output_text text; /* not yet read */
        enum finish_reason reason;
        bool finish_read;
    } published;
};

/* Makes the output side of a choice. With a resume its ids are taken at once: the text the client
 * has is dropped, the state (and perhaps the end) is what it was. Where an update has lowered
 * max_tokens below what there is, the choice ends with its last id; where one has brought a stop
 * string that lies in text which was held back, there. INVALID_ARGUMENT where n_text_bytes is more
 * than the ids' text, or ids go on after an end of another kind. Any thread, before the request is
 * queued. */
int request_output_create(struct sequence *seq, const struct tokenizer *tok,
                          const struct engine_resume *resume, struct error *err);
void request_output_destroy(struct request_output *out);

/* Takes the sequence's next id that has not come through here: stages text, may set `reason`. A
 * failure (memory, an id the tokenizer does not know) becomes FINISH_ERROR. */
void request_output_take(struct sequence *seq);
/* Whether the sequence's last id may end it whatever its text is: a stop id or the length. */
bool request_output_may_end(const struct sequence *seq);
/* Ends the choice from outside; held text stays held. */
void request_output_end(struct sequence *seq, enum finish_reason reason, int status,
                        const char *message);
/* Other stop strings from now on; `matcher` (of the same set, for a choice that has none yet) is
 * taken where it is needed. May set `reason`. */
void request_output_change_stops(struct sequence *seq, const struct stop_set *set,
                                 struct stop_matcher **matcher);
/* Ends a choice that has its max_tokens: releases all. */
void request_output_finish_length(struct sequence *seq);

/* Under the events lock: makes everything so far visible to readers. Without memory for the text
 * the choice ends with FINISH_ERROR. Returns whether there is anything to read. */
bool request_output_publish(struct sequence *seq);
