/* checkpoint_store.h: the data behind checkpoint.h, which format readers fill. Private to
 * engine/format. Readers check every value before they store it. A single thread fills the store;
 * then it is immutable. */
#pragma once

#include "base/arena.h"
#include "engine/format/checkpoint.h"

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
    const char *key; /* in the arena */
    uint64_t offset; /* offset of the value, for messages */
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
            enum value_type type;
            uint64_t n;
            const unsigned char *data; /* arena */
            const uint64_t *ends;      /* arena; strings only */
        } array;
    };
};

struct checkpoint {
    struct source *source;
    struct arena arena;
    const char *format;
    uint32_t version;
    uint8_t digest[SHA256_BYTES];
    struct checkpoint_entry *entries; /* file order */
    uint64_t n_entries;
    uint32_t *entries_by_key;
    struct checkpoint_tensor *tensors; /* file order */
    uint64_t n_tensors;
    uint32_t *tensors_by_name;
};

const char *checkpoint_type_name(enum value_type type); /* for example "u32" */
uint32_t checkpoint_value_bytes(enum value_type type);  /* 0 for strings and arrays */
/* Value of element i of a fixed-size array, little-endian. */
int64_t checkpoint_value_int(enum value_type type, const unsigned char *data, uint64_t i);
double checkpoint_value_float(enum value_type type, const unsigned char *data, uint64_t i);

/* Sort the two indices. If a name occurs twice, the calls return false and the pair of entries
 * (first < second). */
bool checkpoint_index_entries(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second);
bool checkpoint_index_tensors(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second);

const struct checkpoint_entry *checkpoint_entry_find(const struct checkpoint *ckpt,
                                                     const char *key);
