/* engine.h: the engine's public interface, an embeddable C library. An engine serves one model on
 * one device group: load → tokenize → schedule → step → emit.
 *
 *     engine_open → engine_submit … engine_read_events … engine_close
 *
 * Threads: the owner opens and closes; every other call may come from any thread. The engine has a
 * loop thread of its own. Submit copies all inputs; events are copied out; nothing is shared
 * afterwards. The loop handles token ids, not text. Callers render templates, encode and decode on
 * their own threads with tokenizer.h, detokenizer.h and chat_templates.h. These headers,
 * engine_config.h (settings of engines and requests) and engine_stats.h (figures) are part of this
 * contract. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "engine/format/checkpoint_files.h"
#include "engine/format/default_sampling.h"
#include "engine/template/chat_template.h"
#include "engine/template/chat_templates.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "kernels/sample.h"

struct engine;
struct error;

/* Reads the checkpoint, packs or maps its weights, plans memory and starts the loop thread.
 * *out_engine is owned. INVALID_ARGUMENT names a field, or (reason MODEL_FILE_INVALID) the fault of
 * the file. UNIMPLEMENTED names an unknown architecture or tensor type. RESOURCE_EXHAUSTED
 * (DEVICE_MEMORY): too little memory. CANCELLED: cfg->cancel_load. */
int engine_open(const struct engine_config *cfg, struct engine **out_engine, struct error *err);
/* Ends all requests without further events and frees everything. NULL is accepted. */
void engine_close(struct engine *engine);
/* Refuses new requests from now on. Running requests continue until the engine is idle. */
void engine_drain(struct engine *engine);
bool engine_is_idle(const struct engine *engine);
/* 0 while the device works; else the error that stopped the engine, which can then only be
 * closed. */
int engine_health(struct engine *engine, struct error *err);

/* --- facts: immutable, borrowed until close --- */

const struct tokenizer *engine_tokenizer(const struct engine *engine);
/* True if a model with this tokenizer has markers of reasoning. */
bool engine_tells_reasoning(const struct tokenizer *tok);
/* The model's chat templates by name; never NULL, maybe empty. */
const struct chat_templates *engine_chat_templates(const struct engine *engine);
/* The draft model's file name and longest sequence; NULL and 0 without a draft model. */
const char *engine_draft_name(const struct engine *engine, uint32_t *out_context_tokens);
/* "cpu/avx512/…": equal ids promise equal bits. */
const char *engine_numerics_id(const struct engine *engine);
/* 64 hex digits: identity of the model file (docs/use/models.md). */
const char *engine_weights_digest(const struct engine *engine);
/* Longest sequence, prompt and answer: the model's limit, cut to what the KV pool holds. */
uint32_t engine_context_tokens(const struct engine *engine);

/* --- requests --- */

/* Tokens that an earlier engine generated for a choice. They are replayed through path D and count
 * as generated, but are not emitted again. Stop strings match only behind the text that the client
 * has. */
struct engine_resume {
    const uint32_t *ids;
    uint32_t n_ids, n_text_bytes; /* n_text_bytes: text that the client has */
    bool finished;                /* the choice has ended: nothing is generated */
};

/* Arrays and strings are borrowed for the call. Initialise with engine_request_init(). */
struct engine_request {
    const uint32_t *prompt_ids;
    uint32_t n_prompt_ids; /* at least 1 */
    struct engine_sampling sampling;
    struct engine_stopping stopping;
    struct engine_speculate speculate;
    bool want_logprobs, want_prompt_logprobs;
    uint32_t n_top_logprobs;          /* ≤ SAMPLE_MAX_TOP, for generated and prompt tokens */
    uint32_t n_prompt_logprobs_known; /* the first ones are not emitted again (resume) */
    /* emit the prompt's text first; emit special tokens' text */
    bool return_full_text, keep_special_tokens;
    enum engine_reasoning reasoning;
    /* A chat template whose markers count before the model's; NULL: the model's. */
    const char *reasoning_template;
    int32_t priority;       /* higher runs first; 0: normal */
    int64_t deadline_ns;    /* CLOCK_MONOTONIC; 0: none */
    int64_t arrived_ns;     /* CLOCK_MONOTONIC: order of arrival; 0: the time of submit */
    const char *cache_salt; /* only requests with equal salts share prefix blocks; NULL: "" */
    const char *caller;     /* fairness key; NULL: "" */
    const struct engine_resume *resume; /* [sampling.n] or NULL */
    uint64_t user_data;                 /* returned in every event */
};
void engine_request_init(struct engine_request *request);

