/* engine.h: the engine's only door. One model on one device group: load → tokenize → schedule →
 * step → emit; an embeddable C library.
 *
 *     engine_open → engine_submit … engine_read_events … engine_release → engine_close
 *
 * Threads: open and close belong to the owner; everything else from any thread. The engine runs its
 * own loop thread. Submit copies everything in; events are copied out; nothing is shared
 * afterwards. The notify callback runs on the engine thread after each step that produced events
 * and may only wake somebody. Templates and tokenization are functions here, run on the caller's
 * thread, never on the loop. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/forward/executor.h"

struct chat_template;
struct checkpoint;
struct engine;
struct error;
struct tokenizer;

#define ENGINE_TARGET_ITL_AUTO UINT32_MAX

struct engine_config {
    const char *model_path;          /* checkpoint file */
    struct checkpoint *checkpoint;   /* it, where it is open already: borrowed for the call; default
                                        NULL: engine_open() opens it */
    struct tokenizer *tokenizer;     /* of that checkpoint, where there is one already: the engine's
                                        from engine_open() on, also where that fails */
    struct executor_config executor; /* kv_tokens 0: engine_choose_sizes() */
    uint32_t max_concurrent;         /* sequences running at once (choices count), default 256 */
    uint32_t max_queued;             /* requests waiting, default 512 */
    uint32_t max_batch_tokens;       /* rows per step, 2 and more, default 512 */
    uint32_t prefill_chunk_tokens;   /* longest prompt piece per step, default 256 */
    uint32_t target_itl_ms;          /* a step with prompts in it is to take no longer while others
                                        decode; 0: none; default ENGINE_TARGET_ITL_AUTO: 7/4 of a
                                        step without prompts in which all decode that
                                        run or wait */
    uint32_t max_input_tokens;       /* of a prompt; default 0: what the context leaves */
    uint32_t max_total_tokens;       /* of a prompt and an answer to it; default 0: the context */
    bool prefix_cache;               /* default on */
    uint32_t draft_tokens;           /* drafted at most for a sequence in a step where its request
                                        does not say; 0, the default: none, or 4 with a draft model */
    const char *draft_path;          /* checkpoint file of a draft model (draft_model.h): who drafts
                                        where a request does not say; NULL: prompt lookup does */
    bool draft_always; /* the draft model drafts also where it does not pay: to see how
                          often it is right */
    bool defer_text;   /* make the text of a step's tokens while the next step runs, and before that
                          one's tokens are there what the step after it reads; always so where a
                          device works by itself, of no use elsewhere but to test it */
    executor_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
    const atomic_bool *cancel_load; /* may be NULL */
    void (*notify)(void *ctx);      /* may be NULL */
    void *notify_ctx;
};

/* Fills *cfg with the defaults named above and in DESIGN section 9. */
void engine_config_init(struct engine_config *cfg);

/* Reads the checkpoint, packs or maps its weights, plans memory and starts the engine's thread. */
int engine_open(const struct engine_config *cfg, struct engine **out_engine, struct error *err);
/* Ends what still runs with CANCELLED events lost, frees everything. */
void engine_close(struct engine *engine);

/* Immutable, borrowed until close, safe from any thread. chat_template is NULL where the model
 * carries none. */
const struct tokenizer *engine_tokenizer(const struct engine *engine);
const struct chat_template *engine_chat_template(const struct engine *engine);
/* Why a template that the model carries could not be compiled (status 0 where it could, or there is
 * none): the model serves all the same, chat requests are answered with this. */
const struct error *engine_chat_template_error(const struct engine *engine);
const struct model_info *engine_model_info(const struct engine *engine);
/* Of the model and of its draft model, where there is one. */
const struct executor_plan *engine_memory(const struct engine *engine);
/* What opening the checkpoint with this config would take, its draft model included (draft_bytes);
 * cfg's executor has rows, sequences and KV tokens. */
int engine_plan(const struct engine_config *cfg, struct checkpoint *ckpt,
                struct executor_plan *out_plan, struct error *err);
/* Sets what cfg's executor leaves open (kv_tokens 0; on a GPU: gpu_layers automatic) by the memory
 * there is; rows and sequences are set. On a GPU the KV cache gets all that the budget leaves, up
 * to full contexts for all; elsewhere at most half. RESOURCE_EXHAUSTED (DEVICE_MEMORY) where
 * nothing is left for it. */
