/* request_output.h: turns a choice's tokens into text and decides its end: detokenizer, stop ids,
 * stop strings, limits. Also records what was published to readers. The upper half of the struct is
 * the engine thread's. The `published` half is under the engine's events lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/request/stop.h"

struct detokenizer;
struct reasoning;
struct request;
struct sequence;
struct stop_matcher;
struct tokenizer;

struct output_text {
    char *data;
    size_t n_bytes, capacity;
};

/* Released ids of one kind, and their text. Without a struct reasoning there are none. */
struct output_run {
    bool is_reasoning;
    uint32_t n_ids;
    uint32_t n_bytes;
};

struct output_runs {
    struct output_run *runs;
    size_t n, capacity;
};

struct request_output {
    struct detokenizer *detok;
    struct reasoning *reasoning; /* NULL: all text is content */
    struct stop_matcher *stop;   /* NULL without stop strings */
    uint32_t n_taken;            /* ids of the sequence taken so far */
    uint32_t n_released;         /* the first ids whose text is released */
    uint32_t n_prompt_held;      /* prompt ids (return_full_text) whose text is not released */
    size_t n_skip_bytes;         /* text that a resuming client has, still to be dropped */
    bool past_skip;              /* all that text was dropped: stop strings match from here on */
    enum finish_reason reason;   /* FINISH_NONE while the choice runs */
    bool matched;                /* a stop string matched, and matched_stop holds it */
    char matched_stop[STOP_MAX_BYTES + 1];
    int64_t matched_stop_id; /* stop id that matched, or -1 */
    int status;              /* status of FINISH_ERROR */
    char message[256];
    struct output_text staged; /* released, not yet published */
    struct output_runs staged_runs;
    bool was_reasoning;   /* kind of the last text */
    uint32_t n_reasoning; /* released ids that are reasoning */

    struct { /* under the events lock */
        uint32_t n_ids, n_ids_read;
        uint32_t n_released, n_released_read;
        struct output_text text; /* published, not yet read */
        struct output_runs runs;
        uint32_t n_reasoning;
        enum finish_reason reason;
        bool finish_read;
    } published;
};

/* Creates the output side of a choice of the request `req`. With a resume, takes its ids at once.
 * Text that the client has is dropped; the state (and perhaps the end) is restored. The choice ends
 * with the last id if an update lowered max_tokens below the id count. The choice ends earlier if a
 * new stop string matches in text that was held back. INVALID_ARGUMENT if n_text_bytes exceeds the
 * ids' text, or if ids follow an end of another kind. Any thread, before the request is queued. */
int request_output_create(struct sequence *seq, const struct tokenizer *tok,
                          const struct engine_request *req, struct error *err);
void request_output_destroy(struct request_output *out);

/* Takes the sequence's next id: stages text and may set `reason`. A failure (no memory, an id that
 * the tokenizer does not know) becomes FINISH_ERROR. */
void request_output_take(struct sequence *seq);
/* True if the sequence's last id may end it independently of text: a stop id, or max_tokens. */
bool request_output_may_end(const struct sequence *seq);
/* Ends the choice with a given reason. Held text is not released. */
void request_output_end(struct sequence *seq, enum finish_reason reason, int status,
                        const char *message);
/* Replaces the stop strings. `matcher` belongs to the same set; it is taken if the choice has no
 * matcher yet. May set `reason`. */
void request_output_change_stops(struct sequence *seq, const struct stop_set *set,
                                 struct stop_matcher **matcher);
/* Ends a choice that has reached max_tokens: releases all held text. */
void request_output_finish_length(struct sequence *seq);

/* Under the events lock: makes all staged text visible to readers. Without memory for the text, the
 * choice ends with FINISH_ERROR. Returns true if there is anything to read. */
bool request_output_publish(struct sequence *seq);
