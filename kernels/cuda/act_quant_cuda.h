/* act_quant_cuda.h: integer activations of the CUDA backend (ACT_INT8), a part of struct act in
 * act_dense_cuda.c. Used by one stream at a time. Private to kernels/cuda. */
#pragma once

#include "kernels/cuda/act_quant.h"

struct act;
struct comm;
struct device;
struct error;
struct norm_params;
struct segments;
struct stream;
struct tensor;

struct act_quant {
    struct device *device;
    void *data; /* quant_act_layout_of() the capacity */
    size_t n_bytes;
    struct quant_planes planes; /* planes of the activations that are prepared now, */
    uint32_t row_begin, n_rows; /* which are these rows of the act */
    void *split;                /* QUANT_SPLIT_BYTES */
    uint32_t n_sms, max_shared; /* limits of the device */
};

/* Returns the integer activations of an act; in act_dense_cuda.c. */
struct act_quant *act_quant_of(const struct act *act);

size_t act_quant_bytes(uint32_t max_rows, uint32_t max_k);
int act_quant_create(struct act_quant *q, struct device *device, uint32_t max_rows, uint32_t max_k,
                     struct error *err);
void act_quant_destroy(struct act_quant *q);
/* Does op act_prepare with ACT_INT8, for the tensor's rows, which are those of the act from
 * row_begin on. */
int act_quant_prepare(struct stream *s, struct act_quant *q, const struct tensor *x,
                      uint32_t row_begin, const struct segments *segments, struct comm *comm);
/* Prepares a linear per head (ops.h, heads_linear): n_heads heads of k columns of x. The rows of
 * the planes are [n_heads][n_rows rounded up to whole tiles]. They must have room:
 * act_quant_takes_heads(). */
bool act_quant_takes_heads(const struct act_quant *q, uint32_t n_rows, uint32_t n_heads,
                           uint32_t k);
int act_quant_heads(struct stream *s, struct act_quant *q, const struct tensor *x, uint32_t n_heads,
                    uint32_t k);
/* Does op norm_prepare with ACT_INT8, likewise; at least one row. */
int act_quant_norm(struct stream *s, struct act_quant *q, struct tensor *y, const struct tensor *x,
                   uint32_t row_begin, const struct norm_params *p);
