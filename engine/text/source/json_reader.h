/* json_reader.h: a front of json_cursor.h for files with deep structures: failures are remembered,
 * a copy is a mark, and members are found by name. Private to engine/text. Single-threaded.
 *
 * After a failure every later read fails: check json_failed() at the end. A copy of the struct is a
 * mark: reading goes on from there. All copies fill the same error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text/json_cursor.h"
#include "engine/text/facts/text_facts.h"

struct arena;

struct json_reader {
    struct json_cursor cursor;
    struct arena *arena; /* for strings with escapes */
    struct error *err;   /* borrowed; filled by a failure */
    bool has_failed;
};

enum json_kind {
    JSON_NONE, /* the reader has failed, or no value follows */
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

/* Begins at the first value, behind a byte order mark. Messages name the facts' file. Fails for
 * text that is not UTF-8. NaN and infinities are numbers, as Python writes them. */
void json_init(struct json_reader *json, const char *text, size_t n_bytes, struct text_facts *facts,
               struct error *err);
bool json_failed(const struct json_reader *json);
/* Returns the status of the failure, and copies its error to *err: "<file>: offset N: ..."
 * (MODEL_FILE_INVALID). For a failed reader alone. */
int json_error(const struct json_reader *json, struct error *err);
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
/* An integer in [0, limit]; "1.0" is 1. */
uint32_t json_uint(struct json_reader *json, uint32_t limit);
/* Passes over one value, and checks the value. */
void json_skip(struct json_reader *json);
/* Fails if anything but white space follows. */
void json_end(struct json_reader *json);

/* Places *out_value at the value of a key of the object at *object; of equal keys the last counts.
 * Returns false without the key, or if the value at *object is no object. *object does not move.
 * If the object itself cannot be read, *out_value has failed, and the result is true. */
bool json_find(const struct json_reader *object, const char *key, struct json_reader *out_value);

bool json_is(struct json_text text, const char *word);
