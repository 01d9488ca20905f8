/* Errors of CUDA calls: their classes, their consequence for the device, and the search for
 * devices. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cuda/host/device_cuda.h"
#include "kernels/device_fault.h"

#define SAME_CODE(name, number, fault)                                                             \
    _Static_assert(cudaError##name == (number), "device_fault.h has another cudaError" #name);
DEVICE_FAULT_CUDA_CODES(SAME_CODE)
#undef SAME_CODE

enum { MAX_DEVICES = 64 };

/* The error that ended each device's context; 0: none. The context belongs to the process. A call
 * on a device that has fallen off the bus may hang. So nothing is freed or waited for there; the
 * end of the process does it. */
static atomic_int lost[MAX_DEVICES];

int cuda_check(struct error *err, uint32_t index, const char *what, int code)
{
    if (code == cudaSuccess)
        return 0;
    enum device_fault fault = device_fault_of_cuda(code);
    cuda_note(index, code);
    error_set(err, fault == DEVICE_FAULT_MEMORY ? STATUS_RESOURCE_EXHAUSTED : STATUS_INTERNAL,
              "cuda:%u: %s: %s (%d)", index, what, cudaGetErrorString((cudaError_t)code), code);
    return error_reason(err, device_fault_reason(fault));
}

void cuda_note(uint32_t index, int code)
{
    if (code == cudaSuccess)
        return;
    if (device_fault_is_final(device_fault_of_cuda(code)) && index < MAX_DEVICES)
        atomic_store(&lost[index], code);
    cudaGetLastError(); /* otherwise the next launch would report this error too */
}

int cuda_lost(uint32_t index)
{
    return index < MAX_DEVICES ? atomic_load(&lost[index]) : 0;
}

bool cuda_is_lost(uint32_t index)
{
    return cuda_lost(index) != 0;
}

/* Reports a missing driver, or a driver whose library does not load; the loader's text tells
 * which. */
static int no_driver(struct error *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *why = driver == NULL ? dlerror() : NULL;
    int rc = error_set(err, STATUS_FAILED_PRECONDITION, "no CUDA driver on this machine (%s)",
                       why != NULL ? why : "libcuda.so.1 reports no version");
    if (driver != NULL)
        dlclose(driver);
    return rc;
}

int device_count_cuda(uint32_t *out_n_devices, struct error *err)
{
    int n_devices = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&n_devices);
    if (code == cudaSuccess && n_devices > 0) {
        *out_n_devices = (uint32_t)n_devices;
        return 0;
    }
    if (cudaDriverGetVersion(&driver) != cudaSuccess ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        driver = 0;
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return no_driver(err);
    if (code == cudaErrorInsufficientDriver)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "CUDA driver too old: it supports CUDA %d.%d, %d.%d is needed",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        return error_set(err, STATUS_NOT_FOUND, "no CUDA device on this machine");
    return error_set(err, STATUS_FAILED_PRECONDITION, "CUDA does not start: %s (%d)",
                     cudaGetErrorString(code), (int)code);
}

static int best_capability;

static void find_best_capability(void)
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess)
        return;
    for (int i = 0; i < n_devices; i++) {
        int major = 0, minor = 0;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess)
            continue;
        if (10 * major + minor > best_capability)
            best_capability = 10 * major + minor;
    }
}

int device_capability_cuda(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_best_capability);
    return best_capability;
}
