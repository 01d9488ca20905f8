/* device_cuda.h: devices and streams of the CUDA backend, private to kernels/cuda. A stream is used
 * by one thread at a time; a device by any (lock inside where it has state). */
#pragma once

#include <stdbool.h>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/host/arena.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/device.h"

struct cublaslt;

enum { STREAM_MAX_GROWTH = 2 }; /* buffers at least double */

struct device_cuda {
    struct device base;
    struct arena arena;  /* what reserve() took; else allocations are the driver's */
    struct cublaslt *lt; /* linear_cublaslt.c locks */
    uint32_t max_shared; /* bytes of shared memory that a block may have */
    int major;           /* of its compute capability */
    bool is_tried;       /* its kernels: before its first memory or stream, not where it is opened,
                            which launches none. Until then: */
    bool overlap;        /* overlap.h; false */
    const char *why_no_overlap; /* as far as that is known without a launch */
    enum cuda_prompts prompts;  /* CUDA_PROMPTS_AUTO: not tried yet */
    const char *why_no_wgmma;   /* it was to be tried; NULL: it is used, or nobody asked */
};

/* Device memory that grows with use, stream-ordered; never while a graph is captured. */
struct grown {
    void *data;
    size_t n_bytes;
    bool reserved; /* the device's (stream_scratch.c); its end is not the stream's */
};

struct stream_cuda {
    struct stream base;
    cudaStream_t handle;
    bool capturing;
    struct error sticky; /* the first failure; told by stream_sync */
    struct grown planes, attention, sample_scratch, sample_device;
    void *sample_host; /* pinned, as large as sample_device */
    size_t sample_host_bytes;
    cudaEvent_t sample_uploaded; /* the pinned memory may be written again */
};

static inline struct stream_cuda *stream_cuda(struct stream *s)
{
    return (struct stream_cuda *)s;
}

static inline struct device_cuda *device_cuda(struct device *device)
{
    return (struct device_cuda *)device;
}

extern const struct device_ops device_ops_cuda;

/* 0, or fills err: "cuda:0: <what>: <CUDA's words>", with its class (device_fault.h) as the reason.
 * Memory exhaustion is RESOURCE_EXHAUSTED. */
int cuda_check(struct error *err, uint32_t index, const char *what, int code);
/* For what only gives back, and has nobody to tell: a failure that ends the context is kept. */
void cuda_note(uint32_t index, int code);
/* Whether a call has shown that the device's context is at its end, and by which error; 0: none.
 * Any thread. */
bool cuda_is_lost(uint32_t index);
int cuda_lost(uint32_t index);
/* The same for an op: keeps the first failure for stream_sync. */
int device_stream_check(struct stream_cuda *s, const char *what, int code);
/* Keeps a failure that is not CUDA's; returns status. */
int device_stream_fail(struct stream_cuda *s, int status, const char *what);
/* Makes the buffer at least n_bytes. FAILED_PRECONDITION while capturing: a step is run once before
 * it is captured, and then nothing grows. */
int device_stream_grow(struct stream_cuda *s, struct grown *buffer, size_t n_bytes,
                       const char *what);
/* sample_cuda.c: pinned memory for so many bytes of parameters. */
int device_stream_reserve_host(struct stream_cuda *s, size_t n_bytes);
/* stream_scratch.c: gives back all buffers. */
void device_stream_release(struct stream_cuda *s);
/* Makes the stream's device current for this thread. */
int device_stream_enter(struct stream_cuda *s);

/* Counts usable devices; the message says why there is none: no driver, a driver too old, no GPU.
 */
int device_count_cuda(uint32_t *out_n_devices, struct error *err);
/* overlap.c: what overlap_open() knows without a launch; NULL: nothing speaks against it. */
int device_overlap_look(int major, const char **out_why_not, struct error *err);
/* prompts_cuda.c: sets device->prompts, as SLUICE_CUDA_PROMPTS has it. FAILED_PRECONDITION where
 * wgmma is asked for on a device that has none. */
int prompts_open_cuda(struct device_cuda *device, struct error *err);
/* The same where kernels have to run to know it; the device is current, and our tiled kernel
 * allowed there. FAILED_PRECONDITION where wgmma is asked for and the build has none. */
int prompts_try_cuda(struct device_cuda *device, struct error *err);
/* backend.h, tell. */
void device_tell_cuda(const struct device *device, char *out, size_t n_bytes);
/* The highest compute capability of all devices, as 10 · major + minor; 0 where it is unknown. */
int device_capability_cuda(void);
