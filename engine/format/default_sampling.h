/* default_sampling.h: the sampling that a model's author recommends, from the model's files. Plain
 * data. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;
struct error;

/* Fields without a value in the files are not set. */
struct default_sampling {
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_typical_p, has_repetition_penalty;
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p, min_p, typical_p, repetition_penalty;
};

/* Reads generation_config.json of a folder, or the keys general.sampling.* of a GGUF file.
 *
 * "do_sample": false gives temperature 0. "do_sample": true gives temperature 1 if the file has
 * none. Without "do_sample" the file's temperature counts, if it has one. Other keys of both
 * sources are not read.
 *
 * INVALID_ARGUMENT (MODEL_FILE_INVALID) names a key with a value of the wrong type or outside its
 * range. *out is untouched on failure. */
int default_sampling_read(const struct checkpoint *ckpt, struct default_sampling *out,
                          struct error *err);
