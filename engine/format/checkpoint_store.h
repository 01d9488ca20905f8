/* checkpoint_store.h: the data behind checkpoint.h, which format readers fill. Private to
 * engine/format. Readers check every value before they store it. A single thread fills the store;
 * then it is immutable. */
#pragma once

#include "base/arena.h"
#include "engine/format/checkpoint.h"
#include "engine/format/checkpoint_files.h"

/* Type numbers of the GGUF specification; readers of other formats map their types to them. */
enum value_type {
    VALUE_U8,
    VALUE_I8,
    VALUE_U16,
    VALUE_I16,
    VALUE_U32,
    VALUE_I32,
    VALUE_F32,
    VALUE_BOOL,
    VALUE_STRING,
    VALUE_ARRAY,
    VALUE_U64,
    VALUE_I64,
    VALUE_F64,
    N_VALUE_TYPES,
};

struct checkpoint_entry {
    const char *key;     /* in the arena */
    const char *spelled; /* the path in the file, where it differs from `key`; else NULL */
    uint64_t offset;     /* offset of the value in its file, for messages */
    uint32_t file;
    enum value_type type;
    union {
        uint64_t u; /* unsigned types and bool */
        int64_t i;
        double f;
        struct {
            const char *data; /* arena, terminated */
            size_t n_bytes;
        } string;
        struct {
            enum value_type type; /* VALUE_ARRAY: an empty array of no kind (JSON) */
            uint64_t n;
            const unsigned char *data; /* arena */
            const uint64_t *ends;      /* arena; strings only */
        } array;
    };
};

struct checkpoint_file {
    struct source *source; /* owned */
    const char *label;     /* arena; for messages */
    const char *name;      /* arena; below the model's folder */
    bool is_sidecar;       /* checkpoint_read_sidecar() gives its bytes */
};

struct checkpoint {
    struct checkpoint_file *files; /* owned */
    uint32_t n_files, files_capacity;
    struct arena arena;
    const char *name;         /* arena */
    const char *architecture; /* arena */
    uint64_t n_tokens;        /* see checkpoint_set_n_tokens() */
    const char *format;
    uint32_t version;
    uint8_t digest[SHA256_BYTES];
    struct checkpoint_entry *entries; /* file order */
    uint64_t n_entries, entries_capacity;
    uint32_t *entries_by_key;
    struct checkpoint_tensor *tensors; /* file order */
    uint64_t n_tensors, tensors_capacity;
    uint32_t *tensors_by_name;
    uint32_t end_ids[CHECKPOINT_MAX_END_IDS];
    uint32_t n_end_ids;
};

/* Takes the source, on success only. `name` and `label` are copied. */
int checkpoint_add_file(struct checkpoint *ckpt, struct source *source, const char *name,
                        const char *label, uint32_t *out_file, struct error *err);
void checkpoint_close_files(struct checkpoint *ckpt);
/* Name of a file for messages. */
const char *checkpoint_label(const struct checkpoint *ckpt, uint32_t file);

const char *checkpoint_type_name(enum value_type type); /* for example "u32" */
uint32_t checkpoint_value_bytes(enum value_type type);  /* 0 for strings and arrays */
/* Value of element i of a fixed-size array, little-endian. */
int64_t checkpoint_value_int(enum value_type type, const unsigned char *data, uint64_t i);
double checkpoint_value_float(enum value_type type, const unsigned char *data, uint64_t i);

/* Append a zeroed tensor or entry; its address is valid until the next call. NULL: out of memory.
 */
struct checkpoint_tensor *checkpoint_add_tensor(struct checkpoint *ckpt);
struct checkpoint_entry *checkpoint_add_entry(struct checkpoint *ckpt);

/* Sort the two indices. If a name occurs twice, the calls return false and the pair of entries
 * (first < second). */
bool checkpoint_index_entries(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second);
bool checkpoint_index_tensors(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second);

const struct checkpoint_entry *checkpoint_entry_find(const struct checkpoint *ckpt,
                                                     const char *key);
