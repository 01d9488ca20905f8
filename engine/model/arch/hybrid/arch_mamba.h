/* arch_mamba.h: rows that the tables of families with Mamba-2 share. A tensor holds the gate, the
 * values (x), the keys (B), the queries (C) and the steps; the convolution has those between. */
#pragma once

#include "engine/model/arch/arch.h"

#define ARCH_MAMBA_GGUF_TENSORS                                                                    \
    {ARCH_STATE_GATE, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_NONE},                          \
        {ARCH_STATE_V, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_K, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_Q, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_DT, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_NONE},                        \
        {ARCH_STATE_CONV_V, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},                \
        {ARCH_STATE_CONV_K, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},                \
        {ARCH_STATE_CONV_Q, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},                \
        {ARCH_STATE_CONV_V_BIAS, false, "blk.%u.ssm_conv1d.bias", ARCH_TRANSFORM_NONE},            \
        {ARCH_STATE_CONV_K_BIAS, false, "blk.%u.ssm_conv1d.bias", ARCH_TRANSFORM_NONE},            \
        {ARCH_STATE_CONV_Q_BIAS, false, "blk.%u.ssm_conv1d.bias", ARCH_TRANSFORM_NONE},            \
        {ARCH_STATE_DT_BIAS, true, "blk.%u.ssm_dt.bias", ARCH_TRANSFORM_NONE},                     \
        {ARCH_STATE_A, true, "blk.%u.ssm_a", ARCH_TRANSFORM_NONE},                                 \
        {ARCH_STATE_D, true, "blk.%u.ssm_d", ARCH_TRANSFORM_NONE},                                 \
    {                                                                                              \
        ARCH_STATE_OUT, true, "blk.%u.ssm_out.weight", ARCH_TRANSFORM_NONE                         \
    }

/* `mixer` comes before each name: "model.layers.%u.mamba.". */
#define ARCH_MAMBA_HF_TENSORS(mixer)                                                               \
    {ARCH_STATE_GATE, true, mixer "in_proj.weight", ARCH_TRANSFORM_NONE},                          \
        {ARCH_STATE_V, true, mixer "in_proj.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_K, true, mixer "in_proj.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_Q, true, mixer "in_proj.weight", ARCH_TRANSFORM_NONE},                         \
        {ARCH_STATE_DT, true, mixer "in_proj.weight", ARCH_TRANSFORM_NONE},                        \
        {ARCH_STATE_CONV_V, true, mixer "conv1d.weight", ARCH_TRANSFORM_NONE},                     \
        {ARCH_STATE_CONV_K, true, mixer "conv1d.weight", ARCH_TRANSFORM_NONE},                     \
        {ARCH_STATE_CONV_Q, true, mixer "conv1d.weight", ARCH_TRANSFORM_NONE},                     \
        {ARCH_STATE_CONV_V_BIAS, false, mixer "conv1d.bias", ARCH_TRANSFORM_NONE},                 \
        {ARCH_STATE_CONV_K_BIAS, false, mixer "conv1d.bias", ARCH_TRANSFORM_NONE},                 \
        {ARCH_STATE_CONV_Q_BIAS, false, mixer "conv1d.bias", ARCH_TRANSFORM_NONE},                 \
        {ARCH_STATE_DT_BIAS, true, mixer "dt_bias", ARCH_TRANSFORM_NONE},                          \
        {ARCH_STATE_A, true, mixer "A_log", ARCH_TRANSFORM_MINUS_EXP},                             \
        {ARCH_STATE_D, true, mixer "D", ARCH_TRANSFORM_NONE},                                      \
    {                                                                                              \
        ARCH_STATE_OUT, true, mixer "out_proj.weight", ARCH_TRANSFORM_NONE                         \
    }

#define ARCH_MAMBA_GGUF_PARAMS                                                                     \
    {ARCH_PARAM_STATE_WIDTH, "ssm.conv_kernel", ARCH_ABSENT_REFUSE, 0, 0},                         \
        {ARCH_PARAM_STATE_KEY_DIM, "ssm.state_size", ARCH_ABSENT_REFUSE, 0, 0},                    \
        {ARCH_PARAM_STATE_INNER, "ssm.inner_size", ARCH_ABSENT_REFUSE, 0, 0},                      \
        {ARCH_PARAM_STATE_HEADS, "ssm.time_step_rank", ARCH_ABSENT_REFUSE, 0, 0},                  \
    {                                                                                              \
        ARCH_PARAM_STATE_KEY_HEADS, "ssm.group_count", ARCH_ABSENT_FALLBACK, 1, 0                  \
    }

/* Keys for training, and the limits of steps, which no known model has. transformers 5 writes
 * infinity as an object. */
#define ARCH_MAMBA_HF_KEYS                                                                         \
    ARCH_ANY_VALUE("time_step_min"), ARCH_ANY_VALUE("time_step_max"),                              \
        ARCH_ANY_VALUE("time_step_floor"), ARCH_ANY_VALUE("time_step_rank"),                       \
        ARCH_ANY_VALUE("rescale_prenorm_residual"), ARCH_ANY_VALUE("residual_in_fp32"),            \
        ARCH_OPEN_RANGE("time_step_limit"), ARCH_ONE_VALUE("time_step_limit.0", 0),                \
        ARCH_ONE_TEXT("time_step_limit.1.__float__", "Infinity")
