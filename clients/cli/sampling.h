/* sampling.h: the sampling and stopping options of the command line as parts of a request. One
 * thread. */
#pragma once

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

/* Fills `parts` from what was given (what was not is left to the version's defaults) and points the
 * request at them; strings are borrowed from cli. */
void sampling_fill(const struct cli *cli, struct sampling_parts *parts,
                   Sluice__V1__GenerateRequest *request);
