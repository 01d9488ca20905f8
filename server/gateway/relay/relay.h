/* relay.h: one request on its way through the server. The relay records every id that the worker
 * generated, because a resume needs them. The relay keeps released text until the client takes it,
 * and ends once. The relay knows no call: its frames go to a sink (relay_sink.h), which may change
 * while the request runs. Reference counted; lock inside; any thread.
 *
 * Files: relay.c (life), record.c (reports of the worker), upstream.c (frames to the worker). The
 * client's side: relay_delivery.c (frames to the client), relay_client.c (sink and client
 * commands).
 *
 * A relay knows neither the replicas nor the dispatcher. A function that finds that the request
 * must move or leave its worker returns so, and the dispatcher acts.
 *
 * Back-pressure: a frame holds all that is ready, so a slow reader gets bigger messages, never a
 * longer queue. The sequence is paused in the worker when pending and in-flight data reach three
 * quarters of max_pending_bytes or max_pending_tokens. The sequence continues when half of the
 * limit is left. A reader that takes no message for slow_reader_ms is ended (dispatch_abort), even
 * if only the end is missing.
 *
 * Reattach: a message that flow control took may still be lost on its way. Therefore a request
 * with a reattach window holds its last sent data, up to half of max_replay_bytes. A reattaching
 * client names the tokens that it has. After a lost connection nothing is dropped. The sequence
 * runs on until held and ready data together reach max_replay_bytes. A request that finished
 * well is kept for the window after its end, because the client may have missed the end. A
 * request that failed or was cancelled is not kept. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "server/gateway/base/fingerprint.h"
#include "server/gateway/base/meter.h"
#include "server/gateway/relay/registry.h"
#include "sluice/v1/inference.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct awake_clock;
struct counters;
struct gateway_limits;
struct link;
struct meters;
struct relay_sink;
struct rpc_stream;

/* After three replica losses in a row without a new token the request ends: the request may be
 * the cause. Only losses while the request was in a step count. A worker may also die before it
 * reports the step. Therefore five losses in a row end the request in any case. Losses while the
 * request is paused do not count. */
enum { RELAY_MAX_CHOICES = 8, RELAY_MAX_STEP_LOSSES = 3, RELAY_MAX_LOSSES = 5 };
/* Sizes with the terminating NUL. */
enum { CALLER_BYTES = 129, REQUEST_ID_BYTES = 129 };

/* Progress of the request at its worker. */
enum relay_stage {
    RELAY_SENT,     /* the worker has not answered */
    RELAY_ACCEPTED, /* the request is in the engine's queue */
    RELAY_IN_STEPS, /* the request is or was in a step of the engine */
};

/* Reasons for which a sequence is paused at its worker. The sequence continues when none is
 * left. */
enum relay_pause {
    RELAY_PAUSE_PENDING = 1, /* too many bytes wait for the client */
    RELAY_PAUSE_CLIENT = 2,  /* the client asked for the pause */
    RELAY_PAUSE_TOKENS = 8,  /* too many tokens wait for the client */
    RELAY_PAUSE_REPLAY = 4,  /* no client is attached and the replay buffer is full */
};

struct relay_ids {
    uint32_t *ids; /* owned */
    size_t n, capacity;
};

/* A run of ids and text of one kind. The run goes on to the begin of the next. */
struct relay_run {
    size_t begin_id;     /* index of its first id */
    uint64_t begin_byte; /* offset of its text from the choice's first byte */
    Sluice__V1__PartKind kind;
};

/* The record of a choice, for a resume or a whole answer, and how much of it was sent. Text and
 * logprobs begin at id `n_held`. */
struct relay_choice {
    struct relay_ids generated; /* every id from the worker, released or not */
    struct relay_ids text_ends; /* [n_released] end of each id's text, as an offset from the
                                 * choice's first byte */
    size_t n_released;
    size_t n_sent;                  /* ids that are released and in a message for the client */
    size_t n_held;                  /* text and logprobs of the ids before n_held are dropped */
    uint64_t text_bytes, text_sent; /* bytes released, bytes sent; both from the choice's first
                                     * byte */
    uint64_t text_held;             /* offset of the first byte of `text` */
    struct strbuf text;             /* released text from text_held on */
    Sluice__V1__TokenLogprob **logprobs; /* log-probabilities of the ids from n_held on; owned */
    size_t n_logprobs, logprobs_capacity;
    struct relay_run *runs; /* owned; none: all is content. Those before n_held are dropped */
    size_t n_runs, runs_capacity;
    size_t sent_bytes;    /* bytes that were sent and are held for a reattach */
    bool has_logprob_sum; /* from the worker's last report */
    double logprob_sum;
    Sluice__V1__Finished *finished; /* owned; NULL until the worker reported the end; usage and
                                     * receipt are moved to the relay */
    bool finished_sent;
};

/* State that all relays of a server share. Outlives them. */
struct relay_shared {
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct awake_clock *clock;
    struct meters *meters;
    struct registry registry;    /* the live requests */
    _Atomic uint64_t n_detached; /* requests that wait for their client to reattach */
    _Atomic bool leaving;        /* the server ends: no request waits for a reattach any more */
};

