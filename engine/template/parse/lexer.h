/* lexer.h: splits template text into tokens, with Jinja's whitespace control (trim_blocks and
 * lstrip_blocks on, one trailing newline dropped). Private to engine/template; compile time
 * only. */
#pragma once

#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"

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
    TOKEN_INTEGER, /* text if outside 64 bits, else NULL */
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

/* Makes the tokens in the compiler's arena, ended by TOKEN_EOF. Returns false after a failure. */
bool lexer_run(struct compiler *c, const char *source, size_t n_bytes,
               const struct token **out_tokens);

/* Writes the token as it appears in messages, at most 40 bytes of it. */
void lexer_describe(const struct token *token, char *out, size_t n_bytes);
