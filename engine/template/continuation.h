/* continuation.h: leaves the last message of a conversation open, as transformers does with
 * continue_final_message. A mark and a space follow the open text before the template runs. The
 * output ends at the last mark. Private to engine/template; each interp belongs to one thread. */
#pragma once

#include <stdbool.h>

#include "engine/template/value/value.h"

enum { CONTINUATION_MARK_BYTES = 17 };

struct continuation {
    /* a word that no text of the messages holds, terminated. Plain letters: templates that print a
     * message escape other characters. */
    char mark[CONTINUATION_MARK_BYTES + 1];
    const struct text *open; /* the text as given */
};

/* Marks a field of the last message ("content", "reasoning_content"). *messages becomes a changed
 * copy. Returns false after a failure: no messages, or the last message lacks the field. */
bool continuation_begin(struct interp *in, struct value *messages, const char *field,
                        struct continuation *out_continuation);
/* Cuts the rendered text behind the open text. If the template trimmed the open text, white space
 * at the end of the output goes, too. Fails if the template does not render the open text. */
bool continuation_cut(struct interp *in, const struct continuation *continuation);
