/* restore_models.h: the models that a manager loads again when it starts. `sluice serve` lists them
 * and announces when they are ready. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli;
struct error;

enum { RESTORE_MODELS_MAX = 64 }; /* models with their name listed; others are only counted */

struct restore_models {
    char names[RESTORE_MODELS_MAX][68];
    size_t n_models;                            /* in names */
    char failed_before[RESTORE_MODELS_MAX][64]; /* ids of replicas that failed before */
    size_t n_failed_before;
};

/* Announces each version with desired replicas and fills *out. Leaves out versions that a client
 * requested after since_unix_ns (wall clock): these load for the first time. */
int restore_models_list(struct cli *cli, int64_t since_unix_ns, struct restore_models *out,
                        struct error *err);

/* Waits until a replica of names[i_model] is ready (*ready), or announces why none will be.
 * Failures that restore_models_list announced are not repeated. Does neither if the program ends,
 * or if a client unloads the model meanwhile. */
int restore_models_wait(struct cli *cli, const struct restore_models *models, size_t i_model,
                        bool *ready, struct error *err);
