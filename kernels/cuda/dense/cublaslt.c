#include "kernels/cuda/dense/cublaslt.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static void *open_library(struct error *err)
{
    const char *chosen = getenv("SLUICE_CUDA_LIBRARY_PATH");
    const char *const names[] = {
        SLUICE_CUBLASLT,
        "/usr/local/cuda/lib64/" SLUICE_CUBLASLT,
    };
    size_t n_names = sizeof(names) / sizeof(names[0]);
    void *library = NULL;
    for (const char *at = chosen != NULL ? chosen : ""; library == NULL && *at != '\0';) {
        char path[4096]; /* a folder of the colon-separated list */
        size_t n = strcspn(at, ":");
        if (n > 0 && snprintf(path, sizeof(path), "%.*s/%s", (int)n, at, SLUICE_CUBLASLT) <
                         (int)sizeof(path))
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        at += n + (at[n] == ':');
    }
    for (size_t i = 0; library == NULL && i < n_names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        error_set(err, STATUS_FAILED_PRECONDITION, "cuBLASLt cannot be opened: %s",
                  why != NULL ? why : "unknown reason");
    }
    return library;
}

struct symbol {
    const char *name;
    void *slot; /* address of a function pointer */
};

int cublaslt_load(struct cublaslt_api *out_api, struct error *err)
{
    struct cublaslt_api api = {0};
    const struct symbol symbols[] = {
        {"cublasLtCreate", &api.create},
        {"cublasLtDestroy", &api.destroy},
        {"cublasLtGetStatusName", &api.status_name},
        {"cublasLtMatmulDescCreate", &api.desc_create},
        {"cublasLtMatmulDescDestroy", &api.desc_destroy},
        {"cublasLtMatmulDescSetAttribute", &api.desc_set},
        {"cublasLtMatrixLayoutCreate", &api.layout_create},
        {"cublasLtMatrixLayoutDestroy", &api.layout_destroy},
        {"cublasLtMatrixLayoutSetAttribute", &api.layout_set},
        {"cublasLtMatmulPreferenceCreate", &api.preference_create},
        {"cublasLtMatmulPreferenceDestroy", &api.preference_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", &api.preference_set},
        {"cublasLtMatmulAlgoGetHeuristic", &api.heuristic},
        {"cublasLtMatmulAlgoConfigGetAttribute", &api.algo_get},
        {"cublasLtMatmul", &api.matmul},
        {"cublasLtGetVersion", &api.version},
    };
    api.library = open_library(err);
    if (api.library == NULL)
        return err->status;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(api.library, symbols[i].name);
        if (found == NULL)
            return error_set(err, STATUS_FAILED_PRECONDITION, "cuBLASLt has no %s",
                             symbols[i].name);
        memcpy(symbols[i].slot, &found, sizeof(found));
    }
    *out_api = api;
    return 0;
}
