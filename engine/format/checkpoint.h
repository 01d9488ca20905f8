/* checkpoint.h: a model's files, whatever their format: metadata by key, a tensor directory, rows
 * of tensors on request. Opening parses and checks all headers. Afterwards the object is immutable
 * and any thread may read it; the owner closes it. Never maps a file. Knows no architectures.
 *
 * Formats: "gguf" (a GGUF file, or all parts of a split one) and "hf" (a Hugging Face folder:
 * hf.h). The metadata of a folder are the values of config.json, by dotted path.
 *
 * Errors about a file's content: INVALID_ARGUMENT, reason MODEL_FILE_INVALID. Their text is
 * "<file>: offset <byte>: <field>: <value found, values supported>; <remedy>". Content that is
 * well-formed but not supported: UNIMPLEMENTED, with a text of the same form. A file of another
 * kind: file_kind.h. The files themselves: checkpoint_files.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "kernels/dtype.h"

struct checkpoint;
struct error;
struct source;
struct strbuf;

enum { CHECKPOINT_MAX_DIMS = 8 };

struct checkpoint_tensor {
    const char *name;      /* UTF-8 without control characters */
    const char *type_name; /* as the format spells it, for example "Q4_K" or "F8_E5M2" */
    enum dtype dtype;      /* DTYPE_OTHER: listed, and refused by checkpoint_check_type() */
    uint32_t file;         /* index of the file that holds the weights and the directory entry */
    uint32_t n_dims;
    uint64_t dims[CHECKPOINT_MAX_DIMS]; /* dims[0] is contiguous (one row); unused ones are 1 */
    uint64_t n_elems;
    uint64_t n_rows;    /* n_elems / dims[0] */
    uint64_t row_bytes; /* dims[0] elements; rows follow each other without gaps. DTYPE_OTHER: 0 */
    uint64_t n_bytes;
    uint64_t offset_bytes;    /* absolute, in the file */
    uint64_t directory_bytes; /* offset of its directory entry, for messages */
    /* MXFP4 as gpt-oss stores it: the scales lie apart from the elements, at this offset of this
     * file. Rows are read as blocks of DTYPE_MXFP4. 0: the rows lie as they are read. */
    uint64_t scales_bytes;
    uint32_t scales_file;
};

/* Reads and checks the headers of a model; *out_checkpoint is owned. Reads no weights. `path` leads
 * to a GGUF file, to any part of a split one, or to a folder (hf.h). A folder may also hold the
 * files of one GGUF model. A path "ROOT/./REST" and all other files of the model are opened below
 * ROOT only (beneath.h). */
int checkpoint_open(const char *path, struct checkpoint **out_checkpoint, struct error *err);
void checkpoint_close(struct checkpoint *ckpt);

/* Last component of the path, for messages ("org/model" in a Hugging Face Hub cache). */
const char *checkpoint_name(const struct checkpoint *ckpt);
/* "gguf" or "hf"; version of a GGUF file, 0 for a folder. */
const char *checkpoint_format(const struct checkpoint *ckpt);
uint32_t checkpoint_format_version(const struct checkpoint *ckpt);
/* Bytes of all files together. */
uint64_t checkpoint_file_bytes(const struct checkpoint *ckpt);
/* The architecture as the model names it: "general.architecture", or the first of "architectures",
 * else "model_type"; "" if the model names none. */
const char *checkpoint_architecture(const struct checkpoint *ckpt);

/* Tokens that the file's vocabulary lists; 0 where the file has no vocabulary. */
uint64_t checkpoint_n_tokens(const struct checkpoint *ckpt);
/* Sets this number for a folder, whose tokenizer another reader parses. Rows of the vocabulary
 * beyond it are not loaded. Call before another thread reads the object. */
void checkpoint_set_n_tokens(struct checkpoint *ckpt, uint64_t n_tokens);

/* Identity of the version, SHA-256. A GGUF file: the bytes of header and tensor directory, then the
 * file's size as 8 little-endian bytes. A split GGUF file: the digests of its parts, in their
 * order. A folder: hf.h. */
void checkpoint_digest(const struct checkpoint *ckpt, uint8_t out_digest[SHA256_BYTES]);

/* FAILED_PRECONDITION (reason MODEL_FILE_CHANGED) if a file changed since it was opened. Call after
 * the last read. */
int checkpoint_check(const struct checkpoint *ckpt, struct error *err);

/* --- metadata ---
 * Getters return INVALID_ARGUMENT (MODEL_FILE_INVALID, with key and offset) if the key is missing
 * or unsuitable. Outputs are untouched on failure. */
bool checkpoint_has(const struct checkpoint *ckpt, const char *key);
/* Any integer type; the value must not be negative. */
int checkpoint_get_u64(const struct checkpoint *ckpt, const char *key, uint64_t *out,
                       struct error *err);
/* f32, f64 or any integer; the value must be finite. */
int checkpoint_get_f64(const struct checkpoint *ckpt, const char *key, double *out,
                       struct error *err);
int checkpoint_get_bool(const struct checkpoint *ckpt, const char *key, bool *out,
                        struct error *err);
/* Valid UTF-8, terminated, without a NUL inside; borrowed until close. out_n_bytes may be NULL. */
int checkpoint_get_string(const struct checkpoint *ckpt, const char *key, const char **out_text,
                          size_t *out_n_bytes, struct error *err);
