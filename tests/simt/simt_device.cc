/* Emulated devices, their sizes, and errors of the runtime. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simt/simt_processor.h"
#include "tests/simt/simt_runtime.h"

enum { MAX_DEVICES = 16 };

long simt_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtol(text, NULL, 10) : otherwise;
}

/* Never destroyed: streams may still run as the process ends. */
static simt_device *devices(void)
{
    static simt_device *all = [] {
        simt_device *made = new simt_device[MAX_DEVICES];
        for (int i = 0; i < MAX_DEVICES; i++) {
            made[i].index = i;
            made[i].total_bytes = (size_t)simt_setting("SIMT_DEVICE_BYTES", 8L << 30);
            /* a context takes a part of the memory, as on a GPU */
            made[i].used_bytes = made[i].total_bytes / 32;
        }
        return made;
    }();
    return all;
}

int simt_n_devices(void)
{
    static const long n = simt_setting("SIMT_DEVICES", 1);
    return n < 0 ? 0 : n > MAX_DEVICES ? MAX_DEVICES : (int)n;
}

simt_device *simt_device_at(int index)
{
    return index < 0 || index >= simt_n_devices() ? NULL : &devices()[index];
}

simt_device *simt_current_device(void)
{
    return &devices()[simt_tls.device];
}

cudaError_t simt_error(cudaError_t code)
{
    if (code != cudaSuccess && code != cudaErrorNotReady)
        simt_tls.last_error = code;
    return code;
}

cudaError_t simt_check_device(const simt_device *device)
{
    return simt_error((cudaError_t)device->failed.load());
}

static int compute(void)
{
    static const long n = simt_setting("SIMT_COMPUTE", 90);
    return (int)n;
}

static int max_shared(void)
{
    return compute() >= 90 && compute() < 120   ? SIMT_MAX_SHARED
           : compute() == 80 || compute() == 87 ? 163 << 10
                                                : 99 << 10;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = simt_n_devices();
    return simt_error(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (simt_device_at(device) == NULL)
        return simt_error(cudaErrorInvalidDevice);
    simt_tls.device = device;
    return simt_check_device(simt_current_device());
}

cudaError_t cudaGetDevice(int *device)
{
    *device = simt_tls.device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (simt_breaks_capture())
        return simt_error(cudaErrorStreamCaptureUnsupported);
    simt_drain(simt_current_device());
    return simt_check_device(simt_current_device());
}

cudaError_t cudaDeviceReset(void)
{
    simt_drain(simt_current_device());
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total)
{
    simt_device *device = simt_current_device();
    std::lock_guard<std::mutex> hold(device->lock);
    *total = device->total_bytes;
    *n_free = device->total_bytes - device->used_bytes;
    return simt_check_device(device);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (simt_device_at(device) == NULL)
        return simt_error(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = compute() / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = compute() % 10;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = (int)simt_setting("SIMT_MULTIPROCESSORS", 4);
        break;
    case cudaDevAttrWarpSize:
        *value = SIMT_WARP;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        *value = SIMT_MAX_THREADS;
        break;
    case cudaDevAttrMaxBlockDimZ:
        *value = 64;
        break;
    case cudaDevAttrMaxGridDimX:
        *value = INT32_MAX;
        break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        *value = 65535;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2 * SIMT_MAX_THREADS;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = max_shared();
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = max_shared() + (1 << 10);
        break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = 1 << 10;
        break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = 65536;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 32 << 20;
        break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = 64;
        break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrHostRegisterSupported:
        *value = 1;
        break;
    case cudaDevAttrPciBusId:
        *value = device;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    if (simt_device_at(device) == NULL)
        return simt_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof(*prop));
    snprintf(prop->name, sizeof(prop->name), "emulated GPU (tests/simt)");
    prop->uuid.bytes[0] = 's';
    prop->uuid.bytes[15] = (char)device;
    prop->totalGlobalMem = simt_device_at(device)->total_bytes;
    static const struct {
        size_t at;
        cudaDeviceAttr attribute;
    } ints[] = {
        {offsetof(cudaDeviceProp, major), cudaDevAttrComputeCapabilityMajor},
        {offsetof(cudaDeviceProp, minor), cudaDevAttrComputeCapabilityMinor},
        {offsetof(cudaDeviceProp, multiProcessorCount), cudaDevAttrMultiProcessorCount},
        {offsetof(cudaDeviceProp, warpSize), cudaDevAttrWarpSize},
        {offsetof(cudaDeviceProp, maxThreadsPerBlock), cudaDevAttrMaxThreadsPerBlock},
        {offsetof(cudaDeviceProp, maxThreadsPerMultiProcessor),
         cudaDevAttrMaxThreadsPerMultiProcessor},
        {offsetof(cudaDeviceProp, regsPerBlock), cudaDevAttrMaxRegistersPerBlock},
        {offsetof(cudaDeviceProp, l2CacheSize), cudaDevAttrL2CacheSize},
        {offsetof(cudaDeviceProp, memoryBusWidth), cudaDevAttrGlobalMemoryBusWidth},
        {offsetof(cudaDeviceProp, pciBusID), cudaDevAttrPciBusId},
        {offsetof(cudaDeviceProp, unifiedAddressing), cudaDevAttrUnifiedAddressing},
        {offsetof(cudaDeviceProp, canMapHostMemory), cudaDevAttrCanMapHostMemory},
    };
    for (const auto &i : ints) {
        int value = 0;
        cudaDeviceGetAttribute(&value, i.attribute, device);
        memcpy((char *)prop + i.at, &value, sizeof(value));
    }
    prop->sharedMemPerBlock = 48 << 10;
    prop->sharedMemPerBlockOptin = (size_t)max_shared();
    prop->sharedMemPerMultiprocessor = (size_t)max_shared() + (1 << 10);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int n_bytes, int device)
{
    if (simt_device_at(device) == NULL || n_bytes < 13)
        return simt_error(cudaErrorInvalidValue);
    snprintf(id, (size_t)n_bytes, "0000:%02X:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t last = (cudaError_t)simt_tls.last_error;
    simt_tls.last_error = cudaSuccess;
    return last;
}

cudaError_t cudaPeekAtLastError(void)
{
    return (cudaError_t)simt_tls.last_error;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorString(cudaError_t code)
{
    for (const auto &e : errors)
        if (e.code == code)
            return e.text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t code)
{
    for (const auto &e : errors)
        if (e.code == code)
            return e.name;
    return "unrecognized error code";
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *, int n_threads,
                                                          size_t n_shared)
{
    int by_threads = n_threads > 0 ? 2 * SIMT_MAX_THREADS / n_threads : 0;
    int by_shared = max_shared() / (int)(n_shared + (1 << 10));
    *n = by_threads < by_shared ? by_threads : by_shared;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *kernel,
                                                                   int n_threads, size_t n_shared,
                                                                   unsigned)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, kernel, n_threads, n_shared);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *)
{
    memset(out, 0, sizeof(*out));
    out->maxThreadsPerBlock = SIMT_MAX_THREADS;
    out->numRegs = 64;
    out->maxDynamicSharedSizeBytes = 48 << 10;
    out->binaryVersion = out->ptxVersion = compute();
    return cudaSuccess;
}

} /* extern "C" */
