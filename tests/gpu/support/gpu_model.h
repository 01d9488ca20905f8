/* gpu_model.h: shared parts of the tests of whole models on a GPU. Failures end the test through
 * cmocka. */
#pragma once

#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { N_TOKENS = 45, VOCAB = 300 };

/* Random prompts, after make_ids(), a group's setup. */
extern uint32_t ids[MODEL_RUN_MAX_SEQS][N_TOKENS];
int make_ids(void **state);

/* The usual config with f32 KV on "cuda:0". */
struct executor_config gpu_config(void);
/* Returns the logits of every position of prompt i_seq, run alone: [N_TOKENS, VOCAB], owned by the
 * caller. */
float *run_alone(const struct tiny_spec *spec, const struct executor_config *cfg, uint32_t i_seq,
                 uint32_t chunk, bool generated);
/* Checks that n logits are equal bit for bit. */
void assert_same(const float *a, const float *b, size_t n, const char *what);
