/* restore_models.h: what a state directory's manager loads again when it starts, told to the person
 * who started it. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli;
struct error;

enum { RESTORE_MODELS_MAX = 64 }; /* models that are told of; more are counted */

struct restore_models {
    char names[RESTORE_MODELS_MAX][68];
    size_t n_models;                   /* in names */
    char told[RESTORE_MODELS_MAX][64]; /* ids of replicas that had failed before */
    size_t n_told;
};

/* The models of which replicas are wanted, a line for each version of them on stderr; without what
 * somebody has asked for since then (wall clock): that is not loaded again but for the first time.
 */
int restore_models_list(struct cli *cli, int64_t since_unix_ns, struct restore_models *out,
                        struct error *err);

/* Waits until a replica of names[i_model] is ready (*ready), or says why none will be, beside those
 * of which was told that they had failed. Ends with neither where the program does, or where
 * somebody has unloaded it meanwhile. */
int restore_models_wait(struct cli *cli, const struct restore_models *back, size_t i_model,
                        bool *ready, struct error *err);
