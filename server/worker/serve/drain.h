/* drain.h: Drain, Shutdown and signals: how a worker stops taking requests and ends. The main
 * thread does the waiting; handlers only leave their call and wake it. */
#pragma once

#include <stdbool.h>

#include <protobuf-c/protobuf-c.h>

struct rpc_call;
struct worker;

/* rpc_handler_fn; context is the worker. */
void drain_handle_drain(void *context, struct rpc_call *call, const ProtobufCMessage *request);
void drain_handle_shutdown(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* SIGTERM, SIGINT: as Shutdown with the default grace; the second one: at once. Any thread. */
void drain_on_signal(struct worker *worker);

/* Runs on the main thread from READY or PARKED on: waits for a drain, carries it out, answers, and
 * returns false when the process shall end. True where it is parked and a Wake was accepted before
 * anything of that was asked; one that comes later is not heard. */
bool drain_wait_for_end(struct worker *worker);
/* Answers what waits, where there is no engine to drain. */
void drain_answer_all(struct worker *worker);
