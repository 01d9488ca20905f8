/* attention_latent.h: the kernel of latent caches as C functions, in the manner of launch.h. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct attention_cuda;
struct decode_plan;

/* Generated rows and prompt rows, if latent_is_tiled() (attention_latent_index.h). The plan is for
 * tiles of LATENT_QUERIES heads. The first writes the groups' results to a->parts, if it is not
 * NULL, for cuda_launch_attention_combine(); for the second a->parts is NULL. */
int cuda_launch_attention_latent(void *stream, const struct attention_cuda *a,
                                 const struct decode_plan *plan);
int cuda_launch_attention_latent_prompt(void *stream, const struct attention_cuda *a);

#ifdef __cplusplus
}
#endif
