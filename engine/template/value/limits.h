/* limits.h: limits on a template and its renders. Part of chat_template.h's contract. */
#pragma once

#include <stdint.h>

enum {
    CHAT_TEMPLATE_MAX_TEXT_BYTES = 1024 * 1024,
    CHAT_TEMPLATE_MAX_STEPS = 10 * 1000 * 1000,       /* default of a render */
    CHAT_TEMPLATE_MAX_OUTPUT_BYTES = 4 * 1024 * 1024, /* default of a render */
    CHAT_TEMPLATE_MAX_DEPTH =
        64, /* nesting of template text, macro calls and data; protects the stack */
    CHAT_TEMPLATE_MAX_MEMORY_BYTES = 128 * 1024 * 1024, /* values created by one render */
};

/* Limits of one render; 0: the defaults above. */
struct chat_template_limits {
    uint64_t max_steps, max_output_bytes;
};
