/* json_cursor.h: reads a JSON text (RFC 8259) of a model from start to end, value by value. The
 * cursor builds no tree, so a hostile text cannot make a pass over it allocate more than its
 * length. Every value's offset is known. A cursor belongs to a single thread.
 *
 * All errors are INVALID_ARGUMENT, reason MODEL_FILE_INVALID, with the text
 * "<file>: offset N: <scope>: <rule>; <remedy>". Without a file the text is the body of a request,
 * and the errors have no reason and no remedy. Callers detect duplicate keys. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/escape.h"

struct arena;

enum { JSON_CURSOR_MAX_DEPTH = 64, JSON_CURSOR_MAX_NUMBER_BYTES = 512 };

enum json_value {
    JSON_VALUE_OBJECT,
    JSON_VALUE_ARRAY,
    JSON_VALUE_STRING,
    JSON_VALUE_NUMBER,
    JSON_VALUE_BOOL,
    JSON_VALUE_NULL,
};

struct json_number {
    bool is_integer;  /* without fraction and exponent, and within the range of `i` or `u` */
    bool is_negative; /* integer: the value is `i`; else `u` */
    int64_t i;
    uint64_t u;
    double f; /* the value rounded; ±infinity and NaN only where the cursor allows their names */
};

struct json_cursor {
    const char *text; /* borrowed */
    size_t n_bytes, at;
    const char *file;     /* for messages; borrowed; NULL: the body of a request */
    uint64_t file_offset; /* offset of the text in the file */
    bool allows_nan;      /* accepts NaN, Infinity and -Infinity, as Python's writer spells them */
    bool is_fresh;        /* the last token opened an object or an array */
    uint32_t depth;
    char scope[ESCAPE_MAX_BYTES + 16]; /* names the enclosing object in messages; may be empty */
};

/* Checks that the text is UTF-8. */
int json_cursor_init(struct json_cursor *cursor, const char *text, size_t n_bytes, const char *file,
                     uint64_t file_offset, struct error *err);
/* Sets the scope: kind "name". */
void json_cursor_scope(struct json_cursor *cursor, const char *kind, const char *name);
/* Fills *err for a wrong value at position `at` of the text. */
int json_cursor_bad(const struct json_cursor *cursor, size_t at, struct error *err,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));
int json_cursor_out_of_memory(const struct json_cursor *cursor, struct error *err);

/* Skips white space and tells the kind of the next value, by its first byte. */
int json_cursor_peek(struct json_cursor *cursor, enum json_value *out_value, struct error *err);

/* Enter a container; an error if the next value is none. */
int json_cursor_enter_object(struct json_cursor *cursor, struct error *err);
int json_cursor_enter_array(struct json_cursor *cursor, struct error *err);
/* In an object: reads the next key and its colon. *out_key is in the arena, terminated; keys with
 * control characters, empty keys, and keys longer than max_bytes are refused. NULL: the object has
 * ended. */
int json_cursor_next_key(struct json_cursor *cursor, struct arena *arena, size_t max_bytes,
                         const char **out_key, struct error *err);
/* The same for a key of any text, also an empty one. *out_key is as in json_cursor_text(). */
int json_cursor_next_text_key(struct json_cursor *cursor, struct arena *arena, const char **out_key,
                              size_t *out_n_bytes, struct error *err);
/* In an array: *out_more tells whether another element follows. */
int json_cursor_next_element(struct json_cursor *cursor, bool *out_more, struct error *err);

/* Scalars. *out_text is in the arena and terminated, and may have NUL bytes inside. */
int json_cursor_string(struct json_cursor *cursor, struct arena *arena, size_t max_bytes,
                       const char **out_text, size_t *out_n_bytes, struct error *err);
/* A string of any length. *out_text lies in the cursor's text if the string has no escapes, else in
 * the arena. *out_text is not terminated. */
int json_cursor_text(struct json_cursor *cursor, struct arena *arena, const char **out_text,
                     size_t *out_n_bytes, struct error *err);
int json_cursor_number(struct json_cursor *cursor, struct json_number *out, struct error *err);
int json_cursor_bool(struct json_cursor *cursor, bool *out, struct error *err);
int json_cursor_null(struct json_cursor *cursor, struct error *err);
/* Any value, checked and passed over. */
int json_cursor_skip(struct json_cursor *cursor, struct error *err);

/* An error if anything but white space follows. */
int json_cursor_end(struct json_cursor *cursor, struct error *err);

/* For clang's analyzer, as in error.h: both calls return a status that is not 0. */
#ifdef __clang_analyzer__
#define json_cursor_bad(cursor, at, err, ...)                                                      \
    error_is_set(err, json_cursor_bad(cursor, at, err, __VA_ARGS__))
#define json_cursor_out_of_memory(cursor, err)                                                     \
    error_is_set(err, json_cursor_out_of_memory(cursor, err))
#endif
