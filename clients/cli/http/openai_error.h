/* openai_error.h: turns an error of an OpenAI server into a struct error. Servers differ: an object
 * {"error": {message, type, param, code}}, a text, or {"detail": ...}. Plain functions; any thread.
 */
#pragma once

#include <stddef.h>

struct error;
struct json_cursor;

/* Fills *err for a response whose status is not 200. `location`: where a redirect leads, or "". */
void openai_error_of_response(unsigned http_status, const char *location, const char *body,
                              size_t n_bytes, struct error *err);

/* Reads the value of "error" in an event at the cursor, and fills *err. Returns 0 for null and
 * other empty values. The cursor's own errors are DATA_LOSS. */
int openai_error_read(struct json_cursor *cursor, struct error *err);
