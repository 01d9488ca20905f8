/* Parses what follows an operand: attributes, subscripts, calls, filters and tests. */
#include <stdio.h>
#include <string.h>

#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"
#include "engine/template/parse/lexer.h"
#include "engine/template/parse/parser.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/text.h"

/* A part of a slice; its expression may be missing. */
static struct node *slice_part(struct parser *p, struct node *expression)
{
    struct node *part = parser_node(p, NODE_OPERAND);
    if (part)
        part->a = expression;
    return part;
}

static bool slice_part_missing(const struct parser *p)
{
    return parser_is_op(p, OP_COLON) || parser_is_op(p, OP_RBRACKET);
}

static struct node *parse_slice(struct parser *p, struct node *object, struct node *start)
{
    struct node *node = parser_node(p, NODE_SLICE);
    if (!node)
        return NULL;
    node->a = object;
    struct node **tail = &node->list;
    parser_append(&tail, slice_part(p, start));
    for (int i = 0; i < 2; i++) {
        struct node *part = NULL;
        bool given = i == 0 || parser_is_op(p, OP_COLON);
        if (given)
            p->token++;
        if (given && !slice_part_missing(p) && !(part = parse_expression(p)))
            return NULL;
        parser_append(&tail, slice_part(p, part));
    }
    return parser_expect_op(p, OP_RBRACKET, "']'") ? node : NULL;
}

static struct node *parse_subscript(struct parser *p, struct node *object)
{
    uint32_t line = p->token->line;
    p->token++;
    struct node *key = parser_is_op(p, OP_COLON) ? NULL : parse_expression(p);
    if (p->c->failed)
        return NULL;
    if (parser_is_op(p, OP_COLON))
        return parse_slice(p, object, key);
    struct node *node = parser_node(p, NODE_GETITEM);
    if (!node || !parser_expect_op(p, OP_RBRACKET, "']'"))
        return NULL;
    node->line = line;
    node->a = object;
    node->b = key;
    return node;
}

static struct node *parse_attribute(struct parser *p, struct node *object)
{
    p->token++;
    bool is_name = p->token->type == TOKEN_NAME;
    if (!is_name && p->token->type != TOKEN_INTEGER) {
        parser_unexpected(p, "a name or number after '.'");
        return NULL;
    }
    struct node *node = parser_node(p, is_name ? NODE_GETATTR : NODE_GETITEM);
    if (!node)
        return NULL;
    node->a = object;
    if (is_name)
        node->name = (p->token++)->text;
    else
        node->b = parse_primary(p);
    return node;
}

static enum arg_kind arg_kind(struct parser *p)
{
    if (parser_skip_op(p, OP_MUL))
        return ARG_STAR;
    if (parser_skip_op(p, OP_POW))
        return ARG_DOUBLE_STAR;
    bool keyword = p->token->type == TOKEN_NAME && p->token[1].type == TOKEN_OPERATOR &&
                   p->token[1].op == OP_ASSIGN;
    return keyword ? ARG_KEYWORD : ARG_POSITIONAL;
}

/* Parses arguments in parentheses (the current token) into `list`. */
static bool parse_args(struct parser *p, struct node **list)
{
    struct node **tail = list;
    enum arg_kind last = ARG_POSITIONAL;
    p->token++;
    while (!p->c->failed && !parser_is_op(p, OP_RPAREN)) {
        if (*list && !parser_expect_op(p, OP_COMMA, "',' or ')'"))
            return false;
        if (parser_is_op(p, OP_RPAREN))
            break;
        struct node *arg = parser_node(p, NODE_ARG);
        if (!arg)
            return false;
        enum arg_kind kind = arg_kind(p);
        bool ordered = kind == ARG_POSITIONAL ? last == ARG_POSITIONAL
                       : kind == ARG_KEYWORD  ? last != ARG_DOUBLE_STAR
                                              : last < kind;
        if (!ordered)
            return parser_fail(p, "arguments of a call are out of order");
        last = kind > last ? kind : last;
        arg->op = (uint8_t)kind;
        if (kind == ARG_KEYWORD) {
            arg->name = p->token->text;
            p->token += 2;
        }
        arg->a = parse_expression(p);
        parser_append(&tail, arg);
    }
    return parser_expect_op(p, OP_RPAREN, "')'");
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *node = parser_node(p, NODE_CALL);
    if (!node)
        return NULL;
    node->a = callee;
    return parse_args(p, &node->list) ? node : NULL;
}

