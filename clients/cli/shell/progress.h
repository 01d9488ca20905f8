/* progress.h: follows an operation to its end. Shows a bar on a terminal, a line per stage and
 * tenth in a pipe, nothing with --json. */
#pragma once

#include <stdio.h>

#include "sluice/manager/v1/manager.pb-c.h"

struct cli;
struct error;

/* Writes the operation's state: "running", or "cancelling" after a cancel request. Returns out. */
const char *progress_state_text(const Sluice__Manager__V1__Operation *op, char out[32]);

/* Prints the current step of a rolling update: "50 % to version 2, 12 s of 30 s: 40 answers, 0
 * failed, first token 12 ms". */
void progress_print_shift(FILE *out, const Sluice__Manager__V1__Operation *op);

/* Prints a line, after `lead`, for each update step that passed gates with too few answers. Returns
 * the number of lines. Once the old version has no traffic left, an earlier measurement of its
 * first token counts. */
unsigned progress_print_unmeasured(FILE *out, const Sluice__Manager__V1__Operation *op,
                                   const char *lead);

/* Watches operation `id`; survives a manager restart. *out_last is the last response, with the
 * operation's last state. The caller owns *out_last (rpc_message_free of its base). Returns 0 if
 * the operation ended DONE, else the operation's error. */
int progress_follow(struct cli *cli, const char *id,
                    Sluice__Manager__V1__WatchOperationResponse **out_last, struct error *err);
