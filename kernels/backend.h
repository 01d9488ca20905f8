/* backend.h: finds devices by name. "cpu:N" is the CPU (and names a NUMA node to those who place
 * threads); "cuda:0" needs the CUDA module. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct device;
struct device_ops;
struct error;
struct op_table;

const struct device_ops *backend_cpu(void);

/* What an opened backend module offers: its devices and its one kernel set. */
struct backend_module {
    const struct device_ops *device_ops;
    const struct op_table *op_table;
    uint32_t n_devices;
    /* How its kernels run on an opened device ("ops overlap"), for people. */
    void (*tell)(const struct device *device, char *out, size_t n_bytes);
};

/* The one function that libsluice_cuda.so exports, under SLUICE_CUDA_ENTRY; backend_cuda() calls it
 * once. */
#define SLUICE_CUDA_ENTRY "sluice_cuda_module"
typedef int backend_module_fn(struct backend_module *out_module, struct error *err);

/* Opens libsluice_cuda.so (SLUICE_CUDA_MODULE or beside the program) once per process. NOT_FOUND /
 * FAILED_PRECONDITION say why there is no usable device ("no CUDA driver", "driver too old",
 * "module not built"). Any thread. */
int backend_cuda(struct backend_module *out_module, struct error *err);
