/* progress.h: follows an operation to its end: a bar on a terminal, a line per stage and tenth in a
 * pipe, nothing with --json. */
#pragma once

#include "sluice/manager/v1/manager.pb-c.h"

struct cli;
struct error;

/* Watches operation `id`; survives a manager restart. *out_operation is the last state, owned
 * (rpc_message_free of &->base.base): the response that carries it. Returns 0 where it ended DONE,
 * else its error. */
int progress_follow(struct cli *cli, const char *id,
                    Sluice__Manager__V1__WatchOperationResponse **out_last, struct error *err);
