/* sample_layout.h: the layout of a sample call's parameters in one block of memory, the same on
 * host and device. First [n_rows] params, [n_rows] states; then counts, biases and masks row by
 * row; then [n_rows] results. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "kernels/cuda/sample/sample_state.h"

enum { SAMPLE_LAYOUT_ALIGN = 256 };

struct sample_layout {
    size_t states, counts, biases, masks, results; /* byte offsets */
    size_t n_bytes;
};

static inline size_t sample_mask_words(uint32_t vocab)
{
    return ((size_t)vocab + 31) / 32;
}

static inline struct sample_layout sample_layout_of(const struct sample_params *params,
                                                    uint32_t n_rows, uint32_t vocab)
{
    size_t n_counts = 0, n_biases = 0, n_masks = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        n_counts += params[r].n_counts;
        n_biases += params[r].n_biases;
        n_masks += params[r].allowed_mask != NULL;
    }
    struct sample_layout l;
    l.states = cuda_round_up(n_rows * sizeof(struct sample_params), SAMPLE_LAYOUT_ALIGN);
    l.counts = cuda_round_up(l.states + n_rows * sizeof(struct sample_state), SAMPLE_LAYOUT_ALIGN);
    l.biases =
        cuda_round_up(l.counts + n_counts * sizeof(struct sample_count), SAMPLE_LAYOUT_ALIGN);
    l.masks = cuda_round_up(l.biases + n_biases * sizeof(struct sample_bias), SAMPLE_LAYOUT_ALIGN);
    l.results = cuda_round_up(l.masks + n_masks * sample_mask_words(vocab) * sizeof(uint32_t),
                              SAMPLE_LAYOUT_ALIGN);
    l.n_bytes = l.results + n_rows * sizeof(struct sample_result);
    return l;
}

/* Fills `host`; the pointers inside point into `device`, the later place of the block. */
static inline void sample_layout_fill(const struct sample_layout *l,
                                      const struct sample_params *params, uint32_t n_rows,
                                      uint32_t vocab, uint8_t *host, const uint8_t *device)
{
    memset(host + l->states, 0, n_rows * sizeof(struct sample_state));
    size_t counts = l->counts, biases = l->biases, masks = l->masks;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct sample_params p = params[r];
        size_t counts_bytes = p.n_counts * sizeof(*p.counts);
        size_t biases_bytes = p.n_biases * sizeof(*p.biases);
        if (counts_bytes)
            memcpy(host + counts, p.counts, counts_bytes);
        if (biases_bytes)
            memcpy(host + biases, p.biases, biases_bytes);
        p.counts = (const struct sample_count *)(const void *)(device + counts);
        p.biases = (const struct sample_bias *)(const void *)(device + biases);
        counts += counts_bytes;
        biases += biases_bytes;
        if (p.allowed_mask) {
            size_t bytes = sample_mask_words(vocab) * sizeof(uint32_t);
            memcpy(host + masks, p.allowed_mask, bytes);
            p.allowed_mask = (const uint32_t *)(const void *)(device + masks);
            masks += bytes;
        }
        memcpy(host + r * sizeof(p), &p, sizeof(p));
    }
}

/* Returns a number of launches that finishes all rows for certain. */
static inline uint32_t sample_most_launches(const struct sample_params *params, uint32_t n_rows,
                                            uint32_t vocab)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t n = sample_n_launches(&params[r], vocab);
        most = n > most ? n : most;
    }
    return most;
}
