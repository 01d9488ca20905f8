/* openai_exchange.h: answers POST /v1/chat/completions and /v1/completions. Each prompt of a
 * request is a generation of its own (dispatch/generation.h), whose relay has a sink here. */
#pragma once

#include "proto/http/http_server.h"

struct dispatch;

/* The argument of the handlers. */
struct openai_context {
    struct dispatch *dispatch;
    bool is_strict; /* unknown fields are refused */
};

http_handler_fn openai_exchange_chat, openai_exchange_completions;
