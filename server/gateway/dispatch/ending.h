/* ending.h: how a request ends: it fails, is cancelled, cut off, or loses its client; and what its
 * end brings with it. Its worker is told, its place in the registry is given up, and the counters
 * follow. Any thread; no lock is held. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct relay;
struct relay_shared;
struct relay_sink;

/* Counts a request's begin and its end in the counters and in the meter of its version. The relay
 * has its model and version, as far as they were found; NULL: it was refused before it became one.
 */
void dispatch_count_begin(struct relay_shared *shared, struct relay *relay);
void dispatch_count_end(struct relay_shared *shared, struct relay *relay, int status,
                        uint64_t n_tokens);

/* Fixes the outcome (the first one counts) and lets the answer end after what is pending. */
void dispatch_end(struct relay *relay, const struct error *outcome);
/* The same, and at once in the worker. Returns the tokens that are or will be sent. A cancel also
 * ends a request that finished well and is kept for its client. */
uint64_t dispatch_cancel(struct relay *relay, const struct error *why);
/* The same, overtaking a message the client does not take. */
void dispatch_abort(struct relay *relay, const struct error *why);

/* What the sink stood for is over, `status` being what the client saw: the request is closed, or,
 * where it has a window, waits to be reattached. Nothing happens where the relay has another sink
 * by now. */
void dispatch_sink_gone(struct relay *relay, const struct relay_sink *sink, int status);
/* Closes a failed request whose client is lost. Does nothing for any other request. */
void dispatch_close_failed(struct relay *relay);
/* Closes a request that has ended, was sent, and is only kept to be reattached. False for any other
 * request. */
bool dispatch_forget(struct relay *relay);
/* Off the registry, counted under `status` if it was not, cancelled at the worker; once. */
void dispatch_close(struct relay *relay, int status);
