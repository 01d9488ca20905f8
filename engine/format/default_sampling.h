/* default_sampling.h: the sampling that a model's author recommends, from the model's files. Plain
 * data. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;

enum { DEFAULT_SAMPLING_MAX_SUPPRESSED = 256 };

/* Fields without a usable value in the files are not set. */
struct default_sampling {
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_typical_p, has_repetition_penalty;
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p, min_p, typical_p, repetition_penalty;
    uint32_t n_suppressed; /* ids that are never drawn; the vocabulary may be smaller */
    uint32_t suppressed_ids[DEFAULT_SAMPLING_MAX_SUPPRESSED];
};

/* A sentence for each key with a value that is not used. */
enum { DEFAULT_SAMPLING_MAX_NOTES = 8, DEFAULT_SAMPLING_NOTE_BYTES = 128 };
struct default_sampling_notes {
    uint32_t n;
    char texts[DEFAULT_SAMPLING_MAX_NOTES][DEFAULT_SAMPLING_NOTE_BYTES];
};

/* Reads generation_config.json of a folder, or the keys general.sampling.* of a GGUF file.
 *
 * "do_sample": false gives temperature 0. "do_sample": true gives temperature 1 if the file has
 * none. Without "do_sample" the file's temperature counts, if it has one. Folders may have a list
 * "suppress_tokens", where negative ids stand for no token. Other keys of both sources are not
 * read.
 *
 * A value of the wrong type or outside the range of requests counts as absent. A note names the
 * key: the rest of the model is good, and requests may give the value. out_notes may be NULL. */
void default_sampling_read(const struct checkpoint *ckpt, struct default_sampling *out,
                           struct default_sampling_notes *out_notes);

/* True for a key of either source that default_sampling_read() reads. */
bool default_sampling_reads(const char *key);
