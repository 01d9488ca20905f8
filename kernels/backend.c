#include "kernels/backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static struct {
    pthread_once_t once;
    int status;
    struct error err;
    struct backend_module module;
} cuda = {.once = PTHREAD_ONCE_INIT};

/* Writes "<folder of the program><tail>"; empty if the folder is unknown or the path too long. */
static void beside_program(const char *tail, char *out, size_t n_bytes)
{
    char exe[4096];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    out[0] = '\0';
    if (length <= 0)
        return;
    exe[length] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    if (snprintf(out, n_bytes, "%s%s", exe, tail) >= (int)n_bytes)
        out[0] = '\0';
}

/* Tries each place in turn. The module stays open for the life of the process. */
static void *open_module(struct error *err)
{
    const char *chosen = getenv("SLUICE_CUDA_MODULE");
    if (chosen != NULL && chosen[0] != '\0') {
        void *handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL) {
            const char *why = dlerror();
            error_set(err, STATUS_NOT_FOUND, "SLUICE_CUDA_MODULE: cannot be opened: %s",
                      why != NULL ? why : "unknown reason");
        }
        return handle;
    }
    static const char *const tails[] = {
        "/libsluice_cuda.so",
        "/../lib/libsluice_cuda.so",
        "/../lib/sluice/libsluice_cuda.so",
    };
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        char path[4200];
        beside_program(tails[i], path, sizeof(path));
        if (path[0] == '\0' || access(path, R_OK) != 0)
            continue;
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL) {
            const char *why = dlerror();
            error_set(err, STATUS_FAILED_PRECONDITION, "CUDA module cannot be opened: %s",
                      why != NULL ? why : "unknown reason");
        }
        return handle;
    }
    error_set(err, STATUS_NOT_FOUND,
              "no CUDA module: libsluice_cuda.so is not beside the program (not built or not "
              "installed)");
    return NULL;
}

static void open_cuda(void)
{
    void *handle = open_module(&cuda.err);
    if (handle == NULL) {
        cuda.status = cuda.err.status;
        return;
    }
    backend_module_fn *entry = NULL;
    void *symbol = dlsym(handle, SLUICE_CUDA_ENTRY);
    memcpy(&entry, &symbol, sizeof(entry)); /* C has no cast from object to function pointer */
    if (entry == NULL) {
        cuda.status =
            error_set(&cuda.err, STATUS_FAILED_PRECONDITION,
                      "CUDA module has no %s: it belongs to another version", SLUICE_CUDA_ENTRY);
        dlclose(handle);
        return;
    }
    cuda.status = entry(&cuda.module, &cuda.err);
}

int backend_cuda(struct backend_module *out_module, struct error *err)
{
    pthread_once(&cuda.once, open_cuda);
    if (cuda.status != 0) {
        *err = cuda.err;
        return cuda.status;
    }
    *out_module = cuda.module;
    return 0;
}
