/* openai_tokens.h: answers POST /tokenize and /detokenize, with the bodies of vLLM. A worker of the
 * version does the work (text_call.h). */
#pragma once

#include <stdbool.h>

#include "proto/http/http_server.h"

struct dispatch;
struct text_calls;

/* The argument of the handlers. */
struct openai_tokens {
    struct dispatch *dispatch;
    struct text_calls *calls;
    bool is_strict; /* unknown fields are refused */
};

http_handler_fn openai_tokens_encode, openai_tokens_decode;
