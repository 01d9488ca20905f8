/* request.h: one request inside the engine: everything its submitter gave, copied, and the state of
 * its choices. Made on the submitter's thread by request_create(); from the moment it is queued the
 * engine thread alone changes it, save for the fields marked otherwise. */
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

/* Of this engine; what a request is checked against. */
struct request_limits {
    uint32_t vocab_size;
    uint32_t n_logits;       /* columns of the model's output: at least vocab_size, or 0 for it */
    uint32_t context_tokens; /* of one sequence: the model's, cut to what the KV pool holds */
    uint32_t max_concurrent;
    uint32_t max_input_tokens, max_total_tokens; /* of a prompt; with an answer; 0: the context */
    uint32_t draft_tokens;                       /* where a request does not say; 0: none */
    bool has_draft_model;
    uint32_t end_ids[TOKENIZER_MAX_END_IDS]; /* tokens that end a choice unless ignore_eos */
    uint32_t n_end_ids;
};

enum {
    REQUEST_MAX_LOGIT_BIAS = 1024,
    REQUEST_MAX_ALLOWED_IDS = 1 << 20,
    REQUEST_MAX_STOP_IDS = 128,
    REQUEST_MAX_PRIORITY = 100,
    REQUEST_MAX_SALT_BYTES = 1024,
    REQUEST_MAX_CALLER_BYTES = 256,
};

/* Everything DESIGN section 9 and the protocol bound, by field name. No state. Any thread. */
int request_check(const struct engine_request *req, const struct request_limits *limits,
                  struct error *err);

/* Tokens that may follow a prompt, by the context and the limits. */
uint32_t request_room(uint32_t n_prompt, const struct request_limits *limits);

/* Tokens [begin, begin + n) of the request's bad_ids. */
struct bad_word {
    uint32_t begin, n;
};

/* New stop strings on their way to the engine thread, with all the memory they need. */
struct request_stop_change {
    struct stop_set *set; /* NULL: no stop strings any more */
    struct stop_matcher *matchers[ENGINE_MAX_CHOICES];
};
void request_stop_change_destroy(struct request_stop_change *change);

/* The stop strings of a request or of an update. */
int request_check_stops(const char *field, const char *const *stop, uint32_t n_stop,
                        struct error *err);

enum request_state { REQUEST_WAITING, REQUEST_ACTIVE, REQUEST_ENDED };

struct request {
    uint64_t id, user_data;
    uint32_t *prompt;
    uint32_t n_prompt;
    struct engine_sampling sampling; /* its logit_bias is NULL: see biases */
    struct sample_bias
        *biases; /* n_user_biases: the caller's, and −∞ for bad words of one token; */
    uint32_t n_user_biases; /* then −∞ for every stop id, in force before min_tokens */
    uint32_t n_biases;
    uint32_t *allowed_mask;     /* bit per token; NULL: all are allowed */
    struct bad_word *bad_words; /* of two tokens and more */
    uint32_t n_bad_words;
    uint32_t *bad_ids; /* theirs */
    uint32_t min_tokens, max_tokens;
    bool cut_to_context;       /* max_tokens is what there is room for, and more was asked for */
    uint32_t max_draft_tokens; /* for one choice in a step; 0: none */
    bool drafts_by_model;
    uint32_t *stop_ids; /* end-of-sequence ids first, unless ignored; then the caller's */
    uint32_t n_stop_ids;
    struct stop_set *stop_set; /* NULL without stop strings */
    bool include_stop, want_logprobs, keep_special_tokens, return_full_text;
    uint32_t n_top_logprobs;
    int32_t priority;
    int64_t deadline_ns; /* 0: none */
    struct prefix_salt salt;
    char *caller;
    uint32_t caller_hash; /* admission_caller(); engine */

    struct engine_logprob *prompt_logprobs; /* [n_prompt], of which n_scored are known; or NULL */
    uint32_t n_scored;

    struct sequence *choices; /* [n_choices] */
    uint32_t n_choices, n_live;
    uint32_t leader; /* choice that computes the prompt for all */

    /* scheduler */
    enum request_state state;
    uint64_t arrival; /* order of arrival: the time, in ns */
    bool paused;
    bool sent_back;    /* it has given its places to another once */
    uint32_t n_passed; /* others that started while it was next and had no room, */
    uint32_t n_held;   /* and steps in which nobody did, for it */
    bool yields;       /* marked, while it is found out who gives places to a waiting one */
    struct request *prev, *next;           /* all live requests */
    struct request *wait_prev, *wait_next; /* of its caller's queue */
    bool waits_lasting;                    /* counted there as one that decodes for a while */
    struct request *age_prev, *age_next;   /* of all that wait, by arrival */
    uint32_t i_caller;                     /* its entry in fair_share */
    uint32_t n_cached_tokens, n_preemptions;
    uint32_t n_drafted_tokens, n_accepted_tokens;
    int64_t submitted_ns, active_ns, first_token_ns;

    /* engine: any thread */
    atomic_uint n_refs;
    atomic_uint control;     /* what the engine thread has been asked, enum in engine_loop.c */
    atomic_bool want_paused; /* with it: the values asked for */
    _Atomic int32_t new_priority;
    _Atomic uint32_t new_max_tokens;                 /* not cut */
    _Atomic(struct request_stop_change *) new_stops; /* owned until taken */
    _Atomic(struct request *) inbox_next;
    /* engine thread */
    bool dirty; /* has news to publish */
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
/* The last one frees it. NULL is allowed. Any thread. */
void request_release(struct request *request);

/* Whether the logits of the row at `position` give a prompt token's log-probability that is not
 * known yet. */
static inline bool request_scores_row(const struct request *request, uint32_t position)
{
    return request->prompt_logprobs && position + 1 >= request->n_scored &&
           position + 1 < request->n_prompt;
}

/* Sets max_tokens, cut to what there is room for, and makes room for as many per choice. False,
 * unchanged, without memory. Moves arrays: the caller keeps readers out. */
bool request_resize(struct request *request, uint32_t max_tokens,
                    const struct request_limits *limits);

/* Whether `id` ends a choice of this request, once stops are armed. */
bool request_is_stop_id(const struct request *request, uint32_t id);
