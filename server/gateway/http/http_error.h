/* http_error.h: writes errors as OpenAI's API does: {"error": {message, type, param, code}}. Plain
 * functions; any thread. */
#pragma once

struct error;
struct http_reply;

/* Returns the HTTP status for an error. A client library repeats a request by itself for 408, 409,
 * 429 and from 500 on; no other error may become one of these. */
unsigned http_error_status(const struct error *err);

enum { HTTP_ERROR_HEADER_BYTES = 160 };

/* Writes the header lines of an error. They tell a client library if it should repeat the request,
 * and after which time. out_headers has HTTP_ERROR_HEADER_BYTES. */
void http_error_headers(const struct error *err, char *out_headers);
/* Fills the reply: status, JSON body, and out_headers. */
void http_error_reply(const struct error *err, char *out_headers, struct http_reply *reply);
/* The same with a code of the API's own; NULL: the name of the error's reason. */
void http_error_reply_as(const struct error *err, const char *code, char *out_headers,
                         struct http_reply *reply);
