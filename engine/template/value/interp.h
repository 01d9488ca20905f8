/* interp.h: the state of one render: memory, output, limits, the first failure. Private to
 * engine/template; each interp belongs to one thread. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/value.h"

struct scope;

enum { MAX_EVAL_DEPTH = 1024 }; /* levels of nested evaluation, over all macro calls */

struct interp {
    struct arena arena;
    struct strbuf out;                  /* rendered text, followed by unfinished captures */
    unsigned n_captures;                /* > 0: `out` holds unfinished captures */
    struct chat_template_limits limits; /* all limits are above 0 */
    uint64_t steps_left;
    uint32_t line; /* line of the node that is evaluated */
    /* name of that construct for messages: "for", "filter 'trim'", ...; or "" */
    const char *construct;
    char construct_text[80];
    unsigned eval_depth, macro_depth;
    struct scope *scope;
    const struct dict *context; /* the caller's variables */
    struct value block_value;   /* input of a filter block's filters */
    int64_t now_unix_s;
    struct error *err;
    bool failed;
    bool out_of_memory; /* the failure is lack of system memory, not a limit */
};

void interp_init(struct interp *in, const struct chat_template_limits *limits, struct error *err);
void interp_fini(struct interp *in);

static inline bool interp_ok(const struct interp *in)
{
    return !in->failed;
}

/* Records the first failure with line and construct. Returns VALUE_UNSET. */
struct value interp_fail(struct interp *in, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct value interp_fail_status(struct interp *in, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for lack of system memory, which is not a limit of the template. */
struct value interp_out_of_memory(struct interp *in);
/* Fails with the name of an undefined value: "'x' is undefined". */
struct value interp_fail_undefined(struct interp *in, struct value v);
/* Counts n steps. Returns false (failed) beyond the limit. */
bool interp_step(struct interp *in, uint64_t n);
/* Zeroed memory that lives until the render ends. Returns NULL (failed) beyond the limit. */
void *interp_alloc(struct interp *in, size_t n, size_t size);
void interp_write(struct interp *in, const char *bytes, size_t n_bytes);
void interp_write_str(struct interp *in, const char *str);
void interp_write_char(struct interp *in, uint32_t code_point);

/* Text written between begin and end is captured as a value and not output. */
size_t interp_capture_begin(struct interp *in);
struct value interp_capture_end(struct interp *in, size_t mark);
