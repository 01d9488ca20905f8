/* events.h: the event log for clients: the latest events in memory, older ones from the store,
 * and the WatchEvents calls. Loop thread only, except events_watch. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct context;
struct error;
struct events;
struct row;
struct rpc_call;

int events_create(struct context *context, struct events **out_events, struct error *err);
/* All watches must have ended: the server has been shut down. NULL is accepted. */
void events_destroy(struct events *events);

/* Adds a committed event; store_config.on_event. */
void events_add(void *arg, struct row *row);
/* Ends every watch with `status`: the manager is stopping. */
void events_end_watches(struct events *events, const struct error *status);

/* Handler of WatchEvents; server thread. `context` is the struct events. */
void events_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request);