/* Limits postfix chains: each part is one level of evaluation. */
static bool count_postfix(struct parser *p, unsigned *n)
{
    if (++*n <= CHAT_TEMPLATE_MAX_DEPTH)
        return true;
    return compiler_fail(p->c, STATUS_RESOURCE_EXHAUSTED, p->token->line,
                         "more than %d subscripts, calls or filters in a row",
                         CHAT_TEMPLATE_MAX_DEPTH);
}

struct node *parse_postfix(struct parser *p, struct node *node)
{
    unsigned n = 0;
    while (node) {
        if (parser_is_op(p, OP_DOT))
            node = parse_attribute(p, node);
        else if (parser_is_op(p, OP_LBRACKET))
            node = parse_subscript(p, node);
        else if (parser_is_op(p, OP_LPAREN))
            node = parse_call(p, node);
        else
            break;
        if (!count_postfix(p, &n))
            return NULL;
    }
    return node;
}

/* Parses the name of a filter or test, which may contain dots. */
static const struct text *parse_dotted_name(struct parser *p, const char *what)
{
    const struct text *name = parser_expect_name(p, what);
    while (name && parser_skip_op(p, OP_DOT)) {
        const struct text *part = parser_expect_name(p, what);
        if (part)
            parser_fail(p, "no %s named '%.40s.%.40s'", what, name->data, part->data);
        name = NULL;
    }
    return name;
}

static struct node *parse_filter(struct parser *p, struct node *input)
{
    struct node *node = parser_node(p, NODE_FILTER);
    const struct text *name = parse_dotted_name(p, "filter");
    if (!node || !name)
        return NULL;
    node->a = input;
    node->name = name;
    node->builtin = builtin_filter(name);
    if (!node->builtin && !p->soft_depth) {
        compiler_fail(p->c, STATUS_UNIMPLEMENTED, node->line, "filter '%.40s' is not supported",
                      name->data);
        return NULL;
    }
    if (parser_is_op(p, OP_LPAREN) && !parse_args(p, &node->list))
        return NULL;
    return node;
}

struct node *parse_filters(struct parser *p, struct node *input, bool start_inline)
{
    struct node *node = input;
    unsigned n = 0;
    while (!p->c->failed && (start_inline || parser_skip_op(p, OP_PIPE))) {
        start_inline = false;
        node = parse_filter(p, node);
        if (!node || !count_postfix(p, &n))
            return NULL;
    }
    return p->c->failed ? NULL : node;
}

/* True if a test's argument without parentheses follows, as in `x is divisibleby 3`. */
static bool test_argument_follows(const struct parser *p)
{
    switch ((enum token_type)p->token->type) {
    case TOKEN_NAME:
        return !parser_is_name(p, "else") && !parser_is_name(p, "or") && !parser_is_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
        return true;
    default:
        return parser_is_op(p, OP_LBRACKET) || parser_is_op(p, OP_LBRACE);
    }
}

static bool parse_test_args(struct parser *p, struct node *test)
{
    if (parser_is_op(p, OP_LPAREN))
        return parse_args(p, &test->list);
    if (!test_argument_follows(p))
        return true;
    if (parser_is_name(p, "is"))
        return parser_fail(p, "tests cannot be chained with 'is'");
    struct node *arg = parser_node(p, NODE_ARG);
    if (!arg)
        return false;
    arg->a = parse_primary(p);
    arg->a = arg->a ? parse_postfix(p, arg->a) : NULL;
    test->list = arg;
    return arg->a != NULL;
}

static struct node *parse_test(struct parser *p, struct node *subject)
{
    struct node *test = parser_node(p, NODE_TEST);
    p->token++;
    bool negated = parser_skip_name(p, "not");
    const struct text *name = parse_dotted_name(p, "test");
    if (!test || !name)
        return NULL;
    test->a = subject;
    test->name = name;
    test->builtin = builtin_test(name);
    if (!test->builtin && !p->soft_depth) {
        compiler_fail(p->c, STATUS_UNIMPLEMENTED, test->line, "test '%.40s' is not supported",
                      name->data);
        return NULL;
    }
    if (!parse_test_args(p, test))
        return NULL;
    if (!negated)
        return test;
    struct node *node = parser_node(p, NODE_NOT);
    if (node)
        node->a = test;
    return node;
}

struct node *parse_filter_expression(struct parser *p, struct node *node)
{
    unsigned n = 0;
    while (node) {
        if (parser_skip_op(p, OP_PIPE))
            node = parse_filter(p, node);
        else if (parser_is_name(p, "is"))
            node = parse_test(p, node);
        else if (parser_is_op(p, OP_LPAREN))
            node = parse_call(p, node);
        else
            break;
        if (!count_postfix(p, &n))
            return NULL;
    }
    return node;
}
