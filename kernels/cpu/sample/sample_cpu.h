/* sample_cpu.h: the sampler of the CPU backend. Runs the stages of sample.h for rows of f32 logits,
 * each row on one thread of the stream's team. No allocation: scratch is the stream's. */
#pragma once

#include "kernels/sample.h"

struct stream;
struct tensor;

enum { SAMPLE_MAX_VOCAB = 1 << 20 };

/* logits[n_rows, vocab] (unmodified), params[n_rows], results[n_rows]. The failure of a row is the
 * status of its result. The call fails with INTERNAL on an unsupported shape (vocab 0 or over
 * SAMPLE_MAX_VOCAB, not f32). */
int sample_rows_cpu(struct stream *s, const struct tensor *logits,
                    const struct sample_params *params, struct sample_result *results);

/* Samples one row; scratch has at least SAMPLE_SCRATCH_BYTES(vocab) bytes, 64-byte aligned. */
#define SAMPLE_SCRATCH_BYTES(vocab) ((size_t)(vocab)*8)
void sample_row_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                    void *scratch, struct sample_result *out_result);

/* Runs the stages before the draw (temperature > 0). *out_weights[vocab], in scratch, holds each
 * token's weight, 0 for removed tokens. Returns the status that sample_row_cpu() would set. */
int sample_weights_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                       void *scratch, const float **out_weights);
