/* route_watch.h: follows the manager's routes on a thread of its own, for as long as the server
 * lives; a manager that is away costs nothing but fresh routes. Each new table goes to
 * gateway_apply_routes and to the file the server starts from without a manager. */
#pragma once

struct error;
struct gateway;
struct route_watch;

/* *out_watch is owned. `gateway` outlives it. */
int route_watch_create(struct gateway *gateway, struct route_watch **out_watch, struct error *err);
void route_watch_destroy(struct route_watch *watch); /* NULL is accepted */
