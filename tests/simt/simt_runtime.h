/* simt_runtime.h: declarations shared by the parts of the emulated CUDA runtime. Memory is host
 * memory with a record of each allocation. A stream is an OS thread with a queue. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/simt/simt_core.h"

struct simt_device {
    int index;
    std::atomic<int> failed{0}; /* sticky: cudaError of the launch that failed */
    std::mutex lock;            /* all below */
    size_t total_bytes, used_bytes;
    std::set<cudaStream_t> streams;
    cudaStream_t default_stream = NULL;
};

/* --- simt_device.cc --- */

int simt_n_devices(void);
simt_device *simt_device_at(int index); /* NULL: there is none */
simt_device *simt_current_device(void);
/* Keeps an error code for cudaGetLastError, and returns it. */
cudaError_t simt_error(cudaError_t code);
/* Returns the device's sticky error and keeps it as simt_error() does; 0: none. */
cudaError_t simt_check_device(const simt_device *device);
long simt_setting(const char *name, long otherwise);

/* --- simt_memory.cc --- */

enum simt_place { SIMT_UNKNOWN, SIMT_DEVICE, SIMT_PINNED };

struct simt_memory {
    enum simt_place place = SIMT_UNKNOWN;
    int device = 0;
    size_t n_left = 0; /* bytes from the address to the end of the allocation */
};
/* Returns the allocation of an address. The address one past its end counts, too. */
simt_memory simt_memory_of(const void *p);
/* Ends the process where `p` does not lie where a copy of this kind needs it. */
void simt_check_range(const char *call, const void *p, size_t n_bytes, bool is_device);
/* Frees device memory at once; cudaErrorInvalidValue where `p` is none. */
cudaError_t simt_free_device(void *p);
cudaError_t simt_allocate_device(simt_device *device, void **out, size_t n_bytes);

/* --- simt_stream.cc --- */

struct simt_launch;

struct simt_op {
    enum kind { KERNEL, COPY, MARK } kind;
    std::function<void(simt_device *)> run;    /* other kinds than KERNEL */
    std::shared_ptr<const simt_launch> launch; /* for KERNEL */
};

/* Waits for all that is queued on all streams of a device. */
void simt_drain(simt_device *device);
/* Returns true if the calling thread captures in a mode that forbids unsafe calls; the capture is
 * then broken. */
bool simt_breaks_capture(void);
