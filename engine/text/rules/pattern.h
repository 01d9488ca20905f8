/* pattern.h: regular expressions of tokenizer files, compiled with PCRE2. Private to engine/text.
 * Compiled patterns are immutable; any thread may match, each with its own scratch. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/text/facts/text_facts.h"

struct error;
struct pattern;
struct strbuf;

enum { PATTERN_MAX_BYTES = 16 << 10, PATTERN_MAX_DEPTH = 32 };

/* Writes the pattern in PCRE2's syntax. UNIMPLEMENTED names a construct that is not built. */
int pattern_translate(const char *text, size_t n_bytes, enum pattern_dialect dialect,
                      struct strbuf *out, struct error *err);

/* *out_pattern is owned. UNIMPLEMENTED (TOKENIZER_UNSUPPORTED) if the pattern is not supported. */
int pattern_create(const char *text, size_t n_bytes, enum pattern_dialect dialect,
                   struct pattern **out_pattern, struct error *err);
void pattern_destroy(struct pattern *pattern);

/* Scratch of one thread; reusable for further texts. */
struct pattern_scratch;
int pattern_scratch_create(struct pattern_scratch **out_scratch, struct error *err);
void pattern_scratch_destroy(struct pattern_scratch *scratch);
/* Sets the effort that matches may take, for a text of n_bytes. */
void pattern_scratch_limit(struct pattern_scratch *scratch, size_t n_bytes);

/* Finds the first match at or after `at` in valid UTF-8; it may be empty. Returns 1 and the match,
 * 0 without one, or RESOURCE_EXHAUSTED. */
int pattern_find(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text,
                 size_t n_bytes, size_t at, size_t *out_from, size_t *out_to, struct error *err);
