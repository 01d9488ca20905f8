/* tgi_error.h: writes errors as text-generation-inference does: {"error", "error_type"}. Plain
 * functions; any thread. */
#pragma once

struct error;
struct http_reply;
struct strbuf;

/* Returns the HTTP status. A bad request has 422, an unknown model 404. A server that takes no more
 * requests answers 429 or 503. A failed generation has 424, an incomplete answer 500. */
unsigned tgi_error_status(const struct error *err);

/* Appends the JSON object. */
void tgi_error_write(const struct error *err, struct strbuf *out);

/* Fills the reply. out_headers (its size: HTTP_GENERATION_HEADER_BYTES) has the time after which a
 * repeat makes sense. */
void tgi_error_reply(const struct error *err, char *out_headers, struct http_reply *reply);
