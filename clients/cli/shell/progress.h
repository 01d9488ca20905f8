/* progress.h: follows an operation to its end: a bar on a terminal, a line per stage and tenth in a
 * pipe, nothing with --json. */
#pragma once

#include <stdio.h>

#include "sluice/manager/v1/manager.pb-c.h"

struct cli;
struct error;

/* The operation's state in a word: "running", and "cancelling" once its end was asked for. Returns
 * out. */
const char *progress_state_text(const Sluice__Manager__V1__Operation *op, char out[32]);

/* Of an update whose traffic moves: "50 % to version 2, 12 s of 30 s: 40 answers, 0 failed, first
 * token 12 ms". */
void progress_print_shift(FILE *out, const Sluice__Manager__V1__Operation *op);

/* A line for each step of a rolling update from which it went on though gates had too little to
 * look at, each after `lead`. Returns how many. The gate on the old version's first token is left
 * out where the old version had no traffic left and an earlier step has measured it. */
unsigned progress_print_unmeasured(FILE *out, const Sluice__Manager__V1__Operation *op,
                                   const char *lead);

/* Watches operation `id`; survives a manager restart. *out_operation is the last state, owned
 * (rpc_message_free of &->base.base): the response that carries it. Returns 0 where it ended DONE,
 * else its error. */
int progress_follow(struct cli *cli, const char *id,
                    Sluice__Manager__V1__WatchOperationResponse **out_last, struct error *err);
