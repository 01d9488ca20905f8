/* tensor_map.h: the driver's description of a matrix in device memory, from which the copy engine
 * of compute capability 9.0 fetches tiles (ptx_tma.h). The description is a kernel's argument. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The driver's CUtensorMap. */
struct tensor_map {
    uint64_t opaque[16];
} __attribute__((aligned(64)));

enum { TENSOR_MAP_LINE = 128 }; /* bytes of a row in a tile */

/* Describes n_rows rows of row_bytes bytes, stride_bytes apart, as tiles of box_rows × 128 bytes.
 * A tile's rows are rotated as prompt_piece_at() (dense_index.h) rotates them. Bytes beyond the
 * matrix arrive as zeros. `data` and the strides are multiples of 16 bytes. Returns a cudaError_t;
 * cudaErrorNotSupported if the driver is too old. Any thread. */
int tensor_map_rows(struct tensor_map *out, const void *data, uint64_t n_rows, uint64_t row_bytes,
                    uint64_t stride_bytes, uint32_t box_rows);
/* Returns true if the driver can describe matrices. */
bool tensor_map_is_known(void);

#ifdef __cplusplus
}
#endif
