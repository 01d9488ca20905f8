/* sample_cpu.h: the sampler of the CPU backend: sample.h's chain for rows of f32 logits, a row per
 * thread of the stream's team. No allocation: scratch is the stream's. */
#pragma once

#include "kernels/sample.h"

struct stream;
struct tensor;

enum { SAMPLE_MAX_VOCAB = 1 << 20 };

/* logits[n_rows, vocab] (left unmodified), params[n_rows], results[n_rows]. A row's own failure is
 * its result's status; the call fails INTERNAL on a shape it cannot take (vocab 0 or over
 * SAMPLE_MAX_VOCAB, not f32). */
int sample_rows_cpu(struct stream *s, const struct tensor *logits,
                    const struct sample_params *params, struct sample_result *results);

/* One row; scratch is at least SAMPLE_SCRATCH_BYTES(vocab) bytes, 64-byte aligned. */
#define SAMPLE_SCRATCH_BYTES(vocab) ((size_t)(vocab)*8)
void sample_row_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                    void *scratch, struct sample_result *out_result);

/* The chain up to the draw (temperature > 0): *out_weights[vocab], in scratch, is each token's
 * weight, 0 for those removed. Returns what sample_row_cpu() puts into status. */
int sample_weights_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                       void *scratch, const float **out_weights);