int engine_choose_sizes(struct engine_config *cfg, struct checkpoint *ckpt, struct error *err);
bool engine_is_on_gpu(const struct engine_config *cfg);
/* The GPU's memory as it is now; false where there is none. Any thread. */
bool engine_gpu_memory(const struct engine *engine, uint64_t *out_total_bytes,
                       uint64_t *out_free_bytes);
/* The draft model's file name, and the longest sequence that it drafts for; NULL and 0 without. */
const char *engine_draft_name(const struct engine *engine, uint32_t *out_context_tokens);
void engine_get_packed(const struct engine *engine, struct executor_packed *out_packed);
/* As executor_keep(). Any thread, one at a time, until engine_close(). */
int engine_keep(const struct engine *engine, const struct executor_keep *terms,
                struct executor_packed *out_kept, struct error *err);
const char *engine_numerics_id(const struct engine *engine);
/* 64 hex digits: identity of the loaded version (DESIGN section 6). */
const char *engine_weights_digest(const struct engine *engine);

enum {
    ENGINE_MAX_STOP_STRINGS = 4,
    ENGINE_MAX_STOP_BYTES = 256,
    ENGINE_MAX_CHOICES = 8,
    ENGINE_MAX_BAD_WORDS = 2048, /* token sequences: two per text of the protocol */
    ENGINE_MAX_BAD_WORD_IDS = 1024,
    ENGINE_SCORE_ROWS = 32,       /* prompt rows per step whose log-probabilities are taken */
    ENGINE_DRAFT_ROWS = 32,       /* drafted tokens per step, over all sequences */
    ENGINE_MAX_DRAFT_TOKENS = 16, /* and for one sequence */
};

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,    /* end-of-sequence token, stop string or stop id */
    FINISH_LENGTH,  /* max_tokens */
    FINISH_CONTEXT, /* no more than the context (or max_total_tokens) leaves, which is less */
    FINISH_CANCELLED,
    FINISH_DEADLINE, /* expired in queue, prefill or decode: DEADLINE_EXCEEDED on the wire */
    FINISH_ERROR,    /* event carries the error */
};

/* Tokens that may not be generated in this order: where a choice's generated tokens end with all
 * but the last of them, the last one cannot be drawn. */
struct engine_bad_word {
    const uint32_t *ids;
    uint32_t n_ids;  /* ≥ 1 */
    uint32_t i_text; /* which sampling.bad_words it spells; for error messages */
};

struct engine_sampling {
    float temperature; /* 0 = greedy */
    uint32_t top_k;    /* 0 = off */
    float top_p, min_p, typical_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed; /* always resolved before submit */
    const struct sample_bias *logit_bias;
    uint32_t n_logit_bias;
    const uint32_t *allowed_ids; /* n 0: all; repeats are allowed */
    uint32_t n_allowed_ids;
    const struct engine_bad_word *bad_words;
    uint32_t n_bad_words;
    bool watermark; /* sample.h */
    uint32_t n;     /* choices, 1..8 */
};

struct engine_stopping {
    uint32_t max_tokens; /* ≥ 1; cut to what the context leaves */
    uint32_t min_tokens; /* end-of-sequence and stops are masked before */
    const char *const *stop;
    uint32_t n_stop;
    const uint32_t *stop_token_ids;
    uint32_t n_stop_token_ids;
    bool include_stop, ignore_eos;
};

/* Who drafts tokens that the model verifies, several in one step. It never changes an answer. */
enum engine_drafter {
    ENGINE_DRAFTER_DEFAULT, /* as the engine was opened */
    ENGINE_DRAFTER_NONE,
    ENGINE_DRAFTER_NGRAM, /* prompt lookup: what followed the last tokens earlier in the sequence */
    ENGINE_DRAFTER_MODEL, /* the draft model that the engine was opened with */
};

struct engine_speculate {
    enum engine_drafter drafter;
    uint32_t max_draft_tokens; /* for one sequence in a step; 0: the engine's number */
};

/* A choice's tokens generated earlier, elsewhere: replayed through path D, counted as generated,
 * not emitted again. Stop strings are looked for behind the text given already only, so that those
 * in force now may be others than those in force then. */
