/* openai_error.h: writes errors as OpenAI's API has them: the fields in OpenAI's spelling, and the
 * codes that its clients know. Plain functions; any thread. */
#pragma once

#include <stdbool.h>

struct error;
struct http_reply;

/* Rewrites the field of an error, and the text that begins with the field, from the proto's
 * spelling: "sampling.top_p" becomes "top_p". */
void openai_error_name_field(struct error *err, bool is_chat);

/* Fills the reply: status, body and headers. out_headers has HTTP_ERROR_HEADER_BYTES. */
void openai_error_reply(const struct error *err, bool is_chat, char *out_headers,
                        struct http_reply *reply);
