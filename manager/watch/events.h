/* events.h: the event log as clients watch it: the latest events in memory, older ones read from
 * the store, and those who watch. Loop thread only, save events_watch. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct context;
struct error;
struct events;
struct row;
struct rpc_call;

int events_create(struct context *context, struct events **out_events, struct error *err);
/* No watch may be left: the server has been shut down. NULL is accepted. */
void events_destroy(struct events *events);

/* An event that has been committed; store_config.on_event. */
void events_add(void *arg, struct row *row);
/* Ends every watch with `status`: the manager is stopping. */
void events_end_watches(struct events *events, const struct error *status);

/* Handler of WatchEvents; server thread. `context` is the events. */
void events_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request);
