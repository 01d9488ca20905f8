/* conversation.h: prepares messages for a template as transformers does. Private to
 * engine/template; each interp belongs to one thread. */
#pragma once

#include <stdbool.h>

#include "engine/template/value/value.h"

enum conversation_arguments {
    CONVERSATION_ARGUMENTS_AS_GIVEN, /* the template reads both forms, or none */
    CONVERSATION_ARGUMENTS_OBJECT,
    CONVERSATION_ARGUMENTS_TEXT, /* JSON as a string */
};

/* How a template reads tool calls. A zeroed form changes nothing. */
struct conversation_form {
    enum conversation_arguments arguments;
    bool null_content; /* calls are read only beside content that is none */
};

/* Returns the messages in the form of transformers and of the template. Reasoning that a message
 * has as "reasoning_content", "thinking" or "reasoning" gets the first two names. Tool calls get
 * the template's form. Values that are no messages stay as they are, and the caller's lists and
 * dicts do not change. */
struct value conversation_prepare(struct interp *in, struct value messages,
                                  const struct conversation_form *form);
/* A copy of the dict, to which the caller may add members. NULL after a failure. */
struct dict *conversation_copy_dict(struct interp *in, const struct dict *from);
/* A copy of the list, with room for the caller's changes. NULL after a failure. */
struct list *conversation_copy_list(struct interp *in, const struct list *from);
