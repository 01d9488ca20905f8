#include <stdio.h>
#include <string.h>

#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"
#include "engine/template/parse/lexer.h"
#include "engine/template/parse/parser.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

static struct node *parse_unary(struct parser *p, bool with_filter);

bool parser_enter(struct parser *p, const char *what)
{
    if (p->c->failed)
        return false;
    if (p->depth >= CHAT_TEMPLATE_MAX_DEPTH)
        return compiler_fail(p->c, STATUS_RESOURCE_EXHAUSTED, p->token->line,
                             "%s is nested deeper than %d levels", what, CHAT_TEMPLATE_MAX_DEPTH);
    p->depth++;
    return true;
}

void parser_leave(struct parser *p)
{
    p->depth--;
}

struct node *parser_node(struct parser *p, enum node_type type)
{
    struct node *node = compiler_alloc(p->c, 1, sizeof(*node), p->token->line);
    if (node) {
        node->type = (uint8_t)type;
        node->line = p->token->line;
    }
    return node;
}

bool parser_is_op(const struct parser *p, enum operator_code op)
{
    return p->token->type == TOKEN_OPERATOR && p->token->op == op;
}

static bool token_is_name(const struct token *token, const char *name)
{
    return token->type == TOKEN_NAME && !strcmp(token->text->data, name);
}

bool parser_is_name(const struct parser *p, const char *name)
{
    return token_is_name(p->token, name);
}

bool parser_skip_op(struct parser *p, enum operator_code op)
{
    bool is = parser_is_op(p, op);
    if (is)
        p->token++;
    return is;
}

bool parser_skip_name(struct parser *p, const char *name)
{
    bool is = parser_is_name(p, name);
    if (is)
        p->token++;
    return is;
}

bool parser_expect_op(struct parser *p, enum operator_code op, const char *spelling)
{
    return !p->c->failed && (parser_skip_op(p, op) || parser_unexpected(p, spelling));
}

const struct text *parser_expect_name(struct parser *p, const char *what)
{
    if (p->c->failed)
        return NULL;
    if (p->token->type != TOKEN_NAME) {
        parser_unexpected(p, what);
        return NULL;
    }
    return (p->token++)->text;
}

void parser_append(struct node ***tail, struct node *node)
{
    if (node) {
        **tail = node;
        *tail = &node->next;
    }
}

/* `left op right` as a list on a first node, so that long chains do not nest. */
static struct node *chain_start(struct parser *p, enum node_type type, struct node *first)
{
    struct node *node = parser_node(p, type);
    if (node)
        node->a = first;
    return node;
}

static struct node *operand(struct parser *p, enum operator_code op,
                            struct node *(*parse)(struct parser *))
{
    struct node *node = parser_node(p, NODE_OPERAND);
    if (!node)
        return NULL;
    node->op = (uint8_t)op;
    node->a = parse(p);
    return node->a ? node : NULL;
}

static struct node *parse_chain(struct parser *p, struct node *(*parse)(struct parser *),
                                const enum operator_code *ops)
{
    struct node *left = parse(p), *chain = NULL, **tail = NULL;
    while (left && p->token->type == TOKEN_OPERATOR) {
        const enum operator_code *op = ops;
        while (*op != OP_NONE && *op != (enum operator_code)p->token->op)
            op++;
        if (*op == OP_NONE)
            break;
        if (!chain) {
            chain = chain_start(p, NODE_CHAIN, left);
            if (!chain)
                return NULL;
            tail = &chain->list;
        }
        p->token++;
        struct node *right = operand(p, *op, parse);
        if (!right)
            return NULL;
        parser_append(&tail, right);
    }
    return chain ? chain : left;
}

static struct node *parse_operand(struct parser *p)
{
    return parse_unary(p, true);
}

static struct node *parse_pow(struct parser *p)
{
    static const enum operator_code ops[] = {OP_POW, OP_NONE};
    return parse_chain(p, parse_operand, ops);
}

static struct node *parse_product(struct parser *p)
{
    static const enum operator_code ops[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_NONE};
    return parse_chain(p, parse_pow, ops);
}

