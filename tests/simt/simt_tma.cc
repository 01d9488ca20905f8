/* The copy engine, and the driver's function that describes a matrix for it. Source of the layout:
 * CUDA driver API, "CU_TENSOR_MAP_SWIZZLE_128B"; the wgmma descriptors of the same layout are in
 * simt_wgmma.cc. */
#include "tests/simt/simt_tma.h"

#include <string.h>

#include <cuda.h>

#include "tests/simt/simt_runtime.h"
#include "tests/simt/simt_wgmma.h"

enum { LINE = 128, EIGHT = 8 * LINE, PIECE = 16, MOST_BOX_ROWS = 256 };

static const uint64_t map_mark = 0x70616D726F736E74;

/* Contents of an emulated tensor map. */
struct matrix {
    uint64_t mark;
    const unsigned char *data;
    uint64_t n_rows, row_bytes, stride;
    uint64_t box_rows;
};
static_assert(sizeof(matrix) <= sizeof(tensor_map), "a tensor map has 128 bytes");

static matrix matrix_of(const tensor_map *map)
{
    matrix m;
    memcpy(&m, map, sizeof(m));
    if (m.mark != map_mark)
        simt_fail("tma_fetch: %p is no description of a matrix", (const void *)map);
    return m;
}

/* Copies 16 bytes from `column` on of a row of the matrix; zeros outside the matrix. */
static void fetch_piece(unsigned char to[PIECE], const matrix &m, uint64_t row, uint64_t column)
{
    memset(to, 0, PIECE);
    if (row >= m.n_rows || column >= m.row_bytes)
        return;
    uint64_t left = m.row_bytes - column;
    memcpy(to, m.data + row * m.stride + column, left < PIECE ? left : (uint64_t)PIECE);
}

void tma_fence_barriers(void)
{
    simt_tls.self->new_barriers.clear();
}

void tma_fetch(void *shared, const struct tensor_map *map, uint32_t column, uint32_t row,
               uint64_t *barrier)
{
    matrix m = matrix_of(map);
    size_t n_bytes = m.box_rows * LINE;
    if (!simt_is_shared(shared, n_bytes) || wgmma_address(shared) % EIGHT != 0)
        simt_fail("tma_fetch: %p is no multiple of %d bytes of the block's shared memory", shared,
                  EIGHT);
    if (simt_is_new_barrier(barrier))
        simt_fail("tma_fetch: the barrier was not made visible by tma_fence_barriers");
    simt_tile tile = {(unsigned char *)shared, barrier, std::vector<unsigned char>(n_bytes)};
    for (uint64_t r = 0; r < m.box_rows; r++)
        for (uint64_t p = 0; p < LINE / PIECE; p++)
            fetch_piece(&tile.bytes[r * LINE + (p ^ r % 8) * PIECE], m, row + r,
                        column + p * PIECE);
    memset(shared, 0xFF, n_bytes);
    simt_tls.block->tiles.push_back(std::move(tile));
    simt_wake(); /* a thread that waits completes the tile */
}

bool simt_tma_deliver(uint64_t *barrier)
{
    std::vector<simt_tile> &tiles = simt_tls.block->tiles;
    bool any = false;
    for (size_t i = 0; i < tiles.size();) {
        if (tiles[i].barrier != barrier) {
            i++;
            continue;
        }
        simt_tile tile = std::move(tiles[i]);
        tiles.erase(tiles.begin() + (ptrdiff_t)i);
        memcpy(tile.to, tile.bytes.data(), tile.bytes.size());
        simt_barrier_bytes(barrier, (uint32_t)tile.bytes.size());
        any = true;
    }
    return any;
}

/* --- the driver --- */

/* Fails as the driver does for a matrix that the engine cannot copy. */
static CUresult encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *data,
                       const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *step, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    if (type != CU_TENSOR_MAP_DATA_TYPE_UINT8 || rank != 2 || box[0] != LINE || step[0] != 1 ||
        step[1] != 1 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
        simt_fail("cuTensorMapEncodeTiled: only tiles of 128-byte rows, rotated, are emulated");
    if ((uintptr_t)out % 64 != 0 || (uintptr_t)data % 16 != 0 || stride[0] % 16 != 0 ||
        stride[0] >= (uint64_t)1 << 40 || size[0] == 0 || size[1] == 0 ||
        size[0] > (uint64_t)1 << 32 || size[1] > (uint64_t)1 << 32 || box[1] == 0 ||
        box[1] > MOST_BOX_ROWS)
        return CUDA_ERROR_INVALID_VALUE;
    simt_check_range("cuTensorMapEncodeTiled", data, (size[1] - 1) * stride[0] + size[0], true);
    matrix m = {map_mark, (const unsigned char *)data, size[1], size[0], stride[0], box[1]};
    memset((void *)out, 0, sizeof(*out));
    memcpy((void *)out, &m, sizeof(m));
    return CUDA_SUCCESS;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned,
                                                        unsigned long long,
                                                        enum cudaDriverEntryPointQueryResult *found)
{
    bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0 && simt_setting("SIMT_TMA", 1) != 0;
    *out = known ? (void *)encode : NULL;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
