/* arch_each.h: the list of all architectures, a block per group. A new table adds a line to the
 * block of its group. X is called with the name of the table. */
#pragma once

/* A dense FFN. */
#define ARCH_EACH_DENSE(X)                                                                         \
    X(llama)                                                                                       \
    X(qwen3)                                                                                       \
    X(qwen3vl)                                                                                     \
    X(qwen2)                                                                                       \
    X(seed_oss)                                                                                    \
    X(smollm3)                                                                                     \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(phi2)                                                                                        \
    X(phi3)                                                                                        \
    X(granite)                                                                                     \
    X(olmo2)                                                                                       \
    X(exaone4)                                                                                     \
    X(command_r)                                                                                   \
    X(cohere2)                                                                                     \
    X(glm4)                                                                                        \
    X(nemotron)                                                                                    \
    X(ernie4_5)                                                                                    \
    X(hunyuan_dense)                                                                               \
    X(mistral3)                                                                                    \
    X(stablelm)

/* Families from before 2023, and those with their block. */
#define ARCH_EACH_OLDER(X)                                                                         \
    X(gpt2)                                                                                        \
    X(bloom)                                                                                       \
    X(starcoder2)                                                                                  \
    X(gptneox)                                                                                     \
    X(falcon)                                                                                      \
    X(falcon_40b)                                                                                  \
    X(falcon_rw)                                                                                   \
    X(opt)                                                                                         \
    X(gptj)                                                                                        \
    X(mpt)

/* Experts. */
#define ARCH_EACH_EXPERTS(X)                                                                       \
    X(qwen3moe)                                                                                    \
    X(mixtral)                                                                                     \
    X(gpt_oss)                                                                                     \
    X(gpt_oss_mxfp4)                                                                               \
    X(qwen2moe)                                                                                    \
    X(granitemoe)                                                                                  \
    X(glm4moe)                                                                                     \
    X(ernie4_5_moe)                                                                                \
    X(minimax_m2)                                                                                  \
    X(mimo2)

/* Recurrent layers (hybrid/). */
#define ARCH_EACH_HYBRID(X)                                                                        \
    X(qwen35)                                                                                      \
    X(qwen35moe)                                                                                   \
    X(qwen3next)                                                                                   \
    X(qwen3next_joined)                                                                            \
    X(lfm2)                                                                                        \
    X(lfm2moe)                                                                                     \
    X(mamba2)                                                                                      \
    X(granitehybrid)                                                                               \
    X(nemotron_h)                                                                                  \
    X(falcon_h1)

/* Latent attention (latent/). */
#define ARCH_EACH_LATENT(X) X(deepseek2)

/* Gemma 4 and Llama 4 (newer/). */
#define ARCH_EACH_NEWER(X)                                                                         \
    X(gemma4)                                                                                      \
    X(gemma4_moe)                                                                                  \
    X(llama4)

/* All architectures. */
#define ARCH_EACH(X)                                                                               \
    ARCH_EACH_DENSE(X)                                                                             \
    ARCH_EACH_OLDER(X)                                                                             \
    ARCH_EACH_EXPERTS(X)                                                                           \
    ARCH_EACH_HYBRID(X)                                                                            \
    ARCH_EACH_LATENT(X)                                                                            \
    ARCH_EACH_NEWER(X)
