/* lexer.h: template text to tokens, with Jinja's whitespace control (trim_blocks and lstrip_blocks
 * on, one trailing newline dropped). Private to engine/template; compile time only. */
#pragma once

#include "base/arena.h"
#include "base/hash_map.h"
#include "engine/template/parse/ast.h"

struct error;

enum token_type {
    TOKEN_EOF,
    TOKEN_DATA, /* text */
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,    /* text, interned */
    TOKEN_STRING,  /* text, escapes resolved */
    TOKEN_INTEGER, /* text where it is outside 64 bits, else NULL */
    TOKEN_FLOAT,
    TOKEN_OPERATOR, /* op */
};

struct token {
    uint8_t type; /* enum token_type */
    uint8_t op;   /* enum operator_code */
    uint32_t line;
    const struct text *text;
    int64_t integer;
    double real;
};

/* Memory and errors of one compile; failure is sticky. */
struct compiler {
    struct arena *arena;
    struct hash_map names; /* interned: bytes to struct text * */
    struct error *err;
    bool failed;
    bool out_of_memory; /* why it failed: no limit was met */
};

/* Records the first failure; always returns false. */
bool compiler_fail(struct compiler *c, int status, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void *compiler_alloc(struct compiler *c, size_t n, size_t size, uint32_t line);
const struct text *compiler_text(struct compiler *c, const char *data, size_t n_bytes,
                                 uint32_t line);
/* The one text for a name: equal names have equal addresses within a template. */
const struct text *compiler_intern(struct compiler *c, const char *data, size_t n_bytes,
                                   uint32_t line);

/* Tokens in the compiler's arena, ended by TOKEN_EOF. False after a failure. */
bool lexer_run(struct compiler *c, const char *source, size_t n_bytes,
               const struct token **out_tokens);

/* How a token reads in messages, at most 40 bytes of it. */
void token_describe(const struct token *token, char *out, size_t n_bytes);
