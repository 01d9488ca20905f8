/* backend.h: finds devices by name. "cpu:N" is the CPU, where N is the NUMA node for the placement
 * of threads. "cuda:0" needs the CUDA module. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct device;
struct device_memory;
struct device_ops;
struct error;
struct op_table;

const struct device_ops *backend_cpu(void);
/* Reads the host memory: total, and free within the limits of the cgroup. Any thread. */
int backend_cpu_memory(struct device_memory *out_memory, struct error *err);

/* The contents of an opened backend module: its devices and its only kernel set. */
struct backend_module {
    const struct device_ops *device_ops;
    const struct op_table *op_table;
    uint32_t n_devices;
    /* Describes for people how the module's kernels run on an opened device ("ops overlap"). */
    void (*describe)(const struct device *device, char *out, size_t n_bytes);
};

/* The only function that libsluice_cuda.so exports, under the name SLUICE_CUDA_ENTRY;
 * backend_cuda() calls it once. */
#define SLUICE_CUDA_ENTRY "sluice_cuda_module"
typedef int backend_module_fn(struct backend_module *out_module, struct error *err);

/* Opens libsluice_cuda.so (SLUICE_CUDA_MODULE or beside the program) once per process. NOT_FOUND /
 * FAILED_PRECONDITION tell why there is no usable device ("no CUDA driver", "driver too old",
 * "module not built"). Any thread. */
int backend_cuda(struct backend_module *out_module, struct error *err);
