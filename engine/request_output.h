/* request_output.h: from a choice's tokens to its text and its end: detokenizer, stop ids and
 * strings, limits; and what of it was published to readers. The upper half is the engine thread's;
 * the `published` half is under the engine's events lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"

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

/* How much text each released id brought, in order. */
struct output_shares {
    uint32_t *n_bytes;
    size_t n, capacity;
};

struct request_output {
    struct detokenizer *detok;
    struct stop_matcher *stop; /* NULL without stop strings */
    uint32_t n_taken;          /* ids of the sequence that came through here */
    uint32_t n_released;       /* of them: their text is out */
    size_t n_skip_bytes;       /* text the client of a resume has: still to be dropped */
    enum finish_reason reason; /* FINISH_NONE while it goes on */
    int32_t i_matched_stop;    /* or -1 */
    int64_t matched_stop_id;   /* or -1 */
    int status;                /* of FINISH_ERROR */
    char message[256];
    struct output_text staged; /* released, not yet published */
    struct output_shares staged_shares;

    struct { /* under the events lock */
        uint32_t n_ids, n_ids_read;
        uint32_t n_released, n_released_read;
        struct output_text text; /* not yet read */
        struct output_shares shares;
        enum finish_reason reason;
        bool finish_read;
    } published;
};

/* Makes the output side of a choice. With a resume its ids are taken at once: the text the client
 * has is dropped, the state (and perhaps the end) is what it was. INVALID_ARGUMENT where
 * n_text_bytes is more than the ids' text, or ids go on after an end. Any thread, before the
 * request is queued. */
int request_output_create(struct sequence *seq, const struct tokenizer *tok,
                          const struct engine_resume *resume, struct error *err);
void request_output_destroy(struct request_output *out);

/* Takes the sequence's newest id: stages text, may set `reason`. A failure (memory, an id the
 * tokenizer does not know) becomes FINISH_ERROR. */
void request_output_take(struct sequence *seq);
/* Ends the choice from outside; held text stays held. */
void request_output_end(struct sequence *seq, enum finish_reason reason, int status,
                        const char *message);
/* Ends a choice whose max_tokens was lowered to what it has: releases all. */
void request_output_finish_length(struct sequence *seq);

/* Under the events lock: makes everything so far visible to readers. Without memory for the text
 * the choice ends with FINISH_ERROR. Returns whether there is anything to read. */
bool request_output_publish(struct sequence *seq);
