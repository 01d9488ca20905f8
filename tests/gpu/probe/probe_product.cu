/* probe_product.cu: memory and launch of the probes' products. */
#include "tests/gpu/probe/probe_product.h"

static int launch(const struct probe_product *p, const struct probe_args &args)
{
    switch (p->type) {
    case PROBE_BF16:
        return probe_launch_form<PROBE_BF16>(p->form, p->n_blocks, args);
    case PROBE_F16:
        return probe_launch_form<PROBE_F16>(p->form, p->n_blocks, args);
    default:
        return probe_launch_form<PROBE_E4M3>(p->form, p->n_blocks, args);
    }
}

/* The instructions of wgmma are built for compute capability 9.0 alone. */
static int capability_of(int *out_major, int *out_minor)
{
    int code = 0;
    PROBE_TRY(code, cudaDeviceGetAttribute(out_major, cudaDevAttrComputeCapabilityMajor, 0));
    PROBE_TRY(code, cudaDeviceGetAttribute(out_minor, cudaDevAttrComputeCapabilityMinor, 0));
    return code;
}

static __global__ void is_built(uint32_t *out)
{
    *out = WGMMA_BUILT;
}

static int check_wgmma(void)
{
    uint32_t *on_device = NULL, host = 0;
    int code = 0, major = 0, minor = 0;
    PROBE_TRY(code, capability_of(&major, &minor));
    if (code == 0 && (major != 9 || minor != 0))
        return PROBE_ABSENT;
    PROBE_TRY(code, cudaMalloc((void **)&on_device, sizeof(host)));
    PROBE_TRY(code, PROBE_LAUNCH(is_built, 1, 1, 0, on_device));
    PROBE_TRY(code, cudaMemcpy(&host, on_device, sizeof(host), cudaMemcpyDeviceToHost));
    (void)cudaFree(on_device);
    return code == 0 && host == 0 ? PROBE_ABSENT : code;
}

int probe_product_run(const struct probe_product *p)
{
    const uint32_t element = p->type == PROBE_E4M3 ? 1 : 2, row_bytes = p->k * element;
    const size_t a_bytes = (size_t)PROBE_ROWS * row_bytes, b_bytes = (size_t)p->n * row_bytes;
    const size_t y_bytes = (size_t)p->n_blocks * PROBE_ROWS * p->n * sizeof(float);
    unsigned char *memory = NULL;
    int code = p->form == PROBE_MMA ? 0 : check_wgmma();
    PROBE_TRY(code, cudaMalloc((void **)&memory, a_bytes + b_bytes + y_bytes));
    const struct probe_args args = {memory, memory + a_bytes, (float *)(memory + a_bytes + b_bytes),
                                    p->n,   row_bytes,        p->promote * element / WGMMA_STEP};
    PROBE_TRY(code, cudaMemcpy(memory, p->a, a_bytes, cudaMemcpyHostToDevice));
    PROBE_TRY(code, cudaMemcpy(memory + a_bytes, p->b, b_bytes, cudaMemcpyHostToDevice));
    PROBE_TRY(code, cudaMemset(args.y, 0xFF, y_bytes));
    PROBE_TRY(code, launch(p, args));
    PROBE_TRY(code, cudaMemcpy(p->y, args.y, y_bytes, cudaMemcpyDeviceToHost));
    (void)cudaFree(memory);
    return code;
}
