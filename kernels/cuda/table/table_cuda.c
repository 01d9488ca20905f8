/* The op table. */
#include "kernels/cuda/table_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/dense/cublaslt.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/weight_cuda.h"

/* Only the numerics name differs: it names the products of prompts. */
static const struct op_table op_table_cuda_set = {
    .name = "cuda",
    .kv_dtypes =
        1u << DTYPE_F32 | 1u << DTYPE_F16 | 1u << DTYPE_BF16 | 1u << DTYPE_I8 | 1u << DTYPE_F8_E4M3,
    .weight_device_bytes = weight_device_bytes_cuda,
    .weight_slice_bytes = weight_slice_bytes_cuda,
    .weight_pack_slice = weight_pack_slice_cuda,
    .weight_bind = weight_bind_cuda,
    .weight_unbind = weight_unbind_cuda,
    .act_bytes = act_bytes_cuda,
    .act_create = act_create_cuda,
    .act_destroy = act_destroy_cuda,
    .embed = embed_cuda,
    .rms_norm = rms_norm_cuda,
    .layer_norm = layer_norm_cuda,
    .add = add_cuda,
    .add_bias = add_bias_cuda,
    .act_mul = act_mul_cuda,
    .act_prepare = act_prepare_cuda,
    .norm_prepare = norm_prepare_cuda,
    .linear = linear_cuda,
    .linear_parts = linear_parts_cuda,
    .linear_gated = linear_gated_cuda,
    .gated_prepare = gated_prepare_cuda,
    .linear_partial = linear_partial_cuda,
    .linear_finish = linear_finish_cuda,
    .rope = rope_cuda,
    .kv_write = kv_write_cuda,
    .rope_kv = rope_kv_cuda,
    .stream_bytes = stream_bytes_cuda,
    .stream_reserve = stream_reserve_cuda,
    .attention = attention_cuda,
    .gather_rows = gather_rows_cuda,
    .sample = sample_cuda,
};

/* Written once, except the numerics name with prompts "auto". */
static struct {
    pthread_once_t once;
    struct error err;
    enum cuda_prompts prompts;
    enum cuda_attention attention;
    char numerics[32];
    struct op_table ops;
} chosen = {.once = PTHREAD_ONCE_INIT};

static const char *const prompts_names[] = {"auto", "own", "wgmma", "cublaslt"};

const char *cuda_prompts_name(enum cuda_prompts prompts)
{
    return prompts_names[prompts];
}

static int parse_prompts(const char *word, enum cuda_prompts *out, struct error *err)
{
    for (uint32_t i = 0; i < sizeof(prompts_names) / sizeof(prompts_names[0]); i++)
        if (strcmp(word, prompts_names[i]) == 0) {
            *out = (enum cuda_prompts)i;
            return 0;
        }
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "SLUICE_CUDA_PROMPTS: \"%s\" is invalid; give auto, own, wgmma or cublaslt",
                     word);
}

static int parse_attention(const char *word, enum cuda_attention *out, struct error *err)
{
    if (strcmp(word, "mma") != 0 && strcmp(word, "wgmma") != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "SLUICE_CUDA_ATTENTION: \"%s\" is invalid; give mma or wgmma", word);
    *out = word[0] == 'w' ? CUDA_ATTENTION_WGMMA : CUDA_ATTENTION_MMA;
    return 0;
}

static const char *numerics_suffix(void)
{
    return chosen.attention == CUDA_ATTENTION_WGMMA ? "-attn" : "";
}

static void name_numerics(enum cuda_prompts prompts)
{
    snprintf(chosen.numerics, sizeof(chosen.numerics), "cuda-v1-%s%s",
             prompts == CUDA_PROMPTS_WGMMA ? "wgmma" : "own", numerics_suffix());
}

static void choose(void)
{
    const char *wanted = getenv("SLUICE_CUDA_PROMPTS");
    const char *attention = getenv("SLUICE_CUDA_ATTENTION");
    struct cublaslt_api api = {.library = NULL};
    struct error err = {0};
    int rc = wanted == NULL || wanted[0] == '\0'
                 ? 0
                 : parse_prompts(wanted, &chosen.prompts, &chosen.err);
    if (rc == 0 && attention != NULL && attention[0] != '\0')
        rc = parse_attention(attention, &chosen.attention, &chosen.err);
    if (rc == 0 && chosen.prompts == CUDA_PROMPTS_LT && cublaslt_load(&api, &err) != 0)
        error_set(&chosen.err, err.status, "SLUICE_CUDA_PROMPTS: %s", err.message);
    chosen.ops = op_table_cuda_set;
    name_numerics(chosen.prompts);
    /* cuBLASLt chooses the algorithm for each shape, so the bits depend on its version. */
    if (api.version != NULL)
        snprintf(chosen.numerics, sizeof(chosen.numerics), "cuda-v1-lt%zu%s", api.version(),
                 numerics_suffix());
    chosen.ops.numerics = chosen.numerics;
}

int table_cuda_choose(struct error *err)
{
    pthread_once(&chosen.once, choose);
    if (chosen.err.status != 0)
        *err = chosen.err;
    return chosen.err.status;
}

const struct op_table *op_table_cuda(void)
{
    pthread_once(&chosen.once, choose);
    return &chosen.ops;
}

enum cuda_prompts table_cuda_prompts(void)
{
    pthread_once(&chosen.once, choose);
    return chosen.prompts;
}

enum cuda_attention table_cuda_attention(void)
{
    pthread_once(&chosen.once, choose);
    return chosen.attention;
}

void table_cuda_settle(enum cuda_prompts prompts)
{
    pthread_once(&chosen.once, choose);
    if (chosen.prompts == CUDA_PROMPTS_AUTO)
        name_numerics(prompts);
}
