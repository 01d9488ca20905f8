/* weight.h: a matrix W[n, k] packed for the kernels that use it. Opaque. Made at load from raw
 * checkpoint rows, chunk by chunk, so no second copy of a tensor exists. Threads may pack disjoint
 * chunks in parallel; afterwards the weight is read-only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/segments.h"

struct error;
struct op_table;
struct weight; /* header at the start of the packed memory; position independent, so that another
                  process can map the memory */

enum weight_role {
    WEIGHT_LINEAR_COLUMN, /* this rank's rows of W; the input is replicated. Also for the LM head
                             and replicated matrices */
    WEIGHT_LINEAR_ROW, /* this rank's columns of W, by `segments`; outputs are summed over ranks */
    WEIGHT_EMBEDDING,  /* rows are looked up by id */
    WEIGHT_VECTOR,     /* n = 1: norm weights and biases, kept as f32 [k] */
};

/* How a dense linear is stored. Quantized linears, embeddings and vectors are stored unchanged. */
enum weight_store {
    WEIGHT_STORE_SOURCE, /* in the source type */
    WEIGHT_STORE_INT8, /* int8 with a scale per row; f32 activations are rounded to 16 bits: CUDA */
    WEIGHT_STORE_F8,   /* E4M3 with a scale per row: CUDA of compute capability 8.9 and up */
};

enum { WEIGHT_PACK_ROWS = 64 }; /* chunks start at multiples of this many local rows */

struct weight_desc {
    enum weight_role role;
    enum dtype source; /* type of the raw rows */
    enum weight_store store;
    uint32_t n_rows;  /* rows of W that this rank holds */
    uint32_t k_total; /* columns of the whole matrix (= of each raw row) */
    struct segments
        k_segments; /* LINEAR_ROW: the split of k_total and this rank's part; unused otherwise */
};

/* A copy from a packed slice to the device: offset in the slice, offset in the weight's device
 * data. */
struct weight_copy {
    size_t from, to, n_bytes;
};

enum { WEIGHT_MAX_COPIES = 4 };

/* There are two ways to make a weight. Kernel sets that read packed memory in place (CPU):
 * weight_init() and weight_pack_rows(). Sets whose weights lie on a device: weight_pack_slice(),
 * copies, and weight_bind(). weight_is_on_device() distinguishes the two.
 * Returns the packed weight's size: a multiple of 64 bytes in memory, or of 256 bytes on the
 * device. 0 with err set: UNIMPLEMENTED for a type, INVALID_ARGUMENT for a shape that the kernel
 * set does not support. */
size_t weight_bytes(const struct op_table *ops, const struct weight_desc *desc, struct error *err);

/* Writes the header into `memory` (64-byte aligned, weight_bytes() long, zeroed, borrowed for the
 * weight's life). */
int weight_init(const struct op_table *ops, const struct weight_desc *desc, void *memory,
                struct weight **out_weight, struct error *err);

/* Packs n_rows raw rows (each dtype_row_bytes(source, k_total)) as local rows [row_begin, row_begin
 * + n_rows). row_begin is a multiple of WEIGHT_PACK_ROWS; only the last chunk may have another
 * length. Any thread; disjoint chunks may be packed at once. FAILED_PRECONDITION names a row with a
 * value that is not finite. Embeddings are not checked: a row that is not finite fails the requests
 * that read it. */
int weight_pack_rows(const struct op_table *ops, struct weight *weight, uint32_t row_begin,
                     uint32_t n_rows, const void *raw, struct error *err);

bool weight_is_on_device(const struct op_table *ops);
/* Returns the host bytes of a slice of n_rows rows. */
size_t weight_slice_bytes(const struct op_table *ops, const struct weight_desc *desc,
                          uint32_t n_rows);
/* Packs rows like weight_pack_rows(), into `slice` (64-byte aligned). The caller then copies
 * `copies` to the weight's device data. Any thread. */
int weight_pack_slice(const struct op_table *ops, const struct weight_desc *desc,
                      uint32_t row_begin, uint32_t n_rows, const void *raw, void *slice,
                      struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                      struct error *err);
/* Makes a header for data on the device; the data is borrowed. weight_unbind() frees the header. */
int weight_bind(const struct op_table *ops, const struct weight_desc *desc, void *data,
                struct weight **out_weight, struct error *err);
void weight_unbind(const struct op_table *ops, struct weight *weight);

uint32_t weight_n_rows(const struct weight *weight);
uint32_t weight_k_local(const struct weight *weight);
/* Returns the f32 data of a WEIGHT_VECTOR. */
const float *weight_vector(const struct weight *weight);
/* Returns the form of activations (bit of enum act_kind, ops.h) that the weight's linear reads. */
uint32_t weight_act_kind(const struct weight *weight);
