/* reasoning_families.h: the markers by which models set their reasoning apart from the answer, a
 * row per family. Constant data; any thread. */
#pragma once

struct tokenizer;

enum { REASONING_MAX_MOVES = 4 };

enum reasoning_state {
    REASONING_BEGINS,  /* nothing but white space was generated since the last move */
    REASONING_THINKS,  /* the text is reasoning */
    REASONING_ANSWERS, /* the text is content */
};

/* In the state `from`, the marker's text changes the state. The marker is neither reasoning nor
 * content. In REASONING_BEGINS the marker must come first; another text is content. */
struct reasoning_move {
    enum reasoning_state from;
    const char *marker; /* NULL: no further move */
    enum reasoning_state to;
};

struct reasoning_family {
    const char *name;
    struct reasoning_move moves[REASONING_MAX_MOVES];
};

/* The family whose first or second marker is in the text of a chat template, or NULL. */
const struct reasoning_family *reasoning_families_in_template(const char *text);
/* The family of a model: by its chat templates, else by its special tokens. NULL: none. */
const struct reasoning_family *reasoning_families_of(const struct tokenizer *tok);
