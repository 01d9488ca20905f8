/* request.h: one request inside the engine: a copy of all that was submitted, and the state of its
 * choices. The submitter's thread creates it with request_create(). Once queued, only the engine
 * thread changes it, except for the fields marked otherwise. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/kv/prefix_cache.h"
#include "engine/text/tokenizer.h"

struct sequence;
struct stop_matcher;
struct stop_set;

/* Limits of this engine. Requests are checked against them. */
struct request_limits {
    uint32_t vocab_size;
    uint32_t n_logits; /* columns of the model's logits; at least vocab_size, or 0 for vocab_size */
    /* longest sequence: the model's context, cut to what the KV pool holds */
    uint32_t context_tokens;
    uint32_t max_concurrent;
    /* Sequences with a recurrent state that run at once, and the bytes of a state; 0: no states. */
    uint32_t n_running_states;
    uint64_t state_bytes;
    /* most tokens of a prompt, and of prompt and answer; 0: the context */
    uint32_t max_input_tokens, max_total_tokens;
    uint32_t draft_tokens; /* default for requests without a number; 0: none */
    bool has_draft_model;
    uint32_t end_ids[TOKENIZER_MAX_END_IDS]; /* tokens that end a choice unless ignore_eos */
    uint32_t n_end_ids;
    /* A bit per column of the logits: ids with a token. NULL: all. Borrowed. */
    const uint32_t *drawable;
    const uint32_t *suppressed_ids; /* ids below vocab_size that are never drawn; borrowed */
    uint32_t n_suppressed_ids;
};

enum {
    REQUEST_MAX_LOGIT_BIAS = 1024,
    REQUEST_MAX_ALLOWED_IDS = 1 << 20,
    REQUEST_MAX_STOP_IDS = 128,
    REQUEST_MAX_PRIORITY = 100,
    REQUEST_MAX_SALT_BYTES = 1024,
    REQUEST_MAX_CALLER_BYTES = 256,
};

/* Checks the limits of a request (docs/use/limits.md) and the ranges of the proto's fields. Errors
 * name the field. Stateless. Any thread. */
int request_check(const struct engine_request *req, const struct request_limits *limits,
                  struct error *err);

/* A bad word of two or more tokens: [begin, begin + n) of the request's bad_ids. */
struct bad_word {
    uint32_t begin, n;
};

/* New stop strings for the engine thread, with all memory that the change needs. */
struct request_stop_change {
    struct stop_set *set; /* NULL: no stop strings */
    struct stop_matcher *matchers[ENGINE_MAX_CHOICES];
};
void request_stop_change_destroy(struct request_stop_change *change);

/* Checks the stop strings of a request or of an update. */
int request_check_stops(const char *field, const char *const *stop, uint32_t n_stop,
                        struct error *err);

enum request_state { REQUEST_WAITING, REQUEST_ACTIVE, REQUEST_ENDED };

struct request {
    uint64_t id, user_data;
    uint32_t *prompt;
    uint32_t n_prompt;
    struct engine_sampling sampling; /* logit_bias is NULL: `biases` holds it */
    /* First n_user_biases: the caller's, and −∞ for bad words of one token and for suppressed ids.
     * Then −∞ for every stop id, which holds until min_tokens. */
    struct sample_bias *biases;
    uint32_t n_user_biases, n_biases;
    uint32_t *allowed_mask;     /* bit per token; NULL: all are allowed */
    struct bad_word *bad_words; /* bad words of two tokens and more */
    uint32_t n_bad_words;
    uint32_t *bad_ids; /* tokens of bad_words */
    uint32_t min_tokens, max_tokens;
    bool cut_to_context;       /* the submitted max_tokens was cut to the room there is */
    uint32_t max_draft_tokens; /* most drafted tokens of one choice in a step; 0: none */
    bool drafts_by_model;
    uint32_t *stop_ids; /* end-of-sequence ids (unless ignored), then the caller's stop ids */
    uint32_t n_stop_ids;
    struct stop_set *stop_set; /* NULL without stop strings */
    bool include_stop, want_logprobs, keep_special_tokens, return_full_text;
    uint32_t n_top_logprobs;
    int32_t priority;
    int64_t deadline_ns; /* 0: none */
    struct prefix_salt salt;
    char *caller;
    uint32_t caller_hash; /* set by the engine: admission_caller() */

    /* [n_prompt], the first n_scored are known; NULL: not requested */
    struct engine_logprob *prompt_logprobs;
    uint32_t n_scored;

    struct sequence *choices; /* [n_choices] */
    uint32_t n_choices, n_live;
    uint32_t leader; /* choice that computes the prompt for all choices */

    /* fields of the scheduler */
    enum request_state state;
    uint64_t arrival; /* order of arrival: the time, in ns */
    bool paused;
    bool sent_back;              /* gave its slots to another request once */
    uint32_t n_passed;           /* requests that started while this one was next and had no room */
    uint32_t n_held;             /* steps in which no request started, to make room for this one */
    bool yields;                 /* scratch: marked to give its slots to a waiting request */
    struct request *prev, *next; /* list of all live requests */
    struct request *wait_prev, *wait_next; /* queue of its caller */
    bool waits_lasting; /* the queue counts it as lasting (SCHEDULER_LASTING_TOKENS) */
    struct request *age_prev, *age_next; /* list of all waiting requests, by arrival */
    uint32_t i_caller;                   /* its caller's entry in fair_share */
    uint32_t n_cached_tokens, n_preemptions;
    uint32_t n_drafted_tokens, n_accepted_tokens;
    int64_t submitted_ns, active_ns, first_token_ns;

    /* fields of the engine, for any thread */
    atomic_uint n_refs;
    atomic_uint control;     /* bits of enum request_control */
    atomic_bool want_paused; /* values for the control bits: */
    _Atomic int32_t new_priority;
    _Atomic uint32_t new_max_tokens; /* as the client gave it, not cut to the context */
    _Atomic(struct request_stop_change *) new_stops; /* owned until the engine thread takes it */
    _Atomic(struct request *) inbox_next;
    /* fields of the engine thread */
    bool dirty; /* has events to publish */
    struct request *dirty_next;
    int64_t ended_ns;
    /* under the engine's events lock */
    struct {
        bool started, ended, start_read, in_ready_list;
        uint32_t n_finishes_read;
        uint32_t n_scored, n_scored_read;
        struct engine_usage usage;
        struct request *ready_next;
    } published;
};

/* Copies a checked request. *out_request is owned, with one reference. The output side
 * (detokenizer, events) is added by the engine. RESOURCE_EXHAUSTED without memory. */
int request_create(const struct engine_request *req, const struct request_limits *limits,
                   struct request **out_request, struct error *err);
void request_retain(struct request *request);
/* Drops a reference; the last one frees the request. NULL is accepted. Any thread. */
void request_release(struct request *request);

/* True if the row at `position` must give the log-probability of the prompt token behind it. */
static inline bool request_scores_row(const struct request *request, uint32_t position)
{
    return request->prompt_logprobs && position + 1 >= request->n_scored &&
           position + 1 < request->n_prompt;
}

/* Sets max_tokens, cut to the room there is, and enlarges the arrays of each choice. Returns false
 * without memory; the request is then unchanged. Arrays may move: the caller keeps readers out. */
bool request_resize(struct request *request, uint32_t max_tokens,
                    const struct request_limits *limits);

/* True if `id` is a stop id of this request. The caller checks min_tokens. */
bool request_is_stop_id(const struct request *request, uint32_t id);
