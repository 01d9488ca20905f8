/* reasoning.h: tells reasoning from content in a choice's text as the text grows. Text that may
 * begin a marker is held back together with its ids. The result does not depend on how the text
 * was cut into tokens. Markers give no text.
 *
 * A marker may consist of special tokens. Then only these tokens count, and not a text that spells
 * their literals. White space before a marker that opens a thought belongs to the marker.
 * Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/request/reasoning_families.h"

struct error;
struct reasoning;
struct tokenizer;

/* Begins in REASONING_BEGINS. *out_reasoning is owned. */
int reasoning_create(const struct reasoning_family *family, const struct tokenizer *tok,
                     struct reasoning **out_reasoning, struct error *err);
void reasoning_destroy(struct reasoning *reasoning);

/* Before the first text. */
void reasoning_set_state(struct reasoning *reasoning, enum reasoning_state state);
/* A prompt that ends with an open marker, perhaps before white space: the thought is open. */
void reasoning_read_prompt(struct reasoning *reasoning, const struct tokenizer *tok,
                           const uint32_t *ids, uint32_t n_ids);

/* True if the token is part of a marker. Push this token alone. */
bool reasoning_has_token(const struct reasoning *reasoning, uint32_t id);
bool reasoning_is_thinking(const struct reasoning *reasoning);

/* Text of one kind, with the ids that end in the text. Ids of a marker that opens or closes a
 * thought are reasoning. */
struct reasoning_part {
    bool is_reasoning;
    size_t end; /* where the text of the part ends in the delta's text */
    uint32_t n_ids;
};

struct reasoning_delta {
    const char *text; /* borrowed until the next call, like `parts` */
    const struct reasoning_part *parts;
    size_t n_parts;
};

/* Takes the text of n_ids further ids, which share the text. `token`: the id of a marker's token,
 * or -1. RESOURCE_EXHAUSTED without memory for held text. */
int reasoning_push(struct reasoning *reasoning, int64_t token, const char *text, size_t n_bytes,
                   uint32_t n_ids, struct reasoning_delta *out_delta, struct error *err);
/* End of the text: gives out all held text. */
int reasoning_flush(struct reasoning *reasoning, struct reasoning_delta *out_delta,
                    struct error *err);
