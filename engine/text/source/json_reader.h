/* json_reader.h: reads JSON (RFC 8259) from memory, value by value, without a tree. Private to
 * engine/text. Single-threaded.
 *
 * A failed read is remembered, and every later read fails: check json_failed() at the end. A copy
 * of the struct is a mark: reading goes on from there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/facts/text_facts.h"

struct arena;

enum { JSON_MAX_DEPTH = 64 };

struct json_reader {
    const char *text; /* borrowed; valid UTF-8 */
    size_t n_bytes, at;
    struct arena *arena; /* for strings with escapes */
    const char *why;     /* NULL, or what is wrong at `at` */
    uint32_t depth;
    bool is_first[JSON_MAX_DEPTH]; /* nothing of the array or object was read */
};

enum json_kind {
    JSON_NONE, /* the reader has failed, or the text ends */
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

struct json_text {
    const char *text; /* borrowed from the file or in the arena; not terminated */
    size_t n_bytes;
};

/* Begins at the first value. Fails for text that is not UTF-8. */
void json_init(struct json_reader *json, const char *text, size_t n_bytes, struct arena *arena);
bool json_failed(const struct json_reader *json);
/* Fills *err: "<file>: offset N: ..." (MODEL_FILE_INVALID). For a failed reader alone. */
int json_error(const struct json_reader *json, const struct text_facts *facts, struct error *err);
#if defined(__clang_analyzer__) && !defined(JSON_READER_BODIES)
#define json_error(...) text_facts_is_set(json_error(__VA_ARGS__))
#endif
/* Fails the reader at the present place. */
void json_fail(struct json_reader *json, const char *why);

/* Kind of the next value. */
enum json_kind json_peek(struct json_reader *json);

/* Opens an array or object. */
void json_open(struct json_reader *json, enum json_kind kind);
/* True if another element follows; false at the end, which closes the array, and on failure. */
bool json_item(struct json_reader *json);
/* The same for an object; reads the key. */
bool json_key(struct json_reader *json, struct json_text *out_key);

/* Read one value. On failure the results are empty, 0 or false. */
struct json_text json_string(struct json_reader *json);
double json_number(struct json_reader *json);
bool json_bool(struct json_reader *json);
/* An integer in [0, limit]. */
uint32_t json_uint(struct json_reader *json, uint32_t limit);
/* Passes over one value. */
void json_skip(struct json_reader *json);
/* Fails the reader if text follows the value that was read last. */
void json_end(struct json_reader *json);

/* Places *out_value at the value of a key of the object at *object. Returns false without the key,
 * or if the value at *object is no object. *object does not move. */
bool json_find(const struct json_reader *object, const char *key, struct json_reader *out_value);

bool json_is(struct json_text text, const char *word);