/* `a <sep> b <sep> c` becomes one node with a list of operands; a single operand stays as it is. */
static struct node *list_of(struct parser *p, enum node_type type,
                            struct node *(*parse)(struct parser *),
                            bool (*separator)(struct parser *))
{
    struct node *first = parse(p), *node = NULL, **tail = NULL;
    while (first && separator(p)) {
        if (!node) {
            node = parser_node(p, type);
            if (!node)
                return NULL;
            tail = &node->list;
            parser_append(&tail, first);
        }
        struct node *item = parse(p);
        if (!item)
            return NULL;
        parser_append(&tail, item);
    }
    return node ? node : first;
}

static bool skip_tilde(struct parser *p)
{
    return parser_skip_op(p, OP_TILDE);
}

static bool skip_and(struct parser *p)
{
    return parser_skip_name(p, "and");
}

static bool skip_or(struct parser *p)
{
    return parser_skip_name(p, "or");
}

static struct node *parse_concat(struct parser *p)
{
    return list_of(p, NODE_CONCAT, parse_product, skip_tilde);
}

static struct node *parse_sum(struct parser *p)
{
    static const enum operator_code ops[] = {OP_ADD, OP_SUB, OP_NONE};
    return parse_chain(p, parse_concat, ops);
}

static enum operator_code comparison(struct parser *p)
{
    if (p->token->type == TOKEN_OPERATOR && p->token->op >= OP_EQ && p->token->op <= OP_GE)
        return (enum operator_code)(p->token++)->op;
    if (parser_skip_name(p, "in"))
        return OP_IN;
    if (parser_is_name(p, "not") && token_is_name(p->token + 1, "in")) {
        p->token += 2;
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct node *parse_comparison(struct parser *p)
{
    struct node *left = parse_sum(p), *node = NULL, **tail = NULL;
    enum operator_code op;
    while (left && (op = comparison(p)) != OP_NONE) {
        if (!node) {
            node = chain_start(p, NODE_COMPARE, left);
            if (!node)
                return NULL;
            tail = &node->list;
        }
        struct node *right = operand(p, op, parse_sum);
        if (!right)
            return NULL;
        parser_append(&tail, right);
    }
    return node ? node : left;
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_is_name(p, "not"))
        return parse_comparison(p);
    if (!parser_enter(p, "'not'"))
        return NULL;
    struct node *node = parser_node(p, NODE_NOT);
    p->token++;
    if (node)
        node->a = parse_not(p);
    parser_leave(p);
    return node && node->a ? node : NULL;
}

static struct node *parse_and(struct parser *p)
{
    return list_of(p, NODE_AND, parse_not, skip_and);
}

static struct node *parse_or(struct parser *p)
{
    return list_of(p, NODE_OR, parse_and, skip_or);
}

/* Parses the rest of a conditional expression, from its "if" (the current token) on. */
static struct node *parse_cond_rest(struct parser *p, struct node *then)
{
    struct node *node = parser_node(p, NODE_COND);
    if (!node)
        return NULL;
    p->token++;
    node->b = then;
    node->a = parse_or(p);
    if (!node->a)
        return NULL;
    if (parser_skip_name(p, "else") && !(node->c = parse_expression(p)))
        return NULL;
    return node;
}

struct node *parse_expression(struct parser *p)
{
    if (!parser_enter(p, "expression"))
        return NULL;
    struct node *node = parse_or(p);
    unsigned n_conditions = 0;
    while (node && parser_is_name(p, "if")) {
        if (++n_conditions > CHAT_TEMPLATE_MAX_DEPTH) {
            parser_fail(p, "more than %d 'if' in one expression", CHAT_TEMPLATE_MAX_DEPTH);
            node = NULL;
            break;
        }
        node = parse_cond_rest(p, node);
    }
    parser_leave(p);
    return node;
}

/* True at a token that cannot begin another item of a bare tuple. */
static bool tuple_ends(const struct parser *p)
{
    const struct token *t = p->token;
    return t->type == TOKEN_VARIABLE_END || t->type == TOKEN_BLOCK_END || t->type == TOKEN_EOF ||
           parser_is_op(p, OP_RPAREN) || parser_is_op(p, OP_ASSIGN) || token_is_name(t, "in") ||
           token_is_name(t, "recursive");
}

static struct node *tuple_items(struct parser *p, bool with_cond, bool parenthesised)
{
    struct node *first = NULL, **tail = &first;
    bool is_tuple = false;
    size_t n_items = 0;
    uint32_t line = p->token->line;
    while (!p->c->failed) {
        if (n_items && !parser_skip_op(p, OP_COMMA))
            break;
        is_tuple = n_items > 0;
        if (tuple_ends(p))
            break;
        struct node *item = with_cond ? parse_expression(p) : parse_or(p);
        if (!item)
            return NULL;
        parser_append(&tail, item);
        n_items++;
    }
    if (p->c->failed)
        return NULL;
    if (!is_tuple && n_items == 1)
        return first;
    if (!n_items && !parenthesised) {
        parser_unexpected(p, "an expression");
        return NULL;
    }
    struct node *node = parser_node(p, NODE_TUPLE);
    if (node) {
        node->line = line;
        node->list = first;
    }
    return node;
}

struct node *parse_tuple(struct parser *p, bool with_cond)
{
    return tuple_items(p, with_cond, false);
}

static struct node *parse_list(struct parser *p)
{
    struct node *node = parser_node(p, NODE_LIST);
    if (!node)
        return NULL;
    struct node **tail = &node->list;
    p->token++;
    while (!p->c->failed && !parser_is_op(p, OP_RBRACKET)) {
        if (node->list && !parser_expect_op(p, OP_COMMA, "',' or ']'"))
            return NULL;
        if (parser_is_op(p, OP_RBRACKET))
            break;
        parser_append(&tail, parse_expression(p));
    }
    return parser_expect_op(p, OP_RBRACKET, "']'") ? node : NULL;
}

static struct node *parse_pair(struct parser *p)
{
    struct node *pair = parser_node(p, NODE_PAIR);
    if (!pair)
        return NULL;
    pair->a = parse_expression(p);
    if (!pair->a || !parser_expect_op(p, OP_COLON, "':'"))
        return NULL;
    pair->b = parse_expression(p);
    return pair->b ? pair : NULL;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *node = parser_node(p, NODE_DICT);
    if (!node)
        return NULL;
    struct node **tail = &node->list;
    p->token++;
    while (!p->c->failed && !parser_is_op(p, OP_RBRACE)) {
        if (node->list && !parser_expect_op(p, OP_COMMA, "',' or '}'"))
            return NULL;
        if (parser_is_op(p, OP_RBRACE))
            break;
        parser_append(&tail, parse_pair(p));
    }
    return parser_expect_op(p, OP_RBRACE, "'}'") ? node : NULL;
}

static struct node *constant(struct parser *p, struct value v)
{
    struct node *node = parser_node(p, NODE_CONST);
    if (node)
        node->constant = v;
    p->token++;
    return node;
}

/* Adjacent string literals are joined. */
static struct node *parse_string(struct parser *p)
{
    struct node *node = parser_node(p, NODE_CONST);
    if (!node)
        return NULL;
    const struct token *first = p->token;
    size_t n_bytes = 0;
    for (; p->token->type == TOKEN_STRING; p->token++)
        n_bytes += p->token->text->n_bytes;
    if (p->token == first + 1) {
        node->constant = value_text(first->text);
        return node;
    }
    char *joined = compiler_alloc(p->c, n_bytes + 1, 1, first->line);
    size_t n = 0;
    for (const struct token *t = first; joined && t < p->token; t++) {
        memcpy(joined + n, t->text->data, t->text->n_bytes);
        n += t->text->n_bytes;
    }
    const struct text *text = joined ? compiler_text(p->c, joined, n, first->line) : NULL;
    node->constant = value_text(text);
    return text ? node : NULL;
}

static void note_special_name(struct parser *p, const struct text *name)
{
    if (!p->macro)
        return;
    p->macro->uses_varargs |= name == p->macro->varargs_name;
    p->macro->uses_kwargs |= name == p->macro->kwargs_name;
    p->macro->uses_caller |= name == p->macro->caller_name;
}

static bool parser_is_literal(const struct parser *p)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (parser_is_name(p, words[i]))
            return true;
    return false;
}

