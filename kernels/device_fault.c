#include "kernels/device_fault.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { EXIT_STATUS_BASE = 80 };

static const enum reason reasons[N_DEVICE_FAULTS] = {
    [DEVICE_FAULT_NONE] = REASON_NONE,
    [DEVICE_FAULT_CALL] = REASON_NONE,
    [DEVICE_FAULT_MEMORY] = REASON_DEVICE_MEMORY,
    [DEVICE_FAULT_ILLEGAL_ACCESS] = REASON_DEVICE_ILLEGAL_ACCESS,
    [DEVICE_FAULT_TIMEOUT] = REASON_DEVICE_TIMEOUT,
    [DEVICE_FAULT_CONTAINED] = REASON_DEVICE_CONTAINED,
    [DEVICE_FAULT_ECC] = REASON_DEVICE_ECC,
    [DEVICE_FAULT_NVLINK] = REASON_DEVICE_NVLINK,
    [DEVICE_FAULT_DRIVER] = REASON_DEVICE_DRIVER,
    [DEVICE_FAULT_UNKNOWN] = REASON_DEVICE_UNKNOWN,
};

enum device_fault device_fault_of_cuda(int code)
{
    switch (code) {
    case 0:
        return DEVICE_FAULT_NONE;
#define CLASS(name, number, fault)                                                                 \
    case number:                                                                                   \
        return DEVICE_FAULT_##fault;
        DEVICE_FAULT_CUDA_CODES(CLASS)
#undef CLASS
    case DEVICE_FAULT_CUDA_CONTAINED:
        return DEVICE_FAULT_CONTAINED;
    case DEVICE_FAULT_CUDA_TENSOR_LEAK:
        return DEVICE_FAULT_ILLEGAL_ACCESS;
    case DEVICE_FAULT_CUDA_MPS_CLIENT_TERMINATED:
    case DEVICE_FAULT_CUDA_EXTERNAL_DEVICE:
        return DEVICE_FAULT_DRIVER;
    default:
        return DEVICE_FAULT_CALL;
    }
}

bool device_fault_is_final(enum device_fault fault)
{
    return fault >= DEVICE_FAULT_ILLEGAL_ACCESS && fault < N_DEVICE_FAULTS;
}

enum reason device_fault_reason(enum device_fault fault)
{
    return fault < N_DEVICE_FAULTS ? reasons[fault] : REASON_NONE;
}

enum device_fault device_fault_of_error(const struct error *err)
{
    for (int fault = DEVICE_FAULT_MEMORY; fault < N_DEVICE_FAULTS; fault++)
        if (err->status != 0 && err->reason == reasons[fault])
            return (enum device_fault)fault;
    return DEVICE_FAULT_NONE;
}

bool device_fault_device(const struct error *err, uint32_t *out_index)
{
    static const char prefix[] = "cuda:";
    enum { MAX_DIGITS = 6 };
    for (const char *at = err->message; (at = strstr(at, prefix)) != NULL;) {
        at += sizeof(prefix) - 1;
        size_t n_digits = strspn(at, "0123456789");
        if (n_digits == 0 || n_digits > MAX_DIGITS)
            continue;
        *out_index = (uint32_t)strtoul(at, NULL, 10);
        return true;
    }
    return false;
}

int device_fault_exit_status(enum device_fault fault)
{
    return EXIT_STATUS_BASE + (int)fault;
}
