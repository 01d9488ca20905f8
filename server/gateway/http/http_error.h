/* http_error.h: writes errors as OpenAI's API does: {"error": {message, type, param, code}}. Plain
 * functions; any thread. */
#pragma once

struct error;
struct http_reply;

/* Returns the HTTP status for an error. A client library repeats a request by itself for 408, 409,
 * 429 and from 500 on; no other error may become one of these. */
unsigned http_error_status(const struct error *err);

/* Fills the reply: status, JSON body, and in out_headers (its size: HTTP_ERROR_HEADER_BYTES) the
 * time after which a repeat makes sense. */
enum { HTTP_ERROR_HEADER_BYTES = 160 };
void http_error_reply(const struct error *err, char *out_headers, struct http_reply *reply);

/* The same for a refusal that has no struct error, of the server that reads the requests. */
void http_error_refuse(unsigned status, const char *why, struct http_reply *reply);
