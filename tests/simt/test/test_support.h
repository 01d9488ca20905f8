/* test_support.h: shared parts of the emulator's own tests. Where a case must end the process or
 * needs other settings, a child process runs it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}
#include <cuda_runtime_api.h>

/* Kernels of these tests do not wait for previous ops. */
#undef CUDA_LAUNCH
#define CUDA_LAUNCH(kernel, ...) SIMT_LAUNCH(kernel, SIMT_PLAIN, __VA_ARGS__)

/* A case that a child process runs; it passes by returning 0. */
struct child_case {
    const char *name;
    int (*run)(void);
};

/* To be called first in main: where the arguments name a case, runs it and ends the process. */
void run_child_case(int argc, char **argv, const child_case *cases, size_t n_cases);

struct child_end {
    int signal, exit_code; /* signal or exit code; the other is 0 */
    std::string said;      /* on stderr */
};
/* Runs a case in a new process, with "NAME=value" settings added. */
child_end in_child(const char *name, const std::vector<std::string> &settings = {});
/* Expects that the case ends by abort() with a message that contains `text`. */
void expect_abort(const char *name, const char *text);

/* An array on the device that the host fills and reads. */
template <typename T> struct on_device {
    T *data = NULL;
    size_t n;
    explicit on_device(size_t n_elements) : n(n_elements)
    {
        if (cudaMalloc((void **)&data, n * sizeof(T)) != cudaSuccess)
            data = NULL;
    }
    explicit on_device(const std::vector<T> &x) : on_device(x.size())
    {
        cudaMemcpy(data, x.data(), n * sizeof(T), cudaMemcpyHostToDevice);
    }
    on_device(const on_device &) = delete;
    ~on_device()
    {
        cudaFree(data);
    }
    std::vector<T> fetch() const
    {
        std::vector<T> x(n);
        cudaMemcpy(x.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost);
        return x;
    }
};

/* xorshift; never 0. */
struct random_numbers {
    uint64_t state;
    uint32_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (uint32_t)(state >> 16);
    }
};
