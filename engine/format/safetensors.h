/* safetensors.h: reads the header of a safetensors file: 8 bytes of length, then JSON
 * (huggingface/safetensors, "Format"). Trusts nothing: the weights must fill the rest of the file
 * without holes and overlaps. Every size is checked before memory is allocated by it. Errors are
 * those of checkpoint.h. Each call uses a single thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;
struct error;
struct sha256;

enum {
    SAFETENSORS_MAX_HEADER_BYTES = 100000000,
    SAFETENSORS_MAX_NAME_BYTES = 1024,
    SAFETENSORS_MAX_TENSORS = 1 << 20, /* the files of a model together */
};

/* Adds the tensors of the checkpoint's file number `file`, in the order of the header. Hashes
 * length and header into `sha`. dims[0] of a tensor is the last number of its shape. Types other
 * than F32, F16 and BF16 become DTYPE_OTHER. *out_is_mlx: MLX wrote the file, so its weights may
 * differ from those of transformers. */
int safetensors_read(struct checkpoint *ckpt, uint32_t file, struct sha256 *sha, bool *out_is_mlx,
                     struct error *err);