/* Checks the request against model and limits. Errors name the field ("sampling.top_p: …").
 * RESOURCE_EXHAUSTED: QUEUE_FULL (with retry_after_ms) or DEADLINE_UNREACHABLE (with the predicted
 * wait). INVALID_ARGUMENT: CONTEXT_TOO_LONG, INPUT_TOO_LONG, TOTAL_TOO_LONG (the last two are not
 * checked for a resume). FAILED_PRECONDITION: NO_DRAFT_MODEL. UNAVAILABLE while draining. *out_id
 * is unique. */
int engine_submit(struct engine *engine, const struct engine_request *request, uint64_t *out_id,
                  struct error *err);
/* Takes effect within one step. Unknown ids are ignored: the request may have ended. */
void engine_cancel(struct engine *engine, uint64_t id);
/* Back-pressure: a paused request keeps its KV blocks and takes no step until resumed. */
void engine_pause(struct engine *engine, uint64_t id, bool paused);

/* -1 and false leave a setting as it is. New stop strings apply to text that is not released
 * yet. */
struct engine_update {
    int64_t max_tokens;
    /* max_tokens below the generated tokens: true ends the request now, false is an error */
    bool end_where_it_is;
    bool set_priority, replace_stop;
    int32_t priority;
    const char *const *stop; /* borrowed for the call */
    uint32_t n_stop;
};
/* NOT_FOUND if the request has ended; other errors as engine_submit(). */
int engine_update(struct engine *engine, uint64_t id, const struct engine_update *update,
                  struct error *err);

/* --- events --- */

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,   /* end-of-sequence token, stop string or stop id */
    FINISH_LENGTH, /* max_tokens is reached */
    /* max_tokens was cut to the room in the context (or max_total_tokens), and is reached */
    FINISH_CONTEXT,
    FINISH_CANCELLED,
    FINISH_DEADLINE, /* passed in queue, prefill or decode: DEADLINE_EXCEEDED on the wire */
    FINISH_ERROR,    /* the event has the error */
};

struct engine_logprob {
    uint32_t id;
    float logprob;
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_MAX_TOP];
    float top_logprobs[SAMPLE_MAX_TOP];
};

/* Events of a choice come in this order. STARTED: before the request's first step. PROMPT:
 * log-probabilities of prompt tokens, while the prompt is computed. */
enum engine_event_type {
    ENGINE_EVENT_STARTED,
    ENGINE_EVENT_PROMPT,
    ENGINE_EVENT_TOKENS,
    ENGINE_EVENT_FINISHED
};

/* An event of a choice. Pointers are borrowed until the reader's next engine_read_events(). */
struct engine_event {
    enum engine_event_type type;
    uint64_t id, user_data;
    uint32_t choice;
    const uint32_t *ids; /* [n_ids] generated in this event, in order */
    uint32_t n_ids;
    /* ids of the choice so far whose text is released. Stop strings and incomplete UTF-8 hold text
     * back */
    uint32_t n_released;
    /* [n_text_shares] bytes of `text` per id released since the last event, in order; at least one
     * entry per new id */
    const uint32_t *text_shares;
    uint32_t n_text_shares, n_text_bytes;
    bool is_reasoning; /* text and ids that this event releases are reasoning */
    const char *text;  /* [n_text_bytes] complete UTF-8 of the released ids, not NUL-terminated */
    const struct engine_logprob *logprobs; /* [n_ids] or NULL; PROMPT: for n_ids prompt tokens */
    uint32_t first_prompt_token;           /* PROMPT: index of the first of these tokens */
    enum finish_reason reason;             /* set by FINISHED */
    const char *matched_stop;              /* FINISHED by a stop string, else NULL */
    int64_t matched_stop_id;               /* FINISHED by a token id, else -1 */
    uint32_t n_reasoning;                  /* FINISHED: ids of the choice that are reasoning */
    bool last;                             /* FINISHED: the request's last choice; usage is valid */
    struct engine_usage usage;
    int status; /* FINISH_ERROR: enum status, with its message */
    const char *message;
};

struct engine_event_buffer; /* memory for the events of one reader */
int engine_event_buffer_create(struct engine_event_buffer **out_buffer, struct error *err);
void engine_event_buffer_destroy(struct engine_event_buffer *buffer);

/* Takes all pending events and returns their number. *out_events is borrowed from `buffer` until
 * the next call. All tokens of a choice since the last read form one event. Reasoning and
 * content form events of their own; the first of these has all new ids. Only a single reader at
 * a time. */
size_t engine_read_events(struct engine *engine, struct engine_event_buffer *buffer,
                          const struct engine_event **out_events);
