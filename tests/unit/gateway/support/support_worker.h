/* support_worker.h: a worker with the real Serve protocol over a real unix socket. Its tokens
 * depend on prompt, seed, choice and index alone, so every test knows the tokens that a client must
 * receive. The fields under "script" set its behaviour; the counters record its input. Any thread;
 * lock inside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "sluice/worker/v1/worker.pb-c.h"

struct fake_session;
struct rpc_server;

enum { FAKE_MAX_CHOICES = 8, FAKE_TEXT_BYTES = 4096, FAKE_SEEDS = 256 };

struct fake_worker {
    char socket[108], replica_id[32];
    uint64_t epoch;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_server *server; /* NULL while dead */
    struct fake_session *sessions;
    pthread_t engine;
    bool stopping, draining;

    /* Script; written under the lock, or before the start. */
    uint32_t step_us; /* pause between steps */
    uint32_t tokens_per_step;
    uint32_t hold;       /* ids held back before the worker releases them */
    uint32_t text_bytes; /* bytes per token, at least as many as its number has */
    uint32_t stop_after; /* the worker makes no more than these tokens per choice */
    int fail_status;     /* not 0: each request fails with this status after fail_after tokens */
    uint32_t fail_after;
    uint32_t fail_prompt; /* not 0: only requests with a prompt of this many ids fail */
    const char *fail_reason;
    uint32_t bad_choice;     /* not 0: the worker answers for this choice */
    bool talks_on;           /* the first choice ends early, and continues after its end */
    bool idle_text;          /* after stop_after tokens the worker sends only text */
    uint32_t more_tokens;    /* tokens made beyond max_tokens */
    bool deaf;               /* the worker ignores pauses */
    uint64_t hello_epoch;    /* not 0: epoch in the worker's hello */
    uint32_t heartbeat_ms;   /* announced and real interval; 0: no heartbeats */
    bool hangs;              /* the engine makes no tokens, though layers may be finished */
    bool layers;             /* with a hanging engine: the worker still reports progress */
    bool stopped;            /* as by SIGSTOP: the worker neither reads nor writes */
    uint32_t max_concurrent; /* limit in the worker's hello; 0: none */
    char numerics_id[32];
    uint32_t late_credit; /* tokens that the worker sends without credit, as an engine may */
    bool split_ends;      /* ends come in items of their own, after all tokens, as a worker's do */
    bool accepts;         /* reports that a submit was queued */
    bool starts;          /* reports the prompt before the first token, as at the first step */
    bool no_shares;       /* does not report the text bytes of each id */

    /* Seen since creation; tests read this while the worker runs. */
    _Atomic unsigned n_hellos, n_submits, n_resumed, n_cancels, n_pauses, n_resumes, n_live,
        n_streams_ended, n_credits, n_updates, n_texts;
    _Atomic uint64_t seeds[FAKE_SEEDS]; /* seeds of the last submits */
    _Atomic unsigned n_wrong; /* resumes that do not continue what was generated, ids used twice */
    _Atomic int64_t cancel_ns;
    _Atomic uint64_t deadline_remaining_ns; /* deadline of the last submit; 0: none */
    char last_numerics_id[32];              /* numerics id of the last resume */
    uint64_t progress;                      /* in layers, as a worker reports it */
    int64_t beat_ns;
};

/* Fills in the defaults: epoch 1, 1 ms steps, one token each, nothing held. */
void fake_worker_init(struct fake_worker *worker, const char *dir, const char *replica_id);
void fake_worker_fini(struct fake_worker *worker);
void fake_worker_start(struct fake_worker *worker);
/* Closes every stream at once, as a killed process does. The worker may be started again. */
void fake_worker_kill(struct fake_worker *worker);
/* Sends Draining on every stream and refuses new requests. `end`: gives back the running requests.
 */
void fake_worker_drain(struct fake_worker *worker, bool end);

/* Changes the script. */
void fake_worker_stop(struct fake_worker *worker, bool stopped);
void fake_worker_hang(struct fake_worker *worker, bool hangs, bool layers);
void fake_worker_stop_after(struct fake_worker *worker, uint32_t n_tokens);
/* Waits up to 10 s until a counter has reached n. */
bool fake_worker_wait(struct fake_worker *worker, const _Atomic unsigned *counter, unsigned n);
unsigned fake_worker_read(struct fake_worker *worker, const _Atomic unsigned *counter);
/* Waits up to 10 s until the worker carries exactly n requests. */
bool fake_worker_wait_live(struct fake_worker *worker, unsigned n);

/* Returns a token. Prompts of text are one id per byte; other prompts are the ids of "other". */
uint32_t fake_token(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                    uint32_t index);
/* Sum over the first n tokens of a choice, in order. */
double fake_logprob_sum(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                        uint32_t n);
/* out_text holds FAKE_TEXT_BYTES. */
void fake_text(uint32_t id, uint32_t n_bytes, char *out_text);
