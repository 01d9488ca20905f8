/* slow_reader.h: ends calls whose client takes no message that is in flight for slow_reader_ms,
 * even if bytes of the message trickle. This module covers requests with a call of their own,
 * and calls without a request. generate_stream.c watches its own streams. Times are those of the
 * awake clock. */
#pragma once

#include <stdint.h>

struct error;
struct relay_shared;
struct rpc_server;

/* Ticker thread. Ends the requests of slow clients. */
void slow_reader_tick(struct relay_shared *shared, int64_t awake_ns);
/* Ends the other slow calls: unary, health and reflection. Call it after slow_reader_tick and
 * generate_streams_tick. */
void slow_reader_tick_calls(struct relay_shared *shared, struct rpc_server *server,
                            int64_t awake_ns);
/* Counts another slow client; *out_err is the error for that client. Any thread. */
void slow_reader_found(struct relay_shared *shared, struct error *out_err);
