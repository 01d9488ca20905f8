/* openai_field.h: fields that are not read. Fields without effect are collected. Fields that would
 * change the answer are refused. Plain functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"

struct http_body;

/* Names of fields without effect, for the header x-sluice-ignored. */
struct openai_ignored {
    struct strbuf names; /* see http_ignored_add */
    bool is_strict;      /* a field without effect is an error */
};

/* Skips the value of a field without effect, and notes the name. */
int openai_field_ignore(struct http_body *body, struct openai_ignored *ignored, const char *name);
/* UNIMPLEMENTED: "<name>: <rule>". */
int openai_field_not_built(struct http_body *body, const char *name, const char *rule);
/* A field that is not built. The values null, false, 0, "", [] and {} are accepted, as is the
 * number `neutral`: these ask for nothing. */
int openai_field_refuse(struct http_body *body, const char *name, double neutral);
