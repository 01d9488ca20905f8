/* Writes the seeds of corpus/gguf/; run by hand: make_corpus DIR. The seeds are a small whole model
 * file, a file with a vocabulary, and inputs that showed past bugs. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/engine/support/support_gguf.h"

static void save(const char *dir, const char *name, struct gguf_writer *w)
{
    char path[4096];
    gguf_finish(w);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(w->bytes.data, 1, w->bytes.n_bytes, file) != w->bytes.n_bytes ||
        fclose(file) != 0)
        abort();
    gguf_writer_fini(w);
}

int main(int argc, char **argv)
{
    static const char *const tokens[] = {"ab", "abc"};
    static const char *const merges[] = {"a b", "ab c"};
    static const char *const control[] = {"<|end|>"};
    const struct gguf_vocab vocab = {.pre = "smollm",
                                     .tokens = tokens,
                                     .n_tokens = 2,
                                     .merges = merges,
                                     .n_merges = 2,
                                     .control = control,
                                     .n_control = 1};
    struct gguf_writer w = {0};
    if (argc != 2)
        return 2;
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    gguf_kv_u32(&w, "general.alignment", 32);
    gguf_kv_bool(&w, "x.flag", 1);
    gguf_kv_i32s(&w, "x.list", (const int32_t[]){-1, 2}, 2);
    gguf_tensor(&w, "a", GGML_F32, 2, (const uint64_t[]){4, 2}, 0);
    gguf_tensor(&w, "b", GGML_Q8_0, 1, (const uint64_t[]){32}, 32);
    gguf_weights(&w, 32, 66);
    save(argv[1], "tensors", &w);
    gguf_begin(&w);
    gguf_vocab(&w, &vocab);
    gguf_kv_u32(&w, "tokenizer.ggml.eos_token_id", 258);
    save(argv[1], "vocabulary", &w);
    gguf_begin(&w);
    save(argv[1], "empty", &w);
    gguf_begin(&w);
    gguf_kv_u32(&w, "general.alignment", 8);
    gguf_tensor(&w, "t", GGML_F16, 4, (const uint64_t[]){1, 1, 1, 1}, 0);
    gguf_weights(&w, 8, 2);
    save(argv[1], "one_element", &w);
    /* lists per layer, and a tensor of experts, as hybrid models have them */
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "gemma4");
    gguf_kv_array(&w, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, 3);
    for (uint8_t i = 0; i < 3; i++)
        gguf_u8(&w, i != 2);
    gguf_kv_i32s(&w, "gemma4.attention.head_count_kv", (const int32_t[]){2, 0, 1}, 3);
    gguf_kv_u32(&w, "gemma4.attention.shared_kv_layers", 1);
    gguf_tensor(&w, "blk.0.ffn_gate_up_exps.weight", GGML_F16, 3, (const uint64_t[]){2, 4, 3}, 0);
    gguf_tensor(&w, "blk.0.ssm_a", GGML_F32, 2, (const uint64_t[]){1, 2}, 64);
    gguf_weights(&w, 32, 72);
    save(argv[1], "layers", &w);
    gguf_begin(&w); /* refused */
    gguf_tensor(&w, "t", GGML_F16, 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0);
    gguf_weights(&w, 8, 2);
    save(argv[1], "five_dimensions", &w);
    gguf_begin(&w); /* refused; the planted bug of seeded_gguf reads past the array of dimensions */
    gguf_tensor(&w, "t", GGML_F16, 9, (const uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 0);
    gguf_weights(&w, 8, 2);
    save(argv[1], "nine_dimensions", &w);
    return 0;
}
