/* interp.h: the state of one render: memory, output, limits, the first failure. Private to
 * engine/template; one thread per interp. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/value.h"

struct scope;

enum { MAX_EVAL_DEPTH = 1024 }; /* nested nodes under evaluation, over all macro calls */

struct interp {
    struct arena arena;
    struct strbuf out;                  /* rendered text, and below it captures under way */
    unsigned n_captures;                /* > 0: `out` holds unfinished captures */
    struct chat_template_limits limits; /* none is 0 */
    uint64_t steps_left;
    uint32_t line;         /* of the node being evaluated */
    const char *construct; /* its name for messages: "for", "filter 'trim'", ...; or "" */
    char construct_text[80];
    unsigned eval_depth, macro_depth;
    struct scope *scope;
    const struct dict *context; /* the caller's variables */
    struct value block_value;   /* input of a filter block's filters */
    int64_t now_unix_s;
    struct error *err;
    bool failed;
    bool out_of_memory; /* why it failed: no limit was met */
};

void interp_init(struct interp *in, const struct chat_template_limits *limits, struct error *err);
void interp_fini(struct interp *in);

static inline bool interp_ok(const struct interp *in)
{
    return !in->failed;
}

/* Records the first failure with line and construct; returns VALUE_UNSET. */
struct value interp_fail(struct interp *in, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct value interp_fail_status(struct interp *in, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same where the system has no memory, which is no limit of the template's. */
struct value interp_out_of_memory(struct interp *in);
/* Fails with the undefined name: "'x' is undefined". */
struct value interp_fail_undefined(struct interp *in, struct value v);
/* Counts n steps; false (failed) past the limit. */
bool interp_step(struct interp *in, uint64_t n);
/* Zeroed memory until the render ends; NULL (failed) past the limit. */
void *interp_alloc(struct interp *in, size_t n, size_t size);
void interp_write(struct interp *in, const char *bytes, size_t n_bytes);
void interp_write_str(struct interp *in, const char *str);
void interp_write_char(struct interp *in, uint32_t code_point);

/* Text written between begin and end becomes a value instead of output. */
size_t interp_capture_begin(struct interp *in);
struct value interp_capture_end(struct interp *in, size_t mark);
