/* openai_exchange.h: answers POST /v1/chat/completions and /v1/completions: OpenAI's table for
 * http_generation.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http_server.h"

struct dispatch;

/* The argument of the handlers. */
struct openai_context {
    struct dispatch *dispatch;
    bool is_strict;           /* unknown fields are refused */
    _Atomic uint32_t ping_ms; /* see http_generation.h; 0: the default */
};

http_handler_fn openai_exchange_chat, openai_exchange_completions;
