/* relay_sink.h: the destination of a relay's answer: a Generate or Complete call (call_sink.c), or
 * a request of a GenerateStream (generate_stream.c). A sink is embedded in the owner of the call
 * and reference counted. The relay holds one reference while the sink is attached. Any thread.
 *
 * The relay reports to the sink that a frame is ready. The sink calls relay_deliver() when its
 * call can take a message. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sluice/v1/inference.pb-c.h"

struct error;
struct relay;
struct relay_sink;
struct relay_run;

struct relay_sink_ops {
    const char *name;
    /* A frame may be ready. No lock is held. */
    void (*ready)(struct relay_sink *sink);
    /* Optional: the request was accepted and is queued; the response headers may be sent. No
     * lock is held. */
    void (*accepted)(struct relay_sink *sink);
    /* The client takes no message: end the sink's call, ahead of the message in flight. No lock
     * is held. */
    void (*cut_off)(struct relay_sink *sink, const struct error *status);
    /* Another client connection has taken the request over. No lock is held. */
    void (*taken_over)(struct relay_sink *sink, const struct error *why);
    /* Optional: the pending bytes of this relay changed by `more_bytes`. Returns true if too
     * many bytes wait at the sink's call in all. Under the relay's lock. */
    bool (*pending)(struct relay_sink *sink, int64_t more_bytes);
    /* The call's owner detects slow clients; relay_is_slow() ignores the relay then. */
    bool watched;
    /* Frees the sink after the last reference is released. */
    void (*destroy)(struct relay_sink *sink);
};

struct relay_sink {
    const struct relay_sink_ops *ops;
    _Atomic uint32_t n_refs;
};

/* Begins with one reference. */
void relay_sink_init(struct relay_sink *sink, const struct relay_sink_ops *ops);
void relay_sink_retain(struct relay_sink *sink);
void relay_sink_release(struct relay_sink *sink); /* NULL is accepted */

enum relay_frame_kind {
    RELAY_FRAME_NONE, /* no message, only the error that ends the request */
    RELAY_FRAME_PROMPT_INFO,
    RELAY_FRAME_TOKENS,
    RELAY_FRAME_FINISHED,
    RELAY_FRAME_WHOLE,
};

enum { RELAY_SINK_MAX_CHOICES = 8 };

/* The next frame of a relay. Everything is borrowed for the callback. */
struct relay_frame {
    enum relay_frame_kind kind;
    Sluice__V1__PromptInfo prompt_info;
    Sluice__V1__Tokens tokens;
    Sluice__V1__Finished finished;
    const Sluice__V1__CompleteResponse *whole;
    /* With tokens: where the text of each id ends, and where the frame's text begins. Both are
     * offsets from the choice's first byte. */
    const uint32_t *text_ends;
    uint64_t text_begin;
    /* The same, by choice of `whole`; NULL where the choice has reasoning apart from its text. */
    const uint32_t *whole_text_ends[RELAY_SINK_MAX_CHOICES];
    /* The runs of ids of each choice of `whole`; none: all is content. */
    const struct relay_run *whole_runs[RELAY_SINK_MAX_CHOICES];
    size_t n_whole_runs[RELAY_SINK_MAX_CHOICES];
    bool last;                 /* nothing follows this frame */
    const struct error *error; /* last frame: the error of the request, or NULL for OK */
    uint64_t n_tokens_sent;    /* set with an error */
};

enum relay_delivery { RELAY_NOTHING, RELAY_PUT, RELAY_PUT_LAST };

/* Hands the next frame, if there is one, to `put`, which packs it. The call also means that the
 * client's flow control took the last message. Does nothing if the relay has another sink by
 * now. The caller holds the lock of the sink's call; `put` runs under the relay's lock. */
typedef void relay_put_fn(void *ctx, const struct relay_frame *frame);
enum relay_delivery relay_deliver(struct relay *relay, const struct relay_sink *sink,
                                  relay_put_fn *put, void *ctx);
/* The same for all frames that are ready now: they are one message to the client. Nothing is
 * ready while a step is recorded, so the end of a choice comes with its last tokens. */
enum relay_delivery relay_deliver_all(struct relay *relay, const struct relay_sink *sink,
                                      relay_put_fn *put, void *ctx);
/* Reports only that the last message was taken. */
void relay_taken(struct relay *relay, const struct relay_sink *sink);
/* Checks again if the sequence must pause for the bytes that wait at the sink's call. */
void relay_recheck(struct relay *relay);
