/* slow_reader.h: ends calls whose client takes no message of what is under way for slow_reader_ms,
 * even where bytes of the message trickle. Here are the requests of calls of their own, and calls
 * without a request; generate_stream.c looks after its streams. The time is the awake clock's. */
#pragma once

#include <stdint.h>

struct error;
struct relay_shared;
struct rpc_server;

/* Ticker's thread. Ends the requests of such clients. */
void slow_reader_tick(struct relay_shared *shared, int64_t awake_ns);
/* Ends the other slow calls: those of one answer, health and reflection. After slow_reader_tick and
 * generate_streams_tick. */
void slow_reader_tick_calls(struct relay_shared *shared, struct rpc_server *server,
                            int64_t awake_ns);
/* Counts one more slow client; *out_err is the error for that client. Any thread. */
void slow_reader_found(struct relay_shared *shared, struct error *out_err);
