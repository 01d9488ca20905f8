/* http_body.h: reads the JSON body of a request value by value. Every error is INVALID_ARGUMENT and
 * names the field as the caller spells it. Texts and lists lie in the body's arena. Plain
 * functions; any thread.
 *
 * The functions that read a value return 0, or the status of *body->err. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text/json_cursor.h"

struct arena;
struct error;

enum { HTTP_BODY_MAX_KEY = 256 };

struct http_body {
    struct json_cursor cursor;
    struct arena *arena; /* borrowed */
    struct error *err;   /* borrowed */
};

/* Begins to read an object. `text` is borrowed while the body is read. */
int http_body_init(struct http_body *body, const char *text, size_t n_bytes, struct arena *arena,
                   struct error *err);
/* An error if anything follows the object. */
int http_body_end(struct http_body *body);

/* Fills the error: "<name>: <rule>". */
int http_body_bad(struct http_body *body, const char *name, const char *rule);
int http_body_no_memory(struct http_body *body);

/* In an object: the next key; NULL: the object has ended. The caller must then read or
 * skip the value. */
int http_body_key(struct http_body *body, const char **out_key);
/* In a list: *out_more tells whether another element follows. */
int http_body_more(struct http_body *body, bool *out_more);
/* The kind of the next value. */
int http_body_kind(struct http_body *body, enum json_value *out_kind);
int http_body_skip(struct http_body *body);
/* Skips a null. *out_is_null: there was one. */
int http_body_null(struct http_body *body, bool *out_is_null);

int http_body_enter_object(struct http_body *body, const char *name);
int http_body_enter_list(struct http_body *body, const char *name, const char *rule);

int http_body_bool(struct http_body *body, const char *name, bool *out);
int http_body_number(struct http_body *body, const char *name, struct json_number *out);
int http_body_float(struct http_body *body, const char *name, float *out);
/* Any whole number; *out is an integer. */
int http_body_integer(struct http_body *body, const char *name, struct json_number *out);
/* A whole number from 0 to `most`. */
int http_body_whole(struct http_body *body, const char *name, uint64_t most, uint64_t *out);
int http_body_u32(struct http_body *body, const char *name, uint32_t *out);
/* A text without NUL, terminated. */
int http_body_text(struct http_body *body, const char *name, char **out);
/* A text, or a list of texts. */
int http_body_texts(struct http_body *body, const char *name, char ***out, size_t *out_n);
/* A list of token ids. */
int http_body_ids(struct http_body *body, const char *name, uint32_t **out, size_t *out_n);
/* The JSON text of any value, unchanged and terminated. */
int http_body_raw(struct http_body *body, char **out);
/* The JSON text of an object, unchanged and terminated. */
int http_body_object(struct http_body *body, const char *name, char **out);

/* Makes room for one more element in a list of n elements in the arena. Returns the list, which may
 * have moved; NULL if memory is exhausted. Call it for every element: the room doubles. */
void *http_body_grow(struct http_body *body, void *list, size_t n, size_t size);
