/* Widens quantized weights to f16 (widen.h). Every thread of a warp reads the words that it would
 * multiply, and stores eight bytes of a row for each. Four lanes store a whole sector. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: widen.cu widen_rows registers 64
 */
#include "kernels/cuda/linear_quant/linear_quant_tile.h"
#include "kernels/cuda/linear_quant/widen.h"
#include "kernels/cuda/thread.h"

/* Returns f16 of four columns. */
template <uint32_t FORM> CUDA_DEVICE uint2 widen_four(uint32_t word, int32_t factor, int32_t offset)
{
    float w[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        w[j] = widen_float(FORM, widen_integer(FORM, word, j, factor, offset));
    uint2 four = {pack_f16x2(w[0], w[1]), pack_f16x2(w[2], w[3])};
    return four;
}

/* The integers of a lane's rows in a run: [sub][row g, row g + 8]. */
template <uint32_t FORM> struct widen_scales {
    int32_t factor[2][quant_subs(FORM)][2], offset[2][quant_subs(FORM)][2];
};

template <uint32_t FORM>
CUDA_DEVICE void widen_read_scales(widen_scales<FORM> *s, const struct quant_layout &layout,
                                   const uint8_t *panel, uint32_t i_pair, uint32_t lane)
{
    constexpr uint32_t SUBS = quant_subs(FORM);
    const uint8_t *pair = panel + widen_pair_at(FORM, i_pair);
    uint4 offsets = {0, 0, 0, 0};
    quant_scales<FORM, true>(s->factor, pair + quant_scales_at(FORM), lane);
    if constexpr (quant_has_mins(FORM))
        quant_scales<FORM, false>(s->offset, pair + quant_mins_at(FORM), lane);
    if constexpr (quant_has_offsets(FORM))
        offsets = *(const uint4 *)(panel + widen_offsets_at(&layout, i_pair, lane));
    const uint32_t high[2] = {offsets.x, offsets.y}, low[2] = {offsets.z, offsets.w};
#pragma unroll
    for (uint32_t run = 0; run < 2; run++) {
        uint32_t isd = 0, ism = 0;
        if constexpr (quant_is_super(FORM)) {
            const uint8_t *super = panel + widen_super_at(&layout, i_pair, run, lane);
            isd = *(const uint32_t *)super;
            if constexpr (quant_has_mins(FORM))
                ism = *(const uint32_t *)(super + QUANT_ISM_AT);
        }
#pragma unroll
        for (uint32_t sub = 0; sub < SUBS; sub++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                int32_t *factor = &s->factor[run][sub][half], *offset = &s->offset[run][sub][half];
                if constexpr (quant_is_super(FORM))
                    *factor = quant_product_of(*factor, quant_half(isd, half));
                if constexpr (quant_has_mins(FORM))
                    *offset = quant_product_of(*offset, quant_half(ism, half));
                else
                    *offset = quant_has_offsets(FORM)
                                  ? widen_offset(high[half], low[half], i_pair, run)
                                  : 0;
            }
    }
}

template <uint32_t FORM>
CUDA_DEVICE void widen_pair(const struct widen_job &job, const uint8_t *panel, uint32_t i_panel,
                            uint32_t i_pair, uint32_t lane)
{
    widen_scales<FORM> s;
    uint32_t a[2][4];
    quant_codes<FORM>(a, panel + widen_pair_at(FORM, i_pair), lane);
    widen_read_scales(&s, job.layout, panel, i_pair, lane);
#pragma unroll
    for (uint32_t run = 0; run < 2; run++)
#pragma unroll
        for (uint32_t word = 0; word < WIDEN_WORDS; word++) {
            uint32_t sub = widen_sub(FORM, word), half = widen_half(word);
            uint32_t row = widen_row(i_panel, word, lane);
            uint32_t column = widen_column(i_pair, run, word, lane);
            uint2 four =
                widen_four<FORM>(a[run][word], s.factor[run][sub][half], s.offset[run][sub][half]);
            if (row < job.n_rows && column < job.k)
                *(uint2 *)(job.to + cuda_element(row, job.stride, column)) = four;
        }
}

/* Grid: panels, shares of a panel's pairs. */
template <uint32_t FORM>
static __global__ void __launch_bounds__(WIDEN_THREADS)
    widen_rows(const __grid_constant__ struct widen_job job)
{
    cuda_op_begin();
    uint32_t i_panel = blockIdx.x, lane = cuda_lane_of(threadIdx.x);
    const uint8_t *panel = job.data + quant_panel_from(&job.layout, i_panel);
    uint32_t row = quant_row_of(i_panel, threadIdx.x);
    if (blockIdx.y == 0 && threadIdx.x < QUANT_ROWS && row < job.n_rows)
        job.to_units[row] = widen_unit(FORM, job.units[row]);
    for (uint32_t i = 0; i < WIDEN_PAIRS; i++) {
        uint32_t i_pair = widen_pair_of(blockIdx.y, threadIdx.x, i);
        if (i_pair < job.layout.n_pairs)
            widen_pair<FORM>(job, panel, i_panel, i_pair, lane);
    }
}

typedef void widen_kernel(const struct widen_job job);

static widen_kernel *const kernels[N_QUANT_FORMS] = {
    widen_rows<QUANT_INT4>,   widen_rows<QUANT_INT4_PLAIN>, widen_rows<QUANT_INT8>,
    widen_rows<QUANT_Q5_0>,   widen_rows<QUANT_Q5_1>,       widen_rows<QUANT_Q5_K>,
    widen_rows<QUANT_Q2_K>,   widen_rows<QUANT_Q3_K>,       widen_rows<QUANT_Q6_K>,
    widen_rows<QUANT_IQ4_NL>, widen_rows<QUANT_MXFP4>,      widen_rows<QUANT_IQ4_XS>,
};

int cuda_launch_widen(void *stream, const struct widen_job *job)
{
    widen_kernel *kernel = kernels[job->layout.form];
    dim3 grid(widen_n_panels(job->n_rows), widen_n_blocks(job->layout.n_pairs));
    return CUDA_LAUNCH(kernel, grid, WIDEN_THREADS, 0, stream, *job);
}
