/* generation.h: how a request becomes a relay: checks, version, registry. What Generate, Complete
 * and GenerateStream share. */
#pragma once

#include <stdbool.h>

struct error;
struct dispatch;
struct relay;
struct relay_params;

/* Checks and registers a request; it is counted as accepted, and as ended where it is refused. On
 * success *out_relay is retained for the caller, and lives until dispatch_close: attach a sink
 * (relay_attach), then call generation_start. */
int generation_open(struct dispatch *dispatch, const struct relay_params *params,
                    struct relay **out_relay, struct error *err);
/* No replica of its version takes the request, and none will: where it named no version and nothing
 * of an answer has come, the traffic rule is asked again. True: it is another version's now.
 * Holding neither the relay's lock nor the replicas'. */
bool generation_choose_again(struct dispatch *dispatch, struct relay *relay);
/* To a replica. */
void generation_start(struct dispatch *dispatch, struct relay *relay);
