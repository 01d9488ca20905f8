/* relay.h: one request on its way through the server. It records every id the worker generated (a
 * resume needs them), keeps what is released until the client takes it, and ends once. It knows no
 * call: what it has to say goes to a sink (relay_sink.h), which may change while it runs.
 * Reference counted; lock inside; any thread. The functions are in relay.c (life), record.c
 * (what came), relay_delivery.c (what goes out to the client), relay_client.c (its sink and frames)
 * and upstream.c (what goes up to the worker).
 *
 * A relay knows neither the replicas nor who dispatches it: where a function finds that the request
 * has to go elsewhere, or to leave its worker, it returns so, and the dispatcher does that.
 *
 * Back-pressure: a frame holds all that is ready, so a slow reader gets bigger messages, never a
 * longer queue; with more than max_pending_bytes or max_pending_tokens pending and in flight (three
 * quarters of them) the sequence is paused in the worker, and goes on when half of that has been
 * taken. A reader that takes no message for slow_reader_ms is ended (dispatch_abort), also when all
 * it misses is the end.
 *
 * Reattach: that a message was taken by flow control does not say that the client has it. A request
 * with a reattach window therefore holds what it sent last, up to half of max_replay_bytes; what a
 * client names as received when it reattaches is its acknowledgement. When the connection is lost
 * nothing is dropped any more, and the sequence runs on until what is held and what is ready
 * together are max_replay_bytes. A request that finished well is kept for the window after its end,
 * because the client may have missed the end. A request that failed or was cancelled is not kept.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/strbuf.h"
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

/* After three replica losses in a row without a new token the request ends: it may be what kills
 * the replicas. Only losses while the request was in a step count. A worker may also die before it
 * reports the step. Therefore five losses in a row end the request in any case. Losses while the
 * request is paused do not count. */
enum { RELAY_MAX_CHOICES = 8, RELAY_MAX_STEP_LOSSES = 3, RELAY_MAX_LOSSES = 5 };
/* With their terminators. */
enum { CALLER_BYTES = 129, REQUEST_ID_BYTES = 129 };

/* How far the request has come at its worker. */
enum relay_stage {
    RELAY_SENT,     /* the worker has not answered */
    RELAY_ACCEPTED, /* in the engine's queue */
    RELAY_IN_STEPS, /* a step of the engine has it, or had it */
};

/* Why a sequence is out of its worker's batch; all must be lifted. */
enum relay_pause {
    RELAY_PAUSE_PENDING = 1, /* the client does not take what is ready */
    RELAY_PAUSE_CLIENT = 2,  /* it asked so */
    RELAY_PAUSE_TOKENS = 8,  /* as PENDING, counted in tokens */
    RELAY_PAUSE_REPLAY = 4,  /* nobody listens and the replay buffer is full */
};

struct relay_ids {
    uint32_t *ids; /* owned */
    size_t n, capacity;
};

/* One choice: the record that a resume or a whole answer is made from, and what of it the client
 * has been given. Text and logprobs are held from `n_held` ids on. */
struct relay_choice {
    struct relay_ids generated; /* every id received, released or not */
    struct relay_ids text_ends; /* [n_released] where the text of each ends, from the first byte */
    size_t n_released;
    size_t n_sent;                  /* released and given to the client's stream */
    size_t n_held;                  /* ids before it have neither text nor logprobs here any more */
    uint64_t text_bytes, text_sent; /* released and sent, counted from the first byte */
    uint64_t text_held;             /* where `text` begins */
    struct strbuf text;             /* released */
    Sluice__V1__TokenLogprob **logprobs; /* per id; owned */
    size_t n_logprobs, logprobs_capacity;
    size_t sent_bytes;    /* sent and held */
    bool has_logprob_sum; /* as the worker said last */
    double logprob_sum;
    Sluice__V1__Finished *finished; /* owned; NULL until the worker said so; no usage, no receipt */
    bool finished_sent;
};

/* What all relays of a server share. Outlives them. */
struct relay_shared {
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct awake_clock *clock;
    struct meters *meters;
    struct registry registry;    /* the live requests */
    _Atomic uint64_t n_detached; /* requests that wait to be reattached */
    _Atomic bool leaving;        /* nothing new is begun, nothing waits to be reattached */
};

/* Where a request is: its link, and the link's stream at the time of the submit, both retained; all
 * zero: nowhere. The replicas' room fills it and lets go of it. */
struct relay_seat {
    struct link *link;
    struct rpc_stream *stream;
    uint64_t id; /* of the request on that stream */
};

