/* cublaslt.h: cuBLASLt as a table of functions, opened at the first use. Private to kernels/cuda.
 * The library is searched in the folders of SLUICE_CUDA_LIBRARY_PATH, then by the loader, then in
 * CUDA's usual place. */
#pragma once

#include <cublasLt.h>

struct error;

struct cublaslt_api {
    void *library;
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtGetStatusName) *status_name;
    __typeof__(cublasLtMatmulDescCreate) *desc_create;
    __typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
    __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
    __typeof__(cublasLtMatrixLayoutSetAttribute) *layout_set;
    __typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
    __typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
    __typeof__(cublasLtMatmulAlgoConfigGetAttribute) *algo_get;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtGetVersion) *version;
};

/* FAILED_PRECONDITION names the missing file or function. The library is never closed. */
int cublaslt_load(struct cublaslt_api *out_api, struct error *err);
