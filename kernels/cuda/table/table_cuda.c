/* The op table. */
#include "kernels/cuda/table_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/dense/cublaslt.h"
#include "kernels/cuda/experts/experts_cuda.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/weight_cuda.h"

/* Only the numerics name differs: it names the products of prompts. */
static const struct op_table op_table_cuda_set = {
    .name = "cuda",
    .kv_dtypes =
        1u << DTYPE_F32 | 1u << DTYPE_F16 | 1u << DTYPE_BF16 | 1u << DTYPE_I8 | 1u << DTYPE_F8_E4M3,
    .kv_v_in_k = true,
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
    .scale = scale_cuda,
    .act_mul = act_mul_cuda,
    .act_prepare = act_prepare_cuda,
    .norm_prepare = norm_prepare_cuda,
    .linear = linear_cuda,
    .linear_parts = linear_parts_cuda,
    .linear_gated = linear_gated_cuda,
    .gated_prepare = gated_prepare_cuda,
    .linear_partial = linear_partial_cuda,
    .linear_finish = linear_finish_cuda,
    .has_expert_scale = true,
    .router_topk = router_topk_cuda,
    .experts = experts_cuda,
    .experts_bind = experts_bind_cuda,
    .rope = rope_cuda,
    .kv_write = kv_write_cuda,
    .rope_kv = rope_kv_cuda,
    .stream_bytes = stream_bytes_cuda,
    .stream_reserve = stream_reserve_cuda,
    .attention = attention_cuda,
    .conv = conv_cuda,
    .delta_net = delta_net_cuda,
    .ssm = ssm_cuda,
    .copy_heads = copy_heads_cuda,
    .heads_linear = heads_linear_cuda,
    .gather_rows = gather_rows_cuda,
    .sample = sample_cuda,
};

/* Written once, except what "auto" settles and the numerics name. */
static struct {
    pthread_once_t once;
    struct error err;
    enum cuda_prompts prompts;
    enum cuda_attention attention, settled_attention; /* settled: for the numerics name */
    enum cuda_fp8 fp8, settled_fp8;
    enum cuda_fetch fetch;
    enum cuda_join join;
    char product[24]; /* names the product of prompts of f16 and bf16 weights */
    char numerics[64];
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
    static const char *const names[] = {"auto", "mma", "wgmma"};
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(word, names[i]) == 0) {
            *out = (enum cuda_attention)i;
            return 0;
        }
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "SLUICE_CUDA_ATTENTION: \"%s\" is invalid; give auto, mma or wgmma", word);
}

static int parse_fp8(const char *word, enum cuda_fp8 *out, struct error *err)
{
    static const char *const names[] = {"auto", "own", "wgmma"};
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(word, names[i]) == 0) {
            *out = (enum cuda_fp8)i;
            return 0;
        }
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "SLUICE_CUDA_FP8: \"%s\" is invalid; give auto, own or wgmma", word);
}

static int parse_fetch(const char *word, enum cuda_fetch *out, struct error *err)
{
    bool is_engine = strcmp(word, "engine") == 0;
    *out = is_engine ? CUDA_FETCH_ENGINE : CUDA_FETCH_THREADS;
    return is_engine || strcmp(word, "threads") == 0
               ? 0
               : error_set(err, STATUS_INVALID_ARGUMENT,
                           "SLUICE_CUDA_FETCH: \"%s\" is invalid; give threads or engine", word);
}

static int parse_join(const char *word, enum cuda_join *out, struct error *err)
{
    bool is_parts = strcmp(word, "parts") == 0;
    *out = is_parts ? CUDA_JOIN_PARTS : CUDA_JOIN_OFF;
    return is_parts || strcmp(word, "off") == 0
               ? 0
               : error_set(err, STATUS_INVALID_ARGUMENT,
                           "SLUICE_CUDA_JOIN: \"%s\" is invalid; give parts or off", word);
}

static void name_numerics(void)
{
    snprintf(chosen.numerics, sizeof(chosen.numerics), "cuda-v1-%s%s%s", chosen.product,
             chosen.settled_fp8 == CUDA_FP8_WGMMA ? "-fp8wgmma" : "",
             chosen.settled_attention == CUDA_ATTENTION_WGMMA ? "-attn" : "");
}

static const char *product_name(enum cuda_prompts prompts)
{
    return prompts == CUDA_PROMPTS_WGMMA ? "wgmma" : "own";
}

static bool is_given(const char *value)
{
    return value != NULL && value[0] != '\0';
}

static void choose(void)
{
    const char *wanted = getenv("SLUICE_CUDA_PROMPTS"), *fp8 = getenv("SLUICE_CUDA_FP8");
    const char *fetch = getenv("SLUICE_CUDA_FETCH"), *join = getenv("SLUICE_CUDA_JOIN");
    const char *attention = getenv("SLUICE_CUDA_ATTENTION");
    struct cublaslt_api api = {.library = NULL};
    struct error err = {0};
    int rc = is_given(wanted) ? parse_prompts(wanted, &chosen.prompts, &chosen.err) : 0;
    if (rc == 0 && is_given(fp8))
        rc = parse_fp8(fp8, &chosen.fp8, &chosen.err);
    if (rc == 0 && is_given(fetch))
        rc = parse_fetch(fetch, &chosen.fetch, &chosen.err);
    if (rc == 0 && is_given(join))
        rc = parse_join(join, &chosen.join, &chosen.err);
    if (rc == 0 && is_given(attention))
        rc = parse_attention(attention, &chosen.attention, &chosen.err);
    if (rc == 0 && chosen.prompts == CUDA_PROMPTS_LT && cublaslt_load(&api, &err) != 0)
        error_set(&chosen.err, err.status, "SLUICE_CUDA_PROMPTS: %s", err.message);
    chosen.ops = op_table_cuda_set;
    snprintf(chosen.product, sizeof(chosen.product), "%s", product_name(chosen.prompts));
    /* cuBLASLt chooses the algorithm for each shape, so the bits depend on its version. */
    if (api.version != NULL)
        snprintf(chosen.product, sizeof(chosen.product), "lt%zu", api.version());
    chosen.settled_attention = chosen.attention;
    chosen.settled_fp8 = chosen.fp8;
    name_numerics();
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

enum cuda_fp8 table_cuda_fp8(void)
{
    pthread_once(&chosen.once, choose);
    return chosen.fp8;
}

enum cuda_join table_cuda_join(void)
{
    pthread_once(&chosen.once, choose);
    return chosen.join;
}

enum cuda_fetch table_cuda_fetch(void)
{
    pthread_once(&chosen.once, choose);
    return chosen.fetch;
}

void table_cuda_settle(enum cuda_prompts prompts)
{
    pthread_once(&chosen.once, choose);
    if (chosen.prompts != CUDA_PROMPTS_AUTO)
        return;
    snprintf(chosen.product, sizeof(chosen.product), "%s", product_name(prompts));
    name_numerics();
}

void table_cuda_settle_attention(enum cuda_attention attention)
{
    pthread_once(&chosen.once, choose);
    chosen.settled_attention = attention;
    name_numerics();
}

void table_cuda_settle_fp8(enum cuda_fp8 fp8)
{
    pthread_once(&chosen.once, choose);
    chosen.settled_fp8 = fp8;
    name_numerics();
}