/* Where a request runs: its link, and the link's stream at the time of the submit, both
 * retained. All zero: the request is at no replica. replicas/ fills and releases a seat. */
struct relay_seat {
    struct link *link;
    struct rpc_stream *stream;
    uint64_t id; /* id of the request on that stream */
};

struct relay {
    _Atomic uint32_t n_refs;
    struct relay_shared *shared;
    bool whole;                           /* the RPC is Complete: one message at the end */
    Sluice__V1__GenerateRequest *request; /* owned */
    char caller[CALLER_BYTES];
    char request_id[REQUEST_ID_BYTES];
    char model[65], version[65];
    /* Default sampling of the version; a resume repeats it. No field is set: the version has
     * none. */
    Sluice__V1__DefaultSampling default_sampling;
    uint64_t seed;
    int64_t template_time_ns; /* time for the chat template, in ns since the epoch; a resume
                               * reuses it */
    int64_t waits_ns;         /* awake_ns when the wait for a replica began */
    uint64_t wait_round;      /* under the replicas' lock: round of the request in the waiting list
                               * (waiting.c); 0: it has not waited yet */
    int64_t deadline_ns;      /* INT64_MAX: none */
    _Atomic int32_t priority; /* from the request or its last update */
    bool turned_away;         /* under the lock: a replica refused the request once because its
                               * queue was full */
    int64_t headers_due_ns;   /* clock_now_ns() at which the client receives headers while the
                               * request waits here. 0: not planned; INT64_MAX: sent */
    bool admitted;            /* dispatch.c: the request has passed the admission check */
    uint32_t window_ms;       /* reattach window; 0: none */
    struct relay *next_waiting; /* in dispatch->waiting; under the replicas' lock */
    struct relay *next_lost;    /* in the lost link's list, until relay_on_lost */

    pthread_mutex_t lock;
    struct request_meter meter;
    struct relay_sink *sink; /* retained; NULL while no client is attached */
    struct relay_seat seat;
    struct relay_choice choices[RELAY_MAX_CHOICES];
    uint64_t max_ids;   /* highest token limit that a choice ever had */
    uint32_t n_choices; /* choices that the worker generates */
    /* Choices that are sent, and their order: the client's choice i is choices[order[i]]. If
     * fewer are sent than generated (best_of), nothing is sent until all have ended and are
     * ranked. */
    uint32_t n_answers, order[RELAY_MAX_CHOICES];
    Sluice__V1__PromptInfo *prompt_info; /* owned; always with prompt_token_ids; holds only the
                                          * prompt log-probabilities that were not sent */
    uint32_t n_prompt_logprobs;          /* entries received from the worker */
    Sluice__V1__Usage *usage;            /* usage and receipt are owned; they are sent with the
                                          * last choice's end */
    Sluice__V1__Receipt *receipt;
    bool prompt_info_sent, end_sent;
    uint64_t credit_tokens; /* tokens that may be sent in all; UINT64_MAX: no limit */
    bool more_items;        /* the step frame in progress has more items of this request */
    bool no_more_frames;    /* the client's stream is half-closed: neither credit nor resume can
                             * come */
    uint32_t next_choice;   /* choice that is tried first for the next message */
    char numerics_id[128];  /* arithmetic of the first worker with a result */
    char fingerprint[FINGERPRINT_BYTES]; /* name of that arithmetic and of the weights */
    bool numerics_changed;
    uint32_t n_resumes;
    enum relay_stage stage;    /* at the worker that has the request now */
    uint64_t n_at_loss;        /* tokens at the last replica loss */
    uint32_t n_losses;         /* replica losses in a row without a new token */
    uint32_t n_step_losses;    /* those of n_losses while the request was in a step */
    uint32_t n_other_versions; /* versions that were chosen after the first */
    int64_t lost_ns;           /* awake_ns when the replica was lost; 0: no replica was lost */
    int64_t refused_ns;        /* clock_now_ns() when a replica refused the resume for lack of a
                                * place; 0: never */
    int64_t resumed_lost_ns;   /* lost_ns of a resume that the new replica has not yet accepted;
                                * 0: none */
    int64_t first_token_ns;    /* time of the first token to the client (Complete: from the
                                * worker); 0: none yet */
    size_t pending_bytes;      /* bytes recorded and not yet in a message */
    size_t in_flight_bytes;    /* bytes in a message that flow control has not taken yet */
    size_t in_flight_tokens;
    int64_t put_ns;        /* awake_ns when that message was handed over; 0: nothing is in flight */
    size_t shared_bytes;   /* pending bytes that were reported to the sink */
    unsigned pauses;       /* bits of enum relay_pause */
    int64_t still_ns;      /* idle_client.c: awake_ns since when the client is idle; 0: the
                            * client is not idle */
    uint64_t still_n_sent; /* tokens sent at still_ns */
    int64_t detached_ns;   /* awake_ns since when no client is attached; 0: a client is attached */
    bool forgotten;        /* the request may not be reattached */
    bool counted;
    bool ended;           /* the outcome is fixed; pending data is sent before the end */
    bool closed;          /* removed from the registry */
    struct error outcome; /* status 0: OK */
};