/* The same with a fallback for a missing key. A key with an unsuitable type is still an error. */
int checkpoint_get_u64_or(const struct checkpoint *ckpt, const char *key, uint64_t fallback,
                          uint64_t *out, struct error *err);
int checkpoint_get_f64_or(const struct checkpoint *ckpt, const char *key, double fallback,
                          double *out, struct error *err);
int checkpoint_get_bool_or(const struct checkpoint *ckpt, const char *key, bool fallback, bool *out,
                           struct error *err);
int checkpoint_get_string_or(const struct checkpoint *ckpt, const char *key, const char *fallback,
                             const char **out_text, struct error *err);

enum checkpoint_kind {
    CHECKPOINT_BOOL,
    CHECKPOINT_INT,
    CHECKPOINT_FLOAT,
    CHECKPOINT_STRING,
    CHECKPOINT_ARRAY,
};

/* A view of an array; plain data borrowed from the checkpoint. The calls below read elements. */
struct checkpoint_array {
    enum checkpoint_kind kind; /* kind of the elements; never CHECKPOINT_ARRAY */
    uint32_t element_type;     /* the format's own number */
    uint64_t n;
    const unsigned char *data; /* elements of fixed size, or all strings one after the other */
    const uint64_t *ends;      /* strings: end offset of each in `data` */
};

/* Returns an array whose elements have the given kind (INT: any integer width). */
int checkpoint_get_array(const struct checkpoint *ckpt, const char *key, enum checkpoint_kind kind,
                         struct checkpoint_array *out_array, struct error *err);
int64_t checkpoint_array_int(const struct checkpoint_array *array,
                             uint64_t i); /* larger u64 values saturate */
double checkpoint_array_float(const struct checkpoint_array *array, uint64_t i);
/* Not terminated. */
const char *checkpoint_array_string(const struct checkpoint_array *array, uint64_t i,
                                    size_t *out_n_bytes);

/* Remedy for a damaged file. The messages of checkpoint_bad_* and checkpoint_missing_* end with
 * it. */
#define CHECKPOINT_REMEDY "get another copy of the file, or convert the model again"

/* Fills *err for a refused value: "<file>: offset N: key "<key>": <text>; <remedy>". `text` states
 * the value and the values that are valid. Returns INVALID_ARGUMENT. */
int checkpoint_bad_key(const struct checkpoint *ckpt, const char *key, struct error *err,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The same for a valid but unsupported value: UNIMPLEMENTED. `text` must include the remedy. */
int checkpoint_unbuilt_key(const struct checkpoint *ckpt, const char *key, struct error *err,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Fills *err for a missing key that every model of this kind needs. Returns INVALID_ARGUMENT. */
int checkpoint_missing_key(const struct checkpoint *ckpt, const char *key, struct error *err);

/* All metadata in file order, for inspection. Type names are like "u32", "string", "array of
 * i32". */
uint64_t checkpoint_n_keys(const struct checkpoint *ckpt);
const char *checkpoint_key(const struct checkpoint *ckpt, uint64_t i);
void checkpoint_key_type(const struct checkpoint *ckpt, uint64_t i, struct strbuf *out);
/* Appends the value as readable text: strings quoted and escaped, arrays as their first elements
 * and their length. At most about max_bytes. */
void checkpoint_key_value(const struct checkpoint *ckpt, uint64_t i, size_t max_bytes,
                          struct strbuf *out);

/* --- tensors --- */
uint64_t checkpoint_n_tensors(const struct checkpoint *ckpt);
/* Tensor i in directory order. Borrowed until close. */
const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *ckpt, uint64_t i);
/* NULL if there is no tensor of that name. */
const struct checkpoint_tensor *checkpoint_tensor_find(const struct checkpoint *ckpt,
                                                       const char *name);
/* Fills *err about a tensor: "<file>: offset N: tensor "<name>": <text>; <remedy>". Returns
 * INVALID_ARGUMENT. */
int checkpoint_bad_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                          struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int checkpoint_missing_tensor(const struct checkpoint *ckpt, const char *name, struct error *err);
/* UNIMPLEMENTED. `text` must include the remedy. */
int checkpoint_unbuilt_tensor(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                              struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* 0 if the kernels know the tensor's type. Else UNIMPLEMENTED, reason TENSOR_TYPE_UNSUPPORTED,
 * naming the type. Call before a tensor is bound. */
int checkpoint_check_type(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                          struct error *err);

/* Completes *err, a kernel's error about a tensor's weights, with file, tensor and remedy. Returns
 * err->status; FAILED_PRECONDITION gets reason MODEL_FILE_INVALID. */
int checkpoint_bad_weights(const struct checkpoint *ckpt, const struct checkpoint_tensor *tensor,
                           struct error *err);

/* Reads rows [row_begin, row_begin + n_rows) into dst (n_rows × row_bytes). OUT_OF_RANGE outside
 * the tensor. UNIMPLEMENTED for DTYPE_OTHER. Any thread. */
int checkpoint_read_tensor_rows(const struct checkpoint *ckpt,
                                const struct checkpoint_tensor *tensor, uint64_t row_begin,
                                uint64_t n_rows, void *dst, struct error *err);
/* Drops the rows' pages from the page cache: they will not be read again. */
void checkpoint_drop_tensor_rows(const struct checkpoint *ckpt,
                                 const struct checkpoint_tensor *tensor, uint64_t row_begin,
                                 uint64_t n_rows);
