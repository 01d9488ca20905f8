/* generation.h: turns a request into a relay: checks, version, registry. Generate, Complete and
 * GenerateStream share these steps. */
#pragma once

#include <stdbool.h>

struct error;
struct dispatch;
struct relay;
struct relay_params;

/* Checks and registers a request. The request is counted as accepted, and as ended if it is
 * refused. On success *out_relay is retained for the caller, and lives until dispatch_close.
 * Attach a sink (relay_attach), then call generation_start. */
int generation_open(struct dispatch *dispatch, const struct relay_params *params,
                    struct relay **out_relay, struct error *err);
/* No replica of the relay's version takes the request, and none will. If the request named no
 * version and no answer has begun, the traffic rule chooses again. Returns true if the request
 * now has another version. Neither the relay's lock nor the replicas' lock is held. */
bool generation_choose_again(struct dispatch *dispatch, struct relay *relay);
/* Sends the relay to a replica. */
void generation_start(struct dispatch *dispatch, struct relay *relay);
