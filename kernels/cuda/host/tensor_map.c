#include "kernels/cuda/tensor_map.h"

#include <pthread.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

_Static_assert(sizeof(struct tensor_map) == sizeof(CUtensorMap), "the driver's type");

/* The driver's function, looked up once: the module is not linked with the driver's library. */
static struct {
    pthread_once_t once;
    encode_fn *encode; /* NULL: the driver has none */
} driver = {.once = PTHREAD_ONCE_INIT};

static void look_up(void)
{
    enum { FIRST_VERSION = 12000 };
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *symbol = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol,
                                                        FIRST_VERSION, cudaEnableDefault, &found);
#else
    cudaError_t code =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &symbol, cudaEnableDefault, &found);
#endif
    if (code == cudaSuccess && found == cudaDriverEntryPointSuccess)
        memcpy(&driver.encode, &symbol, sizeof(driver.encode));
}

bool tensor_map_is_known(void)
{
    pthread_once(&driver.once, look_up);
    return driver.encode != NULL;
}

int tensor_map_rows(struct tensor_map *out, const void *data, uint64_t n_rows, uint64_t row_bytes,
                    uint64_t stride_bytes, uint32_t box_rows)
{
    const cuuint64_t size[2] = {row_bytes, n_rows}, stride[1] = {stride_bytes};
    const cuuint32_t box[2] = {TENSOR_MAP_LINE, box_rows}, step[2] = {1, 1};
    if (!tensor_map_is_known())
        return cudaErrorNotSupported;
    CUresult result = driver.encode(
        (CUtensorMap *)(void *)out, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)(uintptr_t)data, size,
        stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
