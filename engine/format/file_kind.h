/* file_kind.h: recognises files that people mistake for a model, by their first bytes. So a refusal
 * can name the file's kind and how to get the model. Stateless. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;
struct source;

enum { FILE_KIND_LOOK_BYTES = 4096 }; /* bytes of the file's beginning that decide its kind */

enum file_kind {
    FILE_KIND_GGUF,
    FILE_KIND_EMPTY,
    FILE_KIND_LFS_POINTER,
    FILE_KIND_SAFETENSORS,
    FILE_KIND_SAFETENSORS_INDEX, /* model.safetensors.index.json */
    FILE_KIND_PYTORCH,           /* .bin, .pt, .pth: a zip archive or a pickle */
    FILE_KIND_GGML,              /* llama.cpp's formats before GGUF */
    FILE_KIND_OLLAMA_MANIFEST,
    FILE_KIND_HF_CONFIG, /* config.json */
    FILE_KIND_JSON,
    FILE_KIND_HTML,
    FILE_KIND_GZIP,
    FILE_KIND_ZSTD,
    FILE_KIND_XZ,
    FILE_KIND_BZIP2,
    FILE_KIND_ZIP,
    FILE_KIND_7Z,
    FILE_KIND_TAR,
    FILE_KIND_HDF5,
    FILE_KIND_NUMPY,
    FILE_KIND_PROGRAM,
    FILE_KIND_ZEROS,
    FILE_KIND_TEXT,
    FILE_KIND_UNKNOWN,
    N_FILE_KINDS
};

/* The kind of a file of size_bytes bytes that begins with bytes[n_bytes]. */
enum file_kind file_kind_of(const unsigned char *bytes, size_t n_bytes, uint64_t size_bytes);

/* Returns 0 if the file begins like a GGUF file. Else INVALID_ARGUMENT (MODEL_FILE_INVALID) with
 * one sentence: the kind of the file, the required kind, the remedy. */
int file_kind_check(struct source *source, struct error *err);

/* Fills *err with a sentence of the same form, and returns INVALID_ARGUMENT. 0 where that explains
 * nothing: the kind is unknown, GGUF, safetensors or JSON. `required` names the required kind. */
int file_kind_explain(struct source *source, const char *label, const char *required,
                      struct error *err);