struct engine_resume {
    const uint32_t *ids;
    uint32_t n_ids;
    uint32_t n_text_bytes; /* text already given to the client */
    bool finished;         /* it ended then: nothing more is generated */
};

/* Arrays and strings are borrowed for the call. Fill with engine_request_init() first. */
struct engine_request {
    const uint32_t *prompt_ids;
    uint32_t n_prompt_ids; /* ≥ 1 */
    struct engine_sampling sampling;
    struct engine_stopping stopping;
    struct engine_speculate speculate;
    bool want_logprobs;
    uint32_t n_top_logprobs; /* ≤ 20, of generated and prompt tokens */
    bool want_prompt_logprobs;
    uint32_t n_prompt_logprobs_known; /* of them: not to be given (again); a resume */
    bool return_full_text;            /* the prompt's text comes before each choice's */
    bool keep_special_tokens;         /* text includes special tokens */
    int32_t priority;                 /* higher runs first; 0 = normal */
    int64_t deadline_ns;              /* CLOCK_MONOTONIC; 0 = none */
    int64_t arrived_ns; /* CLOCK_MONOTONIC: its place among equals; 0 = when it is submitted */
    const char
        *cache_salt;    /* identity + salt: prefix blocks are shared only among equals; NULL = "" */
    const char *caller; /* fairness key; NULL = "" */
    const struct engine_resume *resume; /* [sampling.n] or NULL */
    uint64_t user_data;                 /* returned in every event */
};

void engine_request_init(struct engine_request *request);

/* Longest sequence this engine takes, prompt and answer: the model's, or what its KV pool holds. */
uint32_t engine_context_tokens(const struct engine *engine);

/* Checks everything against the model and the limits; the error names the field ("sampling.top_p:
 * …"). RESOURCE_EXHAUSTED (reason QUEUE_FULL, retry_after_ms set) where the queue is full or the
 * predicted wait passes the deadline (reason DEADLINE_UNREACHABLE); INVALID_ARGUMENT with reason
 * CONTEXT_TOO_LONG where the prompt does not fit, INPUT_TOO_LONG and TOTAL_TOO_LONG beyond
 * max_input_tokens and max_total_tokens (a resume, taken once, is not refused for these);
 * FAILED_PRECONDITION with reason NO_DRAFT_MODEL where a drafter is asked for that there is not;
 * UNAVAILABLE while draining. *out_id is unique for the engine's life. */
int engine_submit(struct engine *engine, const struct engine_request *request, uint64_t *out_id,
                  struct error *err);

/* Takes effect within one step wherever the request is; unknown ids are ignored (it may have just
 * ended). */
void engine_cancel(struct engine *engine, uint64_t id);

/* Changes a running request; -1 / false leaves a part as it is. NOT_FOUND where it ended. New stop
 * strings are looked for in all text that is not released yet, and in none that is. */
struct engine_update {
    int64_t max_tokens;
    bool end_where_it_is; /* a max_tokens below what is generated ends it now; else it is refused */
    bool set_priority;
    int32_t priority;
    bool replace_stop;
    const char *const *stop; /* borrowed for the call */
    uint32_t n_stop;
};
int engine_update(struct engine *engine, uint64_t id, const struct engine_update *update,
                  struct error *err);

/* Back-pressure: a paused request keeps its KV but takes no step until resumed. */
void engine_pause(struct engine *engine, uint64_t id, bool paused);

struct engine_logprob {
    uint32_t id;
    float logprob;
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_MAX_TOP];
    float top_logprobs[SAMPLE_MAX_TOP];
};

struct engine_usage {
    uint32_t n_prompt_tokens, n_generated_tokens, n_cached_tokens, n_preemptions;
    uint32_t n_drafted_tokens, n_accepted_tokens; /* accepted ones are generated ones */
    int64_t queue_ns, prefill_ns, decode_ns;
};

/* In this order. STARTED: before the request's first step runs. PROMPT: log-probabilities of prompt tokens, as the prompt is computed; comes
 * before the first tokens. */
enum engine_event_type {
    ENGINE_EVENT_STARTED,
    ENGINE_EVENT_PROMPT,
    ENGINE_EVENT_TOKENS,
    ENGINE_EVENT_FINISHED
};

