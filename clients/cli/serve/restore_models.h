/* restore_models.h: the models that the manager of a state directory loads again when it starts.
 * `sluice serve` lists them and reports when they are ready. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli;
struct error;

enum { RESTORE_MODELS_MAX = 64 }; /* models that are listed; further models are only counted */

struct restore_models {
    char names[RESTORE_MODELS_MAX][68];
    size_t n_models;                   /* in names */
    char told[RESTORE_MODELS_MAX][64]; /* ids of replicas that had failed before */
    size_t n_told;
};

/* Prints a line on stderr for each version that has wanted replicas, and fills *out. Versions that
 * somebody asked for after since_unix_ns (wall clock) are left out: those load for the first time.
 */
int restore_models_list(struct cli *cli, int64_t since_unix_ns, struct restore_models *out,
                        struct error *err);

/* Waits until a replica of names[i_model] is ready (*ready), or prints why none will be. Failures
 * that restore_models_list reported are not reported again. Returns with neither where the program
 * ends, or where somebody has unloaded the model meanwhile. */
int restore_models_wait(struct cli *cli, const struct restore_models *models, size_t i_model,
                        bool *ready, struct error *err);
