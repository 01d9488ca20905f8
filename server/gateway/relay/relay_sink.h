/* relay_sink.h: where a relay's answer goes: a Generate or Complete call (call_sink.c), or one of
 * the requests of a GenerateStream (generate_stream.c). A sink is embedded in what owns the call,
 * and reference counted; the relay holds one reference while it is attached. Any thread.
 *
 * The relay tells a sink that something is ready; the sink asks with relay_deliver() when its call
 * can take a message. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct error;
struct relay;
struct relay_sink;

struct relay_sink_ops {
    const char *name;
    /* There may be something to take. No lock is held. */
    void (*ready)(struct relay_sink *sink);
    /* Optional: the request was accepted and waits for its turn; the response headers may go out.
     * No lock is held. */
    void (*accepted)(struct relay_sink *sink);
    /* The client takes no message: end what this sink stands for, overtaking what is in flight. No
     * lock is held. */
    void (*cut_off)(struct relay_sink *sink, const struct error *status);
    /* Another client connection has taken the request over. No lock is held. */
    void (*taken_over)(struct relay_sink *sink, const struct error *why);
    /* Optional: bytes of this relay that wait changed by so much. Returns whether all that wait at
     * the sink's call are too many. Under the relay's lock. */
    bool (*pending)(struct relay_sink *sink, int64_t more_bytes);
    /* Whoever owns the sink's call looks itself for a client that takes no message. */
    bool watched;
    /* The last reference is gone. */
    void (*destroy)(struct relay_sink *sink);
};

struct relay_sink {
    const struct relay_sink_ops *ops;
    _Atomic uint32_t n_refs;
};

/* One reference. */
void relay_sink_init(struct relay_sink *sink, const struct relay_sink_ops *ops);
void relay_sink_retain(struct relay_sink *sink);
void relay_sink_release(struct relay_sink *sink); /* NULL is accepted */

enum relay_frame_kind {
    RELAY_FRAME_NONE, /* the end alone */
    RELAY_FRAME_PROMPT_INFO,
    RELAY_FRAME_TOKENS,
    RELAY_FRAME_FINISHED,
    RELAY_FRAME_WHOLE,
};

/* What a relay says next. Everything is borrowed for the callback. */
struct relay_frame {
    enum relay_frame_kind kind;
    Sluice__V1__PromptInfo prompt_info;
    Sluice__V1__Tokens tokens;
    Sluice__V1__Finished finished;
    const Sluice__V1__CompleteResponse *whole;
    bool last;                 /* nothing follows */
    const struct error *error; /* last: how it ended, or NULL for well */
    uint64_t n_tokens_sent;    /* with an error */
};

enum relay_delivery { RELAY_NOTHING, RELAY_PUT, RELAY_PUT_LAST };

/* Hands the next frame, if there is one, to `put`, which packs it. What was put before has been
 * taken by the client's flow control. Nothing where the relay has another sink by now. Called with
 * the lock of the sink's call held: `put` runs under the relay's. */
typedef void relay_put_fn(void *ctx, const struct relay_frame *frame);
enum relay_delivery relay_deliver(struct relay *relay, const struct relay_sink *sink,
                                  relay_put_fn *put, void *ctx);
/* Only says that what was put before has been taken. */
void relay_taken(struct relay *relay, const struct relay_sink *sink);
/* Looks again whether it must stand still for what waits at the sink's call. */
void relay_recheck(struct relay *relay);