/* The parameters of a new request. */
struct relay_params {
    const Sluice__V1__GenerateRequest *request; /* copied */
    const char *caller;                         /* copied */
    const struct trace_context *trace;          /* copied; made by trace_accept */
    int64_t deadline_ns;                        /* clock_now_ns(); INT64_MAX: none */
    bool whole;                                 /* a Complete */
    bool streams;                               /* a GenerateStream */
};

/* *out_relay is owned: a single reference. Once the relay is registered, dispatch_close drops
 * that reference. */
int relay_create(struct relay_shared *shared, const struct relay_params *params,
                 struct relay **out_relay, struct error *err);
void relay_retain(struct relay *relay);
void relay_release(struct relay *relay);

/* --- from the worker --- */

/* Result of one item of a step frame: what the dispatcher does with the request at that worker. */
enum relay_progress {
    RELAY_GOES_ON,
    RELAY_OVER,
    RELAY_LEAVES,    /* the worker's report is invalid: call link_leave */
    RELAY_MOVES,     /* the worker ends and gives the request back: call relay_on_lost */
    RELAY_WAITS,     /* a resumed request found no place at the worker: call relay_on_refused */
    RELAY_ELSEWHERE, /* the worker's queue is too long for the request: call relay_on_turned_away */
    RELAY_LOST,      /* no item: the worker is lost; call relay_on_lost */
};
/* `more`: the frame's next item belongs to this request, too. */
enum relay_progress relay_on_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                  bool more);

/* The functions below take the request off its worker. The caller releases *out_seat
 * (link_release_seat). */
enum relay_next {
    RELAY_NEXT_NOTHING, /* the request has ended */
    RELAY_NEXT_REPLICA, /* another replica should be tried */
    RELAY_NEXT_END,     /* the request ends with *err */
};
/* The replica is lost. With `drained` the replica drains and gives the request back. */
enum relay_next relay_on_lost(struct relay *relay, bool drained, struct relay_seat *out_seat,
                              struct error *err);
/* The replica that should resume the request is full. The request tries again until the time for
 * a resume is over. */
enum relay_next relay_on_refused(struct relay *relay, struct relay_seat *out_seat);
/* The replica's queue is full; another replica's queue may be shorter. A request is turned
 * away only once. *err is this replica's refusal. */
enum relay_next relay_on_turned_away(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                     struct relay_seat *out_seat, struct error *err);
/* Takes the request off its worker for any other reason. */
struct relay_seat relay_leave_seat(struct relay *relay);
/* Counts a refusal by its reason. A refusal because the deadline is too near becomes
 * DEADLINE_EXCEEDED if no retry can meet the deadline. */
void relay_settle_refusal(const struct relay *relay, struct error *err);

/* --- the end --- */

/* Fixes the outcome (the first one counts). The answer ends after its pending messages.
 * dispatch/ending.h does the rest of an end. */
void relay_end(struct relay *relay, const struct error *outcome);

/* --- the client's side --- */

/* Makes this sink the relay's sink, and retains it. */
void relay_attach(struct relay *relay, struct relay_sink *sink);
/* True if this is the relay's sink now. */
bool relay_speaks_to(struct relay *relay, const struct relay_sink *sink);
/* Continues after the tokens that the client has, at this sink. The old sink's taken_over is
 * called. NOT_FOUND if the request cannot continue. FAILED_PRECONDITION if the request has no
 * window or holds too little. INVALID_ARGUMENT for impossible counts. */
int relay_reattach(struct relay *relay, struct relay_sink *sink,
                   Sluice__V1__ReceivedTokens *const *received, size_t n_received,
                   struct error *err);
/* Frames of a GenerateStream. NOT_FOUND if the request has ended. */
int relay_pause_by_client(struct relay *relay, bool paused, struct error *err);
int relay_credit(struct relay *relay, uint32_t n_tokens, struct error *err);
int relay_update(struct relay *relay, const Sluice__V1__UpdateFrame *update, struct error *err);
/* The sink's stream is half-closed: no frame can come any more. A request that waits for a frame
 * ends. Does nothing if the relay has another sink. */
void relay_no_more_frames(struct relay *relay, const struct relay_sink *sink);
/* Reports to the sink that the request was accepted and is queued. No lock is held. */
void relay_tell_accepted(struct relay *relay);
/* Reports to the sink that a frame may be ready. No lock is held. */
void relay_tell(struct relay *relay);

/* Fills the facts of the end for the meter, except the status, which the caller sets. Borrows
 * from the relay. */
void relay_fill_end(const struct relay *relay, struct meter_end *out_end);
/* Returns the status that the request ended with. */
int relay_outcome(struct relay *relay);
/* Returns the tokens that were or will be sent. */
uint64_t relay_n_released(struct relay *relay);
/* Returns the time since when the request has had no replica. If no loss is recorded, records
 * awake_ns as that time. */
int64_t relay_lost_since(struct relay *relay, int64_t awake_ns);

/* True if the client has taken no message for slow_reader_ms. Bytes of a message that trickle do
 * not count. */
bool relay_is_slow(struct relay *relay, int64_t awake_ns);
