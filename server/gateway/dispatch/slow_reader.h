/* slow_reader.h: clients that take no message of what is under way to them for slow_reader_ms, be
 * it that bytes of it trickle. Three look for them: here for the requests of calls of their own and
 * for calls without one; generate_stream.c for its streams. The time is the ticker's awake_ns. */
#pragma once

#include <stdint.h>

struct error;
struct relay_shared;
struct rpc_server;

/* Ticker's thread. Ends the requests of such clients. */
void slow_reader_tick(struct relay_shared *shared, int64_t awake_ns);
/* After that and after generate_streams_tick: what is left is calls of one answer, health and
 * reflection. */
void slow_reader_tick_calls(struct relay_shared *shared, struct rpc_server *server,
                            int64_t awake_ns);
/* Any thread. One more was found; *out_err is what it is to be told. */
void slow_reader_found(struct relay_shared *shared, struct error *out_err);
