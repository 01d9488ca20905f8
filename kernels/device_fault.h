/* device_fault.h: classifies failed driver calls by their consequence for the process. Pure
 * functions over error codes and struct error; any thread. The class becomes the error's reason
 * (REASON_DEVICE_ILLEGAL_ACCESS). The reason passes from the device through the engine to the
 * worker's exit report. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"

struct error;

enum device_fault {
    DEVICE_FAULT_NONE,           /* no device error */
    DEVICE_FAULT_CALL,           /* an invalid or refused call; the context is unchanged */
    DEVICE_FAULT_MEMORY,         /* out of device memory; the context is unchanged */
    DEVICE_FAULT_ILLEGAL_ACCESS, /* a kernel failed: address, instruction, stack, assertion */
    DEVICE_FAULT_TIMEOUT,        /* a kernel exceeded the driver's time limit */
    DEVICE_FAULT_CONTAINED,      /* a hardware error that affects this process alone */
    DEVICE_FAULT_ECC,            /* uncorrectable memory error */
    DEVICE_FAULT_NVLINK,         /* uncorrectable error between devices */
    DEVICE_FAULT_DRIVER,         /* the driver, its services or the device are gone */
    DEVICE_FAULT_UNKNOWN,        /* the driver does not tell the cause */
    N_DEVICE_FAULTS
};

/* Codes of cudaError_t with their classes; all other codes are CALL. Written as numbers, so that
 * this file needs no CUDA header. kernels/cuda/host/device_cuda.c checks each number. */
/* clang-format off */
#define DEVICE_FAULT_CUDA_CODES(code) \
    code(MemoryAllocation, 2, MEMORY) \
    code(InitializationError, 3, DRIVER) \
    code(CudartUnloading, 4, DRIVER) \
    code(InsufficientDriver, 35, DRIVER) \
    code(DevicesUnavailable, 46, DRIVER) \
    code(IncompatibleDriverContext, 49, DRIVER) \
    code(NoDevice, 100, DRIVER) \
    code(DeviceUninitialized, 201, DRIVER) \
    code(ECCUncorrectable, 214, ECC) \
    code(NvlinkUncorrectable, 220, NVLINK) \
    code(OperatingSystem, 304, DRIVER) \
    code(IllegalAddress, 700, ILLEGAL_ACCESS) \
    code(LaunchTimeout, 702, TIMEOUT) \
    code(ContextIsDestroyed, 709, DRIVER) \
    code(Assert, 710, ILLEGAL_ACCESS) \
    code(HardwareStackError, 714, ILLEGAL_ACCESS) \
    code(IllegalInstruction, 715, ILLEGAL_ACCESS) \
    code(MisalignedAddress, 716, ILLEGAL_ACCESS) \
    code(InvalidAddressSpace, 717, ILLEGAL_ACCESS) \
    code(InvalidPc, 718, ILLEGAL_ACCESS) \
    code(LaunchFailure, 719, ILLEGAL_ACCESS) \
    code(SystemNotReady, 802, DRIVER) \
    code(SystemDriverMismatch, 803, DRIVER) \
    code(MpsConnectionFailed, 805, DRIVER) \
    code(MpsRpcFailure, 806, DRIVER) \
    code(MpsServerNotReady, 807, DRIVER) \
    code(Unknown, 999, UNKNOWN)
/* clang-format on */

/* Codes that some supported CUDA headers lack. 721 leaks a kind of memory that no kernel here
 * uses. */
enum {
    DEVICE_FAULT_CUDA_CONTAINED = 226,
    DEVICE_FAULT_CUDA_TENSOR_LEAK = 721,
    DEVICE_FAULT_CUDA_MPS_CLIENT_TERMINATED = 810,
    DEVICE_FAULT_CUDA_EXTERNAL_DEVICE = 911,
};

/* Returns the class of a cudaError_t. 0 is NONE; a code that is not listed is CALL. */
enum device_fault device_fault_of_cuda(int code);

/* Returns true if the process can no longer use the device: further calls fail, or their results
 * are invalid. */
bool device_fault_is_final(enum device_fault fault);

/* Returns REASON_DEVICE_ECC and the like; REASON_NONE for NONE and CALL. */
enum reason device_fault_reason(enum device_fault fault);
/* Returns the class in an error's reason; NONE if the reason is no class. */
enum device_fault device_fault_of_error(const struct error *err);
/* Finds the first device named in the error's message ("... cuda:3: ..."). False if no device is
 * named. */
bool device_fault_device(const struct error *err, uint32_t *out_index);

/* Returns the exit status of a process that ends because of this fault: 80 + class. For callers
 * without an exit report. */
int device_fault_exit_status(enum device_fault fault);
