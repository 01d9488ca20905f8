/* interp.h: the state of one render, its limits, and the tables of built-ins. Private to
 * engine/template; one thread per interp. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"
#include "engine/template/parse/ast.h"
#include "engine/template/value.h"

struct variable {
    const struct text *name; /* interned: compared by address */
    struct value value;
};

struct scope {
    struct scope *parent;
    struct variable *variables;
    size_t n, capacity;
    bool captured; /* a macro was defined here or below: may outlive its block */
};

struct macro {
    const struct macro_def *def;
    struct scope *scope; /* where it was defined */
};

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
/* Counts n steps; false (failed) past the limit. */
bool interp_step(struct interp *in, uint64_t n);
/* Zeroed memory until the render ends; NULL (failed) past the limit. */
void *interp_alloc(struct interp *in, size_t n, size_t size);
void interp_write(struct interp *in, const char *bytes, size_t n_bytes);
void interp_write_str(struct interp *in, const char *str);
void interp_write_char(struct interp *in, uint32_t code_point);

/* Text written between begin and end becomes a value instead of output. */
size_t capture_begin(struct interp *in);
struct value capture_end(struct interp *in, size_t mark);

/* Arguments of a call. */
struct keyword {
    const struct text *name;
    struct value value;
};
struct args {
    const struct value *positional;
    size_t n_positional;
    const struct keyword *keywords;
    size_t n_keywords;
};

/* `argv` holds one value per name in `params` (VALUE_UNSET where not given). For variadic built-ins
 * (params NULL) argv is NULL and `args` holds what came. */
typedef struct value (*builtin_fn)(struct interp *in, struct value self, const struct value *argv,
                                   const struct args *args);
struct builtin {
    const char *name;
    builtin_fn fn;
    const char *params; /* "width,first,blank"; "" none; NULL variadic */
    unsigned n_required;
};

struct value builtin_call(struct interp *in, const struct builtin *builtin, const char *kind,
                          struct value self, const struct args *args);

/* NULL where the name is unknown. */
const struct builtin *filter_find(const struct text *name);
const struct builtin *test_find(const struct text *name);
const struct builtin *global_find(const struct text *name);
const struct builtin *method_find(struct value self, const struct text *name);
bool method_is_mutating(struct value self, const struct text *name);

extern const struct builtin text_filters[], sequence_filters[], select_filters[];

/* operators.c */
/* Fails with what was undefined: "'x' is undefined". */
struct value fail_undefined(struct interp *in, struct value v);
struct value value_getattr(struct interp *in, struct value v, const struct text *name);
struct value value_getitem(struct interp *in, struct value v, struct value key);
struct value value_slice(struct interp *in, struct value v, struct value start, struct value stop,
                         struct value step);
struct value value_binary(struct interp *in, enum operator_code op, struct value a, struct value b);
bool value_compare(struct interp *in, enum operator_code op, struct value a, struct value b);
bool value_contains(struct interp *in, struct value container, struct value item);
struct value value_negate(struct interp *in, struct value v);
/* percent.c: printf-style formatting, text % args; `format` is text. */
struct value text_percent(struct interp *in, struct value format, const struct value *items,
                          size_t n_items, const struct dict *mapping);

/* eval.c */
struct value eval(struct interp *in, const struct node *node);
struct value eval_call(struct interp *in, struct value callee, const struct args *args);

/* Evaluated arguments; the common few live here and not in the arena. */
enum { ARG_SPACE = 8 }; /* power of two */
struct arg_space {
    struct args args;
    struct value *positional_items; /* args.positional, writable */
    struct keyword *keyword_items;
    struct value positional[ARG_SPACE];
    struct keyword keywords[ARG_SPACE];
};
bool eval_args(struct interp *in, const struct node *list, struct arg_space *out_space);

/* loop.c */
struct value loop_getattr(struct interp *in, struct loop *loop, const struct text *name);
enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
/* loop(iterable) in a recursive loop: the loop's text over another iterable. */
struct value loop_call(struct interp *in, struct loop *loop, const struct args *args);
enum flow loop_run(struct interp *in, const struct node *node);

/* exec.c */
enum flow exec_list(struct interp *in, const struct node *first);
bool assign_target(struct interp *in, const struct node *target, struct value v);
struct value macro_call(struct interp *in, struct macro *macro, const struct args *args);
struct scope *scope_push(struct interp *in);
void scope_set(struct interp *in, const struct text *name, struct value v);
struct value scope_lookup(struct interp *in, const struct text *name);

/* strftime_now's text. */
struct value text_strftime(struct interp *in, const struct text *format);