struct relay {
    _Atomic uint32_t n_refs;
    struct relay_shared *shared;
    bool whole;                           /* Complete: one message at the end */
    Sluice__V1__GenerateRequest *request; /* owned */
    char caller[CALLER_BYTES];
    char request_id[REQUEST_ID_BYTES];
    char model[65], version[65];
    uint64_t seed;
    int64_t template_time_ns; /* since the epoch */
    int64_t waits_ns;         /* awake_ns at that time */
    uint64_t wait_round; /* under the replicas' lock: its place among its caller's that wait; 0:
                            it never waited */
    int64_t deadline_ns; /* INT64_MAX: none */
    _Atomic int32_t priority; /* as updated last */
    bool turned_away;         /* under its lock: once by a replica, for the length of its queue */
    int64_t headers_due_ns; /* clock_now_ns() at which the client hears that the request waits here;
                               0: it does not wait; INT64_MAX: the client has heard */
    bool admitted;          /* dispatch.c: the limits of its model were asked, once */
    uint32_t window_ms;     /* reattach; 0: none */
    struct relay *next_waiting; /* dispatch->waiting, under the replicas' lock */
    struct relay *next_lost;    /* of the link that lost it, until relay_on_lost */

    pthread_mutex_t lock;
    struct request_meter meter;
    struct relay_sink *sink; /* retained; NULL while nobody listens */
    struct relay_seat seat;
    struct relay_choice choices[RELAY_MAX_CHOICES];
    uint64_t max_ids;   /* of a choice: the most it was ever allowed */
    uint32_t n_choices; /* generated */
    /* Sent, and as which: the client's choice i is choices[order[i]]. Where fewer are sent than
     * generated (best_of) nothing is until all have ended and the best are known. */
    uint32_t n_answers, order[RELAY_MAX_CHOICES];
    Sluice__V1__PromptInfo *prompt_info; /* owned; with prompt_token_ids always, and of the prompt's
                                            log-probabilities those that were not sent */
    uint32_t n_prompt_logprobs;          /* received */
    Sluice__V1__Usage *usage;            /* owned, as the receipt; with the last choice's end */
    Sluice__V1__Receipt *receipt;
    bool prompt_info_sent, end_sent;
    uint64_t credit_tokens; /* that may be sent in all; UINT64_MAX: no limit */
    bool more_items;        /* of the step frame that is being taken apart */
    bool no_more_frames;    /* neither credit nor resume can come */
    uint32_t next_choice;   /* whose turn it is */
    char numerics_id[128];  /* of the first worker that had a result */
    bool numerics_changed;
    uint32_t n_resumes;
    enum relay_stage stage;    /* at the worker that has the request now */
    uint64_t n_at_loss;        /* tokens at the last replica loss */
    uint32_t n_losses;         /* replica losses in a row without a new token */
    uint32_t n_step_losses;    /* those of n_losses while the request was in a step */
    uint32_t n_other_versions; /* chosen for it after the first one */
    int64_t lost_ns;           /* awake_ns when its replica was lost; 0: not waiting */
    int64_t refused_ns;        /* when a replica had no place for it after that */
    int64_t resumed_lost_ns;   /* the same, of a resume that its replica may refuse yet */
    int64_t first_token_ns;    /* 0 until the first token left (Complete: came from the worker) */
    size_t pending_bytes;      /* recorded and not yet put into a message */
    size_t in_flight_bytes;    /* put into the message that flow control has not taken yet */
    size_t in_flight_tokens;
    int64_t put_ns;        /* awake_ns when that message was put; 0: nothing is in flight */
    size_t shared_bytes;   /* what the sink was told is pending */
    unsigned pauses;       /* enum relay_pause */
    int64_t still_ns;      /* idle_client.c: since when it is its client's turn; 0: it is not */
    uint64_t still_n_sent; /* tokens sent then */
    int64_t detached_ns;   /* awake_ns since when nobody listens; 0: somebody does */
    bool forgotten;        /* may not be reattached */
    bool counted;
    bool ended;           /* outcome is fixed; what is pending still goes out before it */
    bool closed;          /* off the registry */
    struct error outcome; /* status 0: well */
};

/* A request as it came. */
struct relay_params {
    const Sluice__V1__GenerateRequest *request; /* copied */
    const char *caller;                         /* copied */
    const struct trace_context *trace;          /* copied; as trace_accept made it */
    int64_t deadline_ns;                        /* clock_now_ns(); INT64_MAX: none */
    bool whole;                                 /* a Complete */
    bool streams;                               /* a GenerateStream */
};