static struct node *parse_name(struct parser *p)
{
    if (parser_is_name(p, "true") || parser_is_name(p, "True"))
        return constant(p, value_bool(true));
    if (parser_is_name(p, "false") || parser_is_name(p, "False"))
        return constant(p, value_bool(false));
    if (parser_is_name(p, "none") || parser_is_name(p, "None"))
        return constant(p, value_none());
    struct node *node = parser_node(p, NODE_NAME);
    if (!node)
        return NULL;
    node->name = (p->token++)->text;
    note_special_name(p, node->name);
    return node;
}

struct node *parse_primary(struct parser *p)
{
    if (p->c->failed)
        return NULL;
    struct node *node = NULL;
    switch ((enum token_type)p->token->type) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
        return parse_string(p);
    case TOKEN_INTEGER:
        return constant(p, p->token->text
                               ? (struct value){.type = VALUE_BIG, .u.text = p->token->text}
                               : value_int(p->token->integer));
    case TOKEN_FLOAT:
        return constant(p, value_float(p->token->real));
    default:
        break;
    }
    if (parser_is_op(p, OP_LPAREN)) {
        p->token++;
        node = tuple_items(p, true, true);
        return node && parser_expect_op(p, OP_RPAREN, "')'") ? node : NULL;
    }
    if (parser_is_op(p, OP_LBRACKET))
        return parse_list(p);
    if (parser_is_op(p, OP_LBRACE))
        return parse_dict(p);
    parser_unexpected(p, "an expression");
    return NULL;
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    if (!parser_enter(p, "expression"))
        return NULL;
    struct node *node;
    if (parser_is_op(p, OP_SUB) || parser_is_op(p, OP_ADD)) {
        node = parser_node(p, parser_is_op(p, OP_SUB) ? NODE_NEG : NODE_POS);
        p->token++;
        if (node && !(node->a = parse_unary(p, false)))
            node = NULL;
    } else {
        node = parse_primary(p);
    }
    node = node ? parse_postfix(p, node) : NULL;
    if (with_filter)
        node = parse_filter_expression(p, node);
    parser_leave(p);
    return node;
}

