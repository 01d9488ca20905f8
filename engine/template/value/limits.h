/* limits.h: what a template and its renders may take. Part of chat_template.h's contract. */
#pragma once

#include <stdint.h>

enum {
    CHAT_TEMPLATE_MAX_TEXT_BYTES = 1024 * 1024,
    CHAT_TEMPLATE_MAX_STEPS = 10 * 1000 * 1000,       /* where a render does not say otherwise */
    CHAT_TEMPLATE_MAX_OUTPUT_BYTES = 4 * 1024 * 1024, /* the same */
    CHAT_TEMPLATE_MAX_DEPTH =
        64, /* nesting of the text, of macro calls and of data: of the stack */
    CHAT_TEMPLATE_MAX_MEMORY_BYTES = 128 * 1024 * 1024, /* values made by one render */
};

/* Of one render; 0: the limits above. */
struct chat_template_limits {
    uint64_t max_steps, max_output_bytes;
};
