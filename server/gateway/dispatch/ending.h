/* ending.h: how a request ends: it fails, is cancelled, is cut off or loses its client. An end
 * cancels the request at its worker, frees its place in the registry and is counted. Any thread;
 * no lock is held. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct relay;
struct relay_shared;
struct relay_sink;

/* Count a request's begin and end in the counters and in the meter of its version. Model and
 * version of the relay may be empty if the request failed before they were found. NULL: the
 * request was refused before it became a relay. */
void dispatch_count_begin(struct relay_shared *shared, struct relay *relay);
void dispatch_count_end(struct relay_shared *shared, struct relay *relay, int status,
                        uint64_t n_tokens);

/* Fixes the outcome (the first one counts). The answer ends after its pending messages. */
void dispatch_end(struct relay *relay, const struct error *outcome);
/* Like dispatch_end, and also cancels the request at its worker now. Returns the tokens that
 * were or will be sent. A cancel also ends a finished request that is kept for its client. */
uint64_t dispatch_cancel(struct relay *relay, const struct error *why);
/* Cancels every request that runs, at the end of a drain, and counts each. */
void dispatch_cancel_all(struct relay_shared *shared, const struct error *why);
/* Like dispatch_cancel, but overtakes a message that the client does not take. */
void dispatch_abort(struct relay *relay, const struct error *why);

/* The sink's call is over; `status` is the status that the client saw. The request is closed,
 * or, with a reattach window, waits for a reattach. Does nothing if the relay has another sink
 * by now. */
void dispatch_sink_gone(struct relay *relay, const struct relay_sink *sink, int status);
/* Closes a failed request whose client is lost. Does nothing for any other request. */
void dispatch_close_failed(struct relay *relay);
/* Closes a request that has ended, was sent, and is only kept for a reattach. Returns false for
 * any other request. */
bool dispatch_forget(struct relay *relay);
/* Removes the request from the registry, counts its end under `status` (once), and cancels it at
 * the worker. Further calls do nothing. */
void dispatch_close(struct relay *relay, int status);
