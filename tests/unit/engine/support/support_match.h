/* support_match.h: compares a checkpoint of tests/golden/tiny with the logits of transformers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct executor_config;

struct match {
    double error;    /* largest relative error of a golden row; NaN if a value is NaN */
    double sum;      /* sum of the errors of the rows */
    uint32_t n_rows; /* golden rows */
    uint64_t hash;   /* hash of the bits of all rows, also of rows without a golden */
};

/* Runs the sequences of tiny/<name>.bin, each alone in pieces of `chunk` tokens. `suffix` is ""
 * for the folder of that name, or ".gguf". */
struct match match_golden(const char *name, const char *suffix, const struct executor_config *cfg,
                          uint32_t chunk);

/* The same for a checkpoint at another path that must give the logits of tiny/<name>.bin. */
struct match match_path(const char *path, const char *name, const struct executor_config *cfg,
                        uint32_t chunk);

/* The greater of two errors; NaN if one of them is NaN. */
double match_worse(double a, double b);
/* FNV-1a over the floats' bits, beginning from `hash`. */
uint64_t match_hash(uint64_t hash, const float *x, size_t n);