/* *out_relay is owned (one reference, which dispatch_close drops once it is registered). */
int relay_create(struct relay_shared *shared, const struct relay_params *params,
                 struct relay **out_relay, struct error *err);
void relay_retain(struct relay *relay);
void relay_release(struct relay *relay);

/* --- from the worker --- */

/* One item of a step frame, and what it means for the request at that worker. */
enum relay_progress {
    RELAY_GOES_ON,
    RELAY_OVER,
    RELAY_LEAVES, /* what the worker said is wrong: link_leave is next */
    RELAY_MOVES,  /* the worker ends and will not finish it: relay_on_lost is next */
    RELAY_WAITS,  /* it was accepted long ago, and the worker has no place now: relay_on_refused */
    RELAY_ELSEWHERE, /* the worker's queue is too long for it: relay_on_turned_away */
    RELAY_LOST,      /* no item: the worker is lost; relay_on_lost is next */
};
/* `more`: the frame's next item is this request's, too. */
enum relay_progress relay_on_item(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                  bool more);

/* The functions below take the request off its worker: *out_seat is the caller's
 * (link_release_seat).
 */
enum relay_next {
    RELAY_NEXT_NOTHING, /* the request has ended */
    RELAY_NEXT_REPLICA, /* another replica is asked */
    RELAY_NEXT_END,     /* the request ends with *err */
};
/* Its replica is gone (or, `drained`, gives it back). */
enum relay_next relay_on_lost(struct relay *relay, bool drained, struct relay_seat *out_seat,
                              struct error *err);
/* The replica it was to go on at is full: it tries again until the time for a resume is over. */
enum relay_next relay_on_refused(struct relay *relay, struct relay_seat *out_seat);
/* Another replica's queue may be shorter: that is tried, once. *err is what this one said. */
enum relay_next relay_on_turned_away(struct relay *relay, const Sluice__Worker__V1__StepItem *item,
                                     struct relay_seat *out_seat, struct error *err);
/* Takes it off its worker for another reason. */
struct relay_seat relay_leave_seat(struct relay *relay);
/* Counts a refusal by its reason. A refusal for a deadline that no retry can meet either becomes
 * DEADLINE_EXCEEDED, which is what the client would hear in the end. */
void relay_settle_refusal(const struct relay *relay, struct error *err);

/* --- the end --- */

/* Fixes the outcome (the first one counts) and lets the answer end after what is pending. What else
 * an end brings with it: dispatch/ending.h. */
void relay_end(struct relay *relay, const struct error *outcome);

/* --- the client's side --- */

/* From now on the relay speaks to this sink. Retains it. */
void relay_attach(struct relay *relay, struct relay_sink *sink);
/* Whether this is its sink now. */
bool relay_speaks_to(struct relay *relay, const struct relay_sink *sink);
/* Goes on after what the client has, at this sink; the one it had hears taken_over. NOT_FOUND where
 * it can no more, FAILED_PRECONDITION where it has no window or holds too little,
 * INVALID_ARGUMENT for counts that cannot be. */
int relay_reattach(struct relay *relay, struct relay_sink *sink,
                   Sluice__V1__ReceivedTokens *const *received, size_t n_received,
                   struct error *err);
/* Frames of a GenerateStream. NOT_FOUND where the request has ended. */
int relay_pause_by_client(struct relay *relay, bool paused, struct error *err);
int relay_credit(struct relay *relay, uint32_t n_tokens, struct error *err);
int relay_update(struct relay *relay, const Sluice__V1__UpdateFrame *update, struct error *err);
/* No frame can come any more from the stream that the sink speaks to, if it still does: where the
 * request stands still for want of one, it ends. */
void relay_no_more_frames(struct relay *relay, const struct relay_sink *sink);
/* Tells the sink that the request was accepted and waits for its turn. No lock is held. */
void relay_tell_accepted(struct relay *relay);
/* Tells the sink that there may be something to take. No lock is held. */
void relay_tell(struct relay *relay);

/* What the books say of its end; the status is the caller's. Borrows from the relay. */
void relay_fill_end(const struct relay *relay, struct meter_end *out_end);
/* The status it ended with. */
int relay_outcome(struct relay *relay);
/* Tokens that are or will be sent. */
uint64_t relay_n_released(struct relay *relay);
/* Since when it waits for a replica: awake_ns where it did not. */
int64_t relay_lost_since(struct relay *relay, int64_t awake_ns);

/* Whether the client has taken no message for the configured time; bytes of one that trickle are
 * none. */
bool relay_is_slow(struct relay *relay, int64_t awake_ns);