struct node *parse_target(struct parser *p, bool with_namespace)
{
    bool parenthesised = parser_skip_op(p, OP_LPAREN);
    struct node *first = NULL, **tail = &first;
    size_t n = 0;
    bool is_tuple = false;
    do {
        if (parenthesised && parser_is_op(p, OP_RPAREN))
            break;
        const struct text *name;
        struct node *node;
        if (n && tuple_ends(p))
            break;
        if (parser_is_op(p, OP_LPAREN)) {
            if (!parser_enter(p, "assignment target"))
                return NULL;
            node = parse_target(p, false);
            parser_leave(p);
        } else {
            node = parser_node(p, NODE_NAME);
            if (parser_is_literal(p)) {
                parser_fail(p, "cannot assign to '%s'", p->token->text->data);
                return NULL;
            }
            name = parser_expect_name(p, "a name to assign to");
            if (!node || !name)
                return NULL;
            node->name = name;
        }
        if (node && with_namespace && !n && parser_is_op(p, OP_DOT)) {
            p->token++;
            struct node *attribute = parser_node(p, NODE_GETATTR);
            const struct text *key = parser_expect_name(p, "an attribute name");
            if (!attribute || !key)
                return NULL;
            attribute->a = node;
            attribute->name = key;
            return attribute;
        }
        if (!node)
            return NULL;
        parser_append(&tail, node);
        n++;
    } while (parser_skip_op(p, OP_COMMA) && (is_tuple = true));
    if (parenthesised && !parser_expect_op(p, OP_RPAREN, "')'"))
        return NULL;
    if (n == 1 && !is_tuple)
        return first;
    struct node *tuple = parser_node(p, NODE_TUPLE);
    if (tuple)
        tuple->list = first;
    return tuple;
}
