/* device_fault.h: what a failed call of a device's driver means for the process that made it. Pure
 * functions over error codes and struct error; any thread. The class travels as the error's reason
 * ("DEVICE_ILLEGAL_ACCESS") from the device through the engine to the worker's exit report. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;

enum device_fault {
    DEVICE_FAULT_NONE,           /* no error of a device */
    DEVICE_FAULT_CALL,           /* the call was wrong or is refused; the context is as it was */
    DEVICE_FAULT_MEMORY,         /* not enough device memory; the context is as it was */
    DEVICE_FAULT_ILLEGAL_ACCESS, /* a kernel went wrong: address, instruction, stack, assertion */
    DEVICE_FAULT_TIMEOUT,        /* a kernel ran too long for the driver */
    DEVICE_FAULT_CONTAINED,      /* a hardware error that only this process suffers */
    DEVICE_FAULT_ECC,            /* uncorrectable memory error */
    DEVICE_FAULT_NVLINK,         /* uncorrectable error between devices */
    DEVICE_FAULT_DRIVER,         /* driver, its services or the device itself are gone */
    DEVICE_FAULT_UNKNOWN,        /* the driver does not say */
    N_DEVICE_FAULTS
};

/* The codes of cudaError_t that have a class of their own, written out so that this file needs no
 * CUDA header; kernels/cuda/host/device_cuda.c checks each against it. */
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

/* Newer than some headers that this builds with; 721 leaks memory of a kind no kernel here uses. */
enum {
    DEVICE_FAULT_CUDA_CONTAINED = 226,
    DEVICE_FAULT_CUDA_TENSOR_LEAK = 721,
    DEVICE_FAULT_CUDA_MPS_CLIENT_TERMINATED = 810,
    DEVICE_FAULT_CUDA_EXTERNAL_DEVICE = 911,
};

/* Of a cudaError_t; 0 is NONE, what has no class of its own is CALL. */
enum device_fault device_fault_of_cuda(int code);

/* True where the process can use the device no more: every further call fails, or its results mean
 * nothing. */
bool device_fault_is_final(enum device_fault fault);

/* "DEVICE_ECC"; NONE and CALL: "". */
const char *device_fault_reason(enum device_fault fault);
/* The class that an error carries as its reason; NONE where it carries none. */
enum device_fault device_fault_of_error(const struct error *err);
/* The device it is of, as its message names it first ("... cuda:3: ..."). False: none is named. */
bool device_fault_device(const struct error *err, uint32_t *out_index);

/* Exit status of a process that ends because of it: 80 and the class, for those who find no exit
 * report. */
int device_fault_exit_status(enum device_fault fault);
