/* drain.h: Drain, Shutdown and signals: how a worker stops taking requests and ends. The main
 * thread waits for the drain; handlers queue their call and signal the main thread. */
#pragma once

#include <stdbool.h>

#include <protobuf-c/protobuf-c.h>

struct rpc_call;
struct worker;

/* rpc_handler_fn; context is the worker. */
void drain_handle_drain(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void drain_handle_shutdown(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* SIGTERM, SIGINT: a Shutdown with the default grace. A second signal ends the grace at once.
 * Any thread. */
void drain_on_signal(struct worker *worker);

/* Main thread, in READY or PARKED. Waits for a drain, carries it out and answers. Returns false
 * if the process shall end. Returns true if the worker is parked and a Wake was accepted before
 * any drain. A Wake after a drain is ignored. */
bool drain_wait_for_end(struct worker *worker);
/* Answers the waiting Drain and Shutdown calls if there is no engine to drain. */
void drain_answer_all(struct worker *worker);
