/* compiler.h: memory, names and errors of one compile. Private to engine/template;
 * single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/hash_map.h"

struct error;
struct text;

enum { COMPILER_MAX_BYTES = 256 * 1024 * 1024 }; /* limit on a compiled template */

/* Memory and errors of one compile. After the first failure, all calls fail. */
struct compiler {
    struct arena *arena;
    struct hash_map names; /* interned: bytes to struct text * */
    struct error *err;
    bool failed;
    bool out_of_memory; /* the failure is lack of system memory, not a limit */
};

/* Records the first failure; always returns false. */
bool compiler_fail(struct compiler *c, int status, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void *compiler_alloc(struct compiler *c, size_t n, size_t size, uint32_t line);
const struct text *compiler_text(struct compiler *c, const char *data, size_t n_bytes,
                                 uint32_t line);
/* Returns the unique text of a name: within a template, equal names have equal addresses. */
const struct text *compiler_intern(struct compiler *c, const char *data, size_t n_bytes,
                                   uint32_t line);
