/* tgi_exchange.h: answers the API of text-generation-inference 3: POST /, /generate and
 * /generate_stream, and GET /info. */
#pragma once

#include "proto/http/http_server.h"

struct dispatch;

/* The argument of the handlers. */
struct tgi_context {
    struct dispatch *dispatch;
    bool is_strict; /* unknown fields are refused */
};

http_handler_fn tgi_exchange_compat, tgi_exchange_generate, tgi_exchange_stream;
http_handler_fn tgi_exchange_info;