/* One event of one choice. Pointers live until the next engine_read_events call with the same
 * reader buffer. */
struct engine_event {
    enum engine_event_type type;
    uint64_t id, user_data;
    uint32_t choice;
    const uint32_t *ids; /* generated in this event, in order */
    uint32_t n_ids;
    uint32_t n_released; /* of all ids of this choice so far: how many have their text out (stop and
                            UTF-8 hold-back) */
    const uint32_t *text_shares; /* [n_text_shares] bytes of `text` of each id released since the
                                    last event, in order; at least as many as are new */
    uint32_t n_text_shares;
    const char *text; /* complete UTF-8 that n_released brought, not NUL-terminated */
    uint32_t n_text_bytes;
    const struct engine_logprob *logprobs; /* [n_ids] or NULL; PROMPT: of n_ids prompt tokens */
    uint32_t first_prompt_token;           /* PROMPT: which one the first belongs to */
    enum finish_reason reason;             /* FINISHED */
    const char *matched_stop;              /* FINISHED by a stop string, else NULL */
    int64_t matched_stop_id;               /* FINISHED by a token id, else -1 */
    bool last; /* FINISHED: of the request's last choice; usage is valid */
    struct engine_usage usage;
    int status; /* FINISH_ERROR: enum status */
    const char *message;
};

struct engine_event_buffer; /* a reader's own memory for events */
int engine_event_buffer_create(struct engine_event_buffer **out_buffer, struct error *err);
void engine_event_buffer_destroy(struct engine_event_buffer *buffer);

/* Takes all events there are. Returns their number (0: none); *out_events is borrowed from `buffer`
 * until the next call. Tokens of one choice that piled up since the last read are one event. Meant
 * for one reader; several need their own lock. */
size_t engine_read_events(struct engine *engine, struct engine_event_buffer *buffer,
                          const struct engine_event **out_events);

struct engine_stats {
    uint32_t n_queued, n_running, n_paused;
    uint32_t n_ready; /* of them, those that should be getting on: progress_counter standing still
                         while there are such is a stall */
    uint32_t n_blocks, n_blocks_free,
        n_blocks_cached; /* cached blocks are free to take: free = unused + cached */
    uint64_t n_steps, n_decode_steps, n_decode_rows, n_prefill_rows;
    uint64_t n_decode_active; /* Σ over decode steps of requests that could decode: mean batching =
                                 n_decode_rows / n_decode_active */
    uint64_t n_mixed_steps;   /* with prompt rows and generated ones */
    /* All rows of steps by the path they took (docs/architecture.md, numerics contract): generated
     * ones D, prompt ones P; of a mixed step all P where that was asked for. */
    uint64_t n_path_d_rows, n_path_p_rows;
    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
    /* n_submitted = n_finished + n_cancelled + n_expired + those that live; n_refused ones were
     * never taken. */
    uint64_t n_submitted, n_finished, n_cancelled, n_expired, n_refused;
    uint64_t n_generated_tokens, queued_prompt_tokens; /* the latter wait for prefill */
    uint64_t n_drafted_tokens, n_accepted_tokens;
    uint64_t n_draft_rows;         /* tokens that the draft model computed, */
    uint64_t n_draft_found;        /* and those that it had from another sequence; */
    int64_t draft_ns;              /* time it took, which the steps' times hold too */
    int64_t prefill_ns, decode_ns; /* time of steps with and without prompt rows */
    uint64_t n_ahead;              /* steps whose inputs were made while the one before ran */
    /* Where a device works by itself: steps without prompt rows that followed another step at once,
     * and the time from that one's tokens until they were queued: the device had nothing to do. */
    uint64_t n_between;
    int64_t between_ns;
    uint64_t graph_bytes;      /* of a GPU that captured steps have taken by now */
    uint64_t progress_counter; /* layers finished, also of the draft model */
    int64_t last_step_ns;
};
/* Any thread; never waits for the engine. */
void engine_get_stats(const struct engine *engine, struct engine_stats *out_stats);

/* Refuses new requests from now on; running ones go on. engine_is_idle tells when all are done. */
void engine_drain(struct engine *engine);
bool engine_is_idle(const struct engine *engine);

/* 0 while the device works; else the error that ended it: the engine can only be closed. */
int engine_health(struct engine *engine, struct error *err);
