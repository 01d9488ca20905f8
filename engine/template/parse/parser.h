/* parser.h: builds nodes from tokens by recursive descent, following Jinja's grammar. Private to
 * engine/template; compile time only. Functions return NULL (or false) once the compiler has
 * failed. */
#pragma once

#include "base/status.h"
#include "engine/template/parse/lexer.h"

struct parser {
    struct compiler *c;
    const struct token *token; /* current */
    unsigned depth;            /* nesting of blocks, brackets and operands */
    unsigned loop_depth;       /* enclosing loops within the innermost macro */
    unsigned soft_depth; /* enclosing conditionals: in them, unknown filters fail only when run */
    struct macro_def *macro; /* innermost macro or call block */
};

/* Parses the whole template; *out_body is the first statement, NULL for an empty template. */
bool parser_run(struct compiler *c, const struct token *tokens, struct node **out_body);

/* Shared by parse_stmt.c and parse_expr.c. */
bool parser_fail(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool parser_unexpected(struct parser *p, const char *wanted);
struct node *parser_node(struct parser *p, enum node_type type);
bool parser_enter(struct parser *p, const char *what);
void parser_leave(struct parser *p);
bool parser_is_op(const struct parser *p, enum operator_code op);
bool parser_is_name(const struct parser *p, const char *name);
bool parser_skip_op(struct parser *p, enum operator_code op);
bool parser_skip_name(struct parser *p, const char *name);
bool parser_expect_op(struct parser *p, enum operator_code op, const char *spelling);
/* Expects any name; NULL after a failure. `what` describes the name in the message. */
const struct text *parser_expect_name(struct parser *p, const char *what);
/* Appends to a list of siblings; *tail points to the link to fill. */
void parser_append(struct node ***tail, struct node *node);

struct node *parse_expression(struct parser *p);
/* Comma-separated expressions form a tuple. with_cond: `a if b` may be an item. */
struct node *parse_tuple(struct parser *p, bool with_cond);
/* Assignment target before `=` or `in`: a name, a tuple of names, or (with_namespace)
 * ns.attribute. */
struct node *parse_target(struct parser *p, bool with_namespace);
/* A literal, a name, or an expression in brackets. */
struct node *parse_primary(struct parser *p);
/* Parses what follows an operand: attributes, subscripts and calls, then filters and tests. NULL
 * gives NULL. */
struct node *parse_postfix(struct parser *p, struct node *node);
struct node *parse_filter_expression(struct parser *p, struct node *node);
/* Applies `| filter | filter` to `input`. start_inline: the first filter has no bar. */
struct node *parse_filters(struct parser *p, struct node *input, bool start_inline);
