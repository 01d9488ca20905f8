#include "tests/gpu/support/support_probe.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct gpu_probe *open_at(const char *path, const char **out_why)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "gpu_probe_table") : NULL;
    gpu_probe_fn *table = NULL;
    if (symbol == NULL) {
        *out_why = dlerror();
        return NULL;
    }
    memcpy(&table, &symbol, sizeof(symbol)); /* ISO C has no cast from object to function */
    return table();
}

const struct gpu_probe *support_probe_open(const char **out_why)
{
    static const char *const places[] = {"", "../lib/"};
    const char *chosen = getenv("SLUICE_GPU_PROBE");
    const struct gpu_probe *probe = NULL;
    char folder[PATH_MAX] = "", path[PATH_MAX + 64];
    if (chosen != NULL)
        return open_at(chosen, out_why);
    if (readlink("/proc/self/exe", folder, sizeof(folder) - 1) < 0 || !strrchr(folder, '/')) {
        *out_why = "no /proc";
        return NULL;
    }
    strrchr(folder, '/')[1] = 0;
    for (size_t i = 0; probe == NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s%slibgpu_probe.so", folder, places[i]);
        probe = open_at(path, out_why);
    }
    return probe;
}
