/* probe.cu: the probes' table. */
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernel.h"

static const char *message_of(int code)
{
    return code == PROBE_ABSENT ? "needs a card of compute capability 9.0, in a build for 90a"
                                : cudaGetErrorString((cudaError_t)code);
}

static const struct gpu_probe probe = {
    /* .read_stream */ probe_read_stream,
    /* .product */ probe_product_run,
    /* .widen */ probe_widen,
    /* .message */ message_of,
};

extern "C" __attribute__((visibility("default"))) const struct gpu_probe *gpu_probe_table(void)
{
    return &probe;
}
