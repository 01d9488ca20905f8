/* big_model.h: a model of any size, in two forms. Without bytes, the file has the GGUF header, and
 * the weights are a hole in a sparse file. The device gets random numbers later. The form with
 * bytes is for loads. The model has a tokenizer of its vocabulary's size, so that an engine accepts
 * the model. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct error;
struct executor;
struct stream;

struct big_spec {
    uint32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
    enum dtype type; /* type of the matrices: F16, BF16 or a block format */
};

/* Llama 3 8B's shape. */
struct big_spec big_spec_8b(enum dtype type);
/* Returns a shape small enough to check that the program runs. */
struct big_spec big_spec_small(enum dtype type);

/* Creates the file at `path`. `filled`: the file has bytes, 64 random rows of each matrix repeated.
 */
int big_write(const struct big_spec *spec, const char *path, bool filled, struct error *err);

/* Overwrites the weights of the executor's GPU. 64 random rows of each matrix are packed as a load
 * packs them; the device repeats them over the whole matrix. Vectors become ones, with a large
 * number in a share of their 64-column chunks (`outliers`; 0 or below: in none). */
int big_fill(struct executor *ex, double outliers, struct error *err);
