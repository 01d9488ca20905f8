/* The only exported function of libsluice_cuda.so. */
#include "kernels/backend.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/table_cuda.h"

__attribute__((visibility("default"))) int sluice_cuda_module(struct backend_module *out_module,
                                                              struct error *err);

int sluice_cuda_module(struct backend_module *out_module, struct error *err)
{
    uint32_t n_devices = 0;
    int rc = device_count_cuda(&n_devices, err);
    if (rc == 0)
        rc = table_cuda_choose(err);
    if (rc != 0)
        return rc;
    *out_module = (struct backend_module){.device_ops = &device_ops_cuda,
                                          .op_table = op_table_cuda(),
                                          .n_devices = n_devices,
                                          .describe = device_describe_cuda};
    return 0;
}
