/* device_cuda.h: devices and streams of the CUDA backend, private to kernels/cuda. A stream is used
 * by one thread at a time, a device by any thread (with locks inside for its state). */
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
    struct arena arena;  /* memory of reserve(); without it the driver allocates */
    struct cublaslt *lt; /* linear_cublaslt.c locks */
    uint32_t max_shared; /* bytes of shared memory allowed per block */
    int major;           /* major compute capability */
    uint32_t n_multiprocessors;
    bool is_tried; /* test kernels have run. They run before the first memory or stream, not at
                      open. The fields below give their values until then */
    bool overlap;  /* see overlap.h; until tested false */
    const char *why_no_overlap;    /* as far as known without a launch */
    enum cuda_prompts prompts;     /* until tested CUDA_PROMPTS_AUTO */
    enum cuda_attention attention; /* until tested CUDA_ATTENTION_AUTO */
    const char *why_no_attention;  /* result of its check; NULL: used, or not requested */
    enum cuda_fp8 fp8;             /* until tested CUDA_FP8_AUTO */
    const char *why_no_fp8;        /* result of its check; NULL: used, or not requested */
    enum cuda_fetch fetch;
    bool greedy_at_once;  /* see sample_open_cuda() */
    bool decode_by_teams; /* attention of generated rows; see attention_open_cuda() */
    const char
        *why_no_wgmma; /* result of the wgmma check; NULL: wgmma is used, or was not requested */
};

/* Device memory that grows with use, stream-ordered; never while a graph is captured. */
struct grown {
    void *data;
    size_t n_bytes;
    bool reserved; /* belongs to the device (stream_scratch.c); the stream does not free it */
};

struct stream_cuda {
    struct stream base;
    cudaStream_t handle;
    bool capturing;
    struct error sticky; /* the first failure; stream_sync returns it */
    struct grown planes, attention, sample_scratch, sample_device;
    struct grown widened;     /* weights widened for prompts (linear_widen_cuda.h) */
    uint32_t *sample_tickets; /* the last bytes of sample_scratch, once they are zero */
    void *sample_host;        /* pinned, as large as sample_device */
    size_t sample_host_bytes;
    cudaEvent_t sample_uploaded; /* afterwards the pinned memory may be overwritten */
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

/* Returns 0, or fills err: "cuda:0: <what>: <CUDA's text>", with the error's class (device_fault.h)
 * as the reason. Memory exhaustion is RESOURCE_EXHAUSTED. */
int cuda_check(struct error *err, uint32_t index, const char *what, int code);
/* For calls that only release resources and return no error: remembers a failure that ends the
 * context. */
void cuda_note(uint32_t index, int code);
/* cuda_is_lost: true if a call has shown that the device's context has ended. cuda_lost: the error
 * of that call; 0: none. Any thread. */
bool cuda_is_lost(uint32_t index);
int cuda_lost(uint32_t index);
/* cuda_check() for an op of a stream: keeps the first failure in s->sticky for stream_sync. */
int device_stream_check(struct stream_cuda *s, const char *what, int code);
/* Keeps a failure that is not CUDA's; returns status. */
int device_stream_fail(struct stream_cuda *s, int status, const char *what);
/* Grows the buffer to at least n_bytes. FAILED_PRECONDITION during a capture: a step runs once
 * before it is captured, and then nothing grows. */
int device_stream_grow(struct stream_cuda *s, struct grown *buffer, size_t n_bytes,
                       const char *what);
/* In sample_cuda.c: sets device->greedy_at_once by SLUICE_CUDA_GREEDY: "once" (default) or
 * "phases". "once" is for calls whose rows are all greedy and want no more than the token.
 * INVALID_ARGUMENT for another value. */
int sample_open_cuda(struct device_cuda *device, struct error *err);
/* In sample_cuda.c: grows the pinned memory to n_bytes of parameters. */
int device_stream_reserve_host(struct stream_cuda *s, size_t n_bytes);
/* In stream_scratch.c: frees all buffers. */
void device_stream_release(struct stream_cuda *s);
/* Makes the stream's device current for this thread. */
int device_stream_enter(struct stream_cuda *s);

/* Counts usable devices. If there is none the message names the cause: no driver, a driver too old,
 * no GPU. */
int device_count_cuda(uint32_t *out_n_devices, struct error *err);
/* In overlap.c: the part of overlap_open() that launches no kernel. *out_why_not says why steps
 * cannot overlap; NULL if a launch must decide. INVALID_ARGUMENT for a bad SLUICE_CUDA_OVERLAP. */
int device_overlap_check(int major, const char **out_why_not, struct error *err);
/* In attention_cuda.c: sets device->decode_by_teams by SLUICE_CUDA_DECODE: "teams"
 * (attention_team_kernel.h, 8-bit caches) or "warps". Default: "teams" on devices of 9.0, "warps"
 * on others. Both give the same bits. INVALID_ARGUMENT for another value, FAILED_PRECONDITION if
 * "teams" is requested on a device below 9.0. */
int attention_open_cuda(struct device_cuda *device, struct error *err);
/* In prompts_cuda.c: sets device->prompts and the other choices of table_cuda.h.
 * FAILED_PRECONDITION if wgmma is requested on a device without it. */
int prompts_open_cuda(struct device_cuda *device, struct error *err);
/* experts_cuda.c: allows the kernels of experts their shared memory. Returns a cudaError_t. */
int experts_open_cuda(uint32_t max_shared);
/* Completes the choice of prompts_open_cuda() by running kernels: "auto" becomes wgmma if the wgmma
 * check passes, else the tiled kernel. The device must be current, and cuda_dense_allow_prompt()
 * must have been called. FAILED_PRECONDITION if wgmma is requested and the build has none, or if
 * the driver is too old for fp8 by wgmma. */
int prompts_try_cuda(struct device_cuda *device, struct error *err);
/* The `describe` function of backend.h. */
void device_describe_cuda(const struct device *device, char *out, size_t n_bytes);
/* Returns the highest compute capability of all devices, as 10 · major + minor; 0 if unknown. */
int device_capability_cuda(void);
