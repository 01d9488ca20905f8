/* sampling.h: the sampling and stopping options of the command line as parts of a request. One
 * thread. */
#pragma once

#include <stdbool.h>

#include "sluice/v1/inference.pb-c.h"

struct cli;
struct error;

struct sampling_parts {
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Speculate speculate;
    char *stop[1];
};

/* INVALID_ARGUMENT naming the option for what no request can carry: the server would name a field,
 * and only once the prompt has been read. */
int sampling_check(const struct cli *cli, struct error *err);

/* The value of --priority, where it was given: then true. */
bool sampling_priority(const struct cli *cli, int32_t *out_priority);

/* Whether a request that was refused may be made again without max_tokens: it had this program's
 * default, not one that the user gave, and that is more than the model was loaded to allow. */
bool sampling_drop_default(const struct cli *cli, struct sampling_parts *parts,
                           const struct error *refused);

/* Fills `parts` from what was given (what was not is left to the version's defaults) and points the
 * request at them; strings are borrowed from cli. */
void sampling_fill(const struct cli *cli, struct sampling_parts *parts,
                   Sluice__V1__GenerateRequest *request);
