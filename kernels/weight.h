/* weight.h: a matrix W[n, k] packed for the unit that will use it. Opaque; made once at load from
 * raw checkpoint rows, row chunk by row chunk, so no second copy of a tensor ever exists. Packing
 * threads work on disjoint chunks in parallel; afterwards read-only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/segments.h"

struct error;
struct op_table;
struct weight; /* first bytes of its memory; position independent, so that packed memory can be
                  mapped by another process */

enum weight_role {
    WEIGHT_LINEAR_COLUMN, /* this rank's rows of W; input replicated. Also the LM head and
                             replicated matrices */
    WEIGHT_LINEAR_ROW, /* this rank's columns of W by `segments`; outputs are summed over ranks */
    WEIGHT_EMBEDDING,  /* rows are looked up by id */
    WEIGHT_VECTOR,     /* n = 1: norm weights and biases, kept as f32 [k] */
};

enum { WEIGHT_PACK_ROWS = 64 }; /* chunks start at multiples of this many local rows */

struct weight_desc {
    enum weight_role role;
    enum dtype source; /* type of the raw rows */
    uint32_t n_rows;   /* rows of W that this rank holds */
    uint32_t k_total;  /* columns of the whole matrix (= of each raw row) */
    struct segments
        k_segments; /* LINEAR_ROW: the split of k_total and this rank's part; else unused */
};

/* Bytes of memory the packed weight takes, 64-byte multiple. 0 with err set: UNIMPLEMENTED for a
 * type the kernel set cannot take, INVALID_ARGUMENT for a shape it cannot. */
size_t weight_bytes(const struct op_table *ops, const struct weight_desc *desc, struct error *err);

/* Writes the header into `memory` (64-byte aligned, weight_bytes() long, zeroed, borrowed for the
 * weight's life). */
int weight_init(const struct op_table *ops, const struct weight_desc *desc, void *memory,
                struct weight **out_weight, struct error *err);

/* Packs n_rows raw rows (each dtype_row_bytes(source, k_total)) as local rows [row_begin, row_begin
 * + n_rows). row_begin is a multiple of WEIGHT_PACK_ROWS; only the last chunk may have another
 * length. Any thread; disjoint chunks may run at once. FAILED_PRECONDITION names the row where a
 * value is not finite; an embedding is kept as it is, and a row that is not finite ends what reads
 * it. */
int weight_pack_rows(const struct op_table *ops, struct weight *weight, uint32_t row_begin,
                     uint32_t n_rows, const void *raw, struct error *err);

uint32_t weight_n_rows(const struct weight *weight);
uint32_t weight_k_local(const struct weight *weight);
/* The f32 data of a WEIGHT_VECTOR. */
const float *weight_vector(const struct weight *weight);
/* Which preparation of activations (enum act_kind bit, ops.h) its linear reads. */
uint32_t weight_act_kind(const struct weight *weight);
