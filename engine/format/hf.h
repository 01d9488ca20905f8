/* hf.h: reads a Hugging Face folder: its two configs, its safetensors files, and the files of
 * tokenizer and chat template. Errors are those of checkpoint.h. Each call uses a single thread.
 *
 * Metadata are the values of config.json by dotted path, as in "rope_parameters.rope_theta". The
 * values of generation_config.json stand below "generation_config.". A dot or a backslash in a key
 * has a backslash before it, as in "transformers\.js_config.dtype". An array of scalars of a kind
 * is a single value. Every other array gives a value per element, as in "experts.0". null is no
 * value.
 *
 * A multimodal config holds the text model in text_config or llm_config. Its keys appear without
 * that prefix and hide equal keys of the top level. But the top level hides some keys of the text
 * model: tie_word_embeddings, eos_token_id, bos_token_id, pad_token_id, architectures and
 * model_type. Messages spell the full path.
 *
 * The digest is a SHA-256 over all files in the order of checkpoint_files.h. Each file adds its
 * name, a NUL byte, its size as 8 little-endian bytes, and its contents. A safetensors file adds
 * its header in place of its contents. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct error;
struct folder;
struct sha256;

enum {
    HF_MAX_CONFIG_BYTES = 4 << 20,
    HF_MAX_INDEX_BYTES = 64 << 20,
    HF_MAX_KEYS = 16384,
    HF_MAX_PATH_BYTES = 1024, /* a key with its prefix */
    HF_MAX_STRING_BYTES = 1 << 20,
    HF_MAX_TEMPLATES = 64, /* named ones */
};

/* Fills a new checkpoint from the folder at `path`. A folder without safetensors that holds a
 * single GGUF model opens as that model, even beside a config.json. */
int hf_open_folder(const char *path, struct checkpoint *ckpt, struct error *err);

/* --- shared by the files hf*.c --- */

/* A folder while it is read. */
struct hf_reader {
    const char *path;
    const struct folder *folder;
    struct checkpoint *ckpt;
    struct sha256 *sha;
};

/* Opens a file of the folder, adds it to the checkpoint and begins its part of the digest. */
int hf_add_file(struct hf_reader *reader, const char *name, uint64_t max_bytes, uint32_t *out_file,
                struct error *err);
/* Reads a whole file and hashes it. *out_text is owned (free()). */
int hf_read_text(struct hf_reader *reader, uint32_t file, char **out_text, size_t *out_n_bytes,
                 struct error *err);

/* Adds the values of a config's text to the metadata, with `prefix` before each key. Entries of
 * type N_VALUE_TYPES mark null and containers, until hf_config_finish(). */
int hf_config_read(struct checkpoint *ckpt, uint32_t file, const char *prefix, const char *text,
                   size_t n_bytes, struct error *err);
/* Merges the text model's keys, drops the marks, builds the index, and reads the facts:
 * architecture and end ids. Refuses quantized models. */
int hf_config_finish(struct checkpoint *ckpt, struct error *err);

/* True if the folder has safetensors that hf_weights_read() would read. */
bool hf_weights_exist(const struct folder *folder);
/* Reads the headers of all safetensors files and builds the index of the tensors. */
int hf_weights_read(struct hf_reader *reader, struct error *err);
