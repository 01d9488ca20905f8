/* sampling.h: converts the sampling and stopping options of the command line to parts of a request.
 * Single-threaded. */
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

/* Checks the values before the call. INVALID_ARGUMENT with the option's name; the server would name
 * a field, and answer only after it received the prompt. */
int sampling_check(const struct cli *cli, struct error *err);

/* True if --priority was given; then *out_priority is its value. */
bool sampling_priority(const struct cli *cli, int32_t *out_priority);

/* Removes the CLI's default max_tokens after the server refused it as above the load's limit. True
 * if removed: the request may be sent again. A value that the user gave stays. */
bool sampling_drop_default(const struct cli *cli, struct sampling_parts *parts,
                           const struct error *refused);

/* Fills `parts` with the given options and points the request at them. Options that are not given
 * stay unset, so the version's defaults apply. Strings are borrowed from cli. */
void sampling_fill(const struct cli *cli, struct sampling_parts *parts,
                   Sluice__V1__GenerateRequest *request);
