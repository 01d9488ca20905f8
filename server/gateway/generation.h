/* generation.h: how a request becomes a relay: checks, version, registry. What Generate, Complete
 * and GenerateStream share. */
#pragma once

struct error;
struct gateway;
struct relay;
struct relay_params;

/* Checks and registers a request; it is counted as accepted, and as ended where it is refused. On
 * success *out_relay is retained for the caller, and lives until relay_close: attach a sink
 * (relay_attach), then call generation_start. */
int generation_open(struct gateway *gateway, const struct relay_params *params,
                    struct relay **out_relay, struct error *err);
/* To a replica. */
void generation_start(struct gateway *gateway, struct relay *relay);
