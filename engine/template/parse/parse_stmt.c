#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"
#include "engine/template/parse/lexer.h"
#include "engine/template/parse/parser.h"
#include "engine/template/value/text.h"

/* Words that end a list of statements; NULL-terminated. */
typedef const char *const *end_words;

static struct node *parse_body(struct parser *p, end_words ends);

bool parser_fail(struct parser *p, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return compiler_fail(p->c, STATUS_INVALID_ARGUMENT, p->token->line, "%s", text);
}

bool parser_unexpected(struct parser *p, const char *wanted)
{
    char found[64];
    lexer_describe(p->token, found, sizeof(found));
    return parser_fail(p, "expected %s, found %s", wanted, found);
}

static bool expect_block_end(struct parser *p)
{
    if (p->c->failed)
        return false;
    if (p->token->type != TOKEN_BLOCK_END)
        return parser_unexpected(p, "'%}'");
    p->token++;
    return true;
}

/* Parses a body up to the tag with the end word. That tag is consumed except for its "%}". */
static bool parse_block_body(struct parser *p, const char *end, struct node **out)
{
    const char *const ends[] = {end, NULL};
    if (!expect_block_end(p))
        return false;
    *out = parse_body(p, ends);
    if (!p->c->failed)
        p->token++;
    return !p->c->failed;
}

static struct node *parse_branch(struct parser *p, bool with_test)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *branch = parser_node(p, NODE_BRANCH);
    p->token++;
    if (!branch || (with_test && !(branch->a = parse_tuple(p, false))))
        return NULL;
    if (!expect_block_end(p))
        return NULL;
    branch->list = parse_body(p, ends);
    return p->c->failed ? NULL : branch;
}

static struct node *parse_if(struct parser *p)
{
    struct node *node = parser_node(p, NODE_IF);
    if (!node)
        return NULL;
    struct node **tail = &node->list;
    p->soft_depth++;
    parser_append(&tail, parse_branch(p, true));
    while (!p->c->failed && parser_is_name(p, "elif"))
        parser_append(&tail, parse_branch(p, true));
    if (!p->c->failed && parser_is_name(p, "else"))
        parser_append(&tail, parse_branch(p, false));
    p->soft_depth--;
    if (p->c->failed)
        return NULL;
    if (!parser_skip_name(p, "endif")) {
        parser_unexpected(p, "'endif'");
        return NULL;
    }
    return node;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *node = parser_node(p, NODE_FOR);
    p->token++;
    if (!node || !(node->a = parse_target(p, false)))
        return NULL;
    if (!parser_skip_name(p, "in")) {
        parser_unexpected(p, "'in'");
        return NULL;
    }
    node->name = compiler_intern(p->c, "loop", 4, node->line);
    if (!(node->b = parse_tuple(p, false)))
        return NULL;
    if (parser_skip_name(p, "if") && !(node->c = parse_expression(p)))
        return NULL;
    node->op = parser_skip_name(p, "recursive");
    if (!expect_block_end(p))
        return NULL;
    p->loop_depth++;
    node->list = parse_body(p, ends);
    p->loop_depth--;
    if (p->c->failed)
        return NULL;
    if (parser_is_name(p, "else")) {
        p->token++;
        return parse_block_body(p, "endfor", &node->d) ? node : NULL;
    }
    p->token++;
    return node;
}

static struct node *parse_set(struct parser *p)
{
    struct node *node = parser_node(p, NODE_SET);
    p->token++;
    if (!node || !(node->a = parse_target(p, true)))
        return NULL;
    if (parser_skip_op(p, OP_ASSIGN)) {
        node->b = parse_tuple(p, true);
        return node->b ? node : NULL;
    }
    node->type = NODE_SET_BLOCK;
    if (parser_is_op(p, OP_PIPE)) {
        struct node *input = parser_node(p, NODE_BLOCK_VALUE);
        node->b = input ? parse_filters(p, input, false) : NULL;
        if (!node->b)
            return NULL;
    }
    return parse_block_body(p, "endset", &node->list) ? node : NULL;
}

static struct macro_def *macro_new(struct parser *p)
{
    uint32_t line = p->token->line;
    struct macro_def *def = compiler_alloc(p->c, 1, sizeof(*def), line);
    if (!def)
        return NULL;
    def->line = line;
    def->varargs_name = compiler_intern(p->c, "varargs", 7, line);
    def->kwargs_name = compiler_intern(p->c, "kwargs", 6, line);
    def->caller_name = compiler_intern(p->c, "caller", 6, line);
    return p->c->failed ? NULL : def;
}

static bool add_param(struct parser *p, struct macro_def *def, const struct text *name,
                      struct node *fallback)
{
    size_t n = def->n_params;
    for (size_t i = 0; i < n; i++)
        if (def->params[i] == name)
            return parser_fail(p, "parameter '%.40s' occurs twice", name->data);
    if (!fallback && n && def->defaults[n - 1])
        return parser_fail(p, "parameter '%.40s' without a default follows one with a default",
                           name->data);
    if (n % 8 == 0) {
        const struct text **params =
            compiler_alloc(p->c, n + 8, sizeof(const struct text *), def->line);
        struct node **defaults = compiler_alloc(p->c, n + 8, sizeof(struct node *), def->line);
        if (!params || !defaults)
            return false;
        for (size_t i = 0; i < n; i++) {
            params[i] = def->params[i];
            defaults[i] = def->defaults[i];
        }
        def->params = params;
        def->defaults = defaults;
    }
    def->params[n] = name;
    def->defaults[n] = fallback;
    def->n_params = n + 1;
    return true;
}

enum { MAX_PARAMS = 255 };

static bool parse_signature(struct parser *p, struct macro_def *def)
{
    if (!parser_expect_op(p, OP_LPAREN, "'('"))
        return false;
    while (!p->c->failed && !parser_is_op(p, OP_RPAREN)) {
        if (def->n_params && !parser_expect_op(p, OP_COMMA, "',' or ')'"))
            return false;
        if (def->n_params == MAX_PARAMS)
            return parser_fail(p, "more than %d parameters", MAX_PARAMS);
        const struct text *name = parser_expect_name(p, "a parameter name");
        struct node *fallback = NULL;
        if (name && parser_skip_op(p, OP_ASSIGN) && !(fallback = parse_expression(p)))
            return false;
        if (!name || !add_param(p, def, name, fallback))
            return false;
    }
    return parser_expect_op(p, OP_RPAREN, "')'");
}

static bool parse_macro_body(struct parser *p, struct macro_def *def, const char *end)
{
    struct macro_def *outer = p->macro;
    unsigned loop_depth = p->loop_depth;
    p->macro = def;
    p->loop_depth = 0;
    bool ok = parse_block_body(p, end, &def->body);
    p->macro = outer;
    p->loop_depth = loop_depth;
    return ok;
}

static struct node *parse_macro(struct parser *p)
{
    struct node *node = parser_node(p, NODE_MACRO);
    struct macro_def *def = macro_new(p);
    p->token++;
    const struct text *name = parser_expect_name(p, "a macro name");
    if (!node || !def || !name)
        return NULL;
    def->name = name;
    node->macro = def;
    if (!parse_signature(p, def) || !parse_macro_body(p, def, "endmacro"))
        return NULL;
    return node;
}

static struct node *parse_call_block(struct parser *p)
{
    struct node *node = parser_node(p, NODE_CALL_BLOCK);
    struct macro_def *def = macro_new(p);
    p->token++;
    if (!node || !def)
        return NULL;
    def->name = def->caller_name;
    node->macro = def;
    node->name = def->caller_name;
    if (parser_is_op(p, OP_LPAREN) && !parse_signature(p, def))
        return NULL;
    node->a = parse_expression(p);
    if (!node->a)
        return NULL;
    if (node->a->type != NODE_CALL) {
        parser_fail(p, "'call' needs a call");
        return NULL;
    }
    return parse_macro_body(p, def, "endcall") ? node : NULL;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *node = parser_node(p, NODE_FILTER_BLOCK);
    struct node *input = parser_node(p, NODE_BLOCK_VALUE);
    p->token++;
    if (!node || !input || !(node->b = parse_filters(p, input, true)))
        return NULL;
    return parse_block_body(p, "endfilter", &node->list) ? node : NULL;
}

static struct node *parse_with(struct parser *p)
{
    struct node *node = parser_node(p, NODE_WITH);
    if (!node)
        return NULL;
    struct node **tail = &node->d;
    p->token++;
    while (!p->c->failed && p->token->type != TOKEN_BLOCK_END) {
        if (node->d && !parser_expect_op(p, OP_COMMA, "',' or '%}'"))
            return NULL;
        struct node *set = parser_node(p, NODE_SET);
        const struct text *name = parser_expect_name(p, "a name");
        struct node *target = parser_node(p, NODE_NAME);
        if (!set || !name || !target || !parser_expect_op(p, OP_ASSIGN, "'='"))
            return NULL;
        target->name = name;
        set->a = target;
        set->b = parse_expression(p);
        parser_append(&tail, set);
    }
    return parse_block_body(p, "endwith", &node->list) ? node : NULL;
}

static struct node *parse_generation(struct parser *p)
{
    struct node *node = parser_node(p, NODE_SCOPE);
    p->token++;
    return node && parse_block_body(p, "endgeneration", &node->list) ? node : NULL;
}

static struct node *parse_do(struct parser *p)
{
    struct node *node = parser_node(p, NODE_DO);
    p->token++;
    if (node && !(node->a = parse_tuple(p, true)))
        return NULL;
    return node;
}

static struct node *parse_jump(struct parser *p, enum node_type type)
{
    struct node *node = parser_node(p, type);
    if (!p->loop_depth) {
        parser_fail(p, "'%s' is outside of a loop", p->token->text->data);
        return NULL;
    }
    p->token++;
    return node;
}

static struct node *parse_break(struct parser *p)
{
    return parse_jump(p, NODE_BREAK);
}

static struct node *parse_continue(struct parser *p)
{
    return parse_jump(p, NODE_CONTINUE);
}

static const struct {
    const char *word;
    struct node *(*parse)(struct parser *); /* NULL: not supported */
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"do", parse_do},
    {"break", parse_break},
    {"continue", parse_continue},
    {"include", NULL},
    {"import", NULL},
    {"from", NULL},
    {"extends", NULL},
    {"block", NULL},
    {"autoescape", NULL},
    {"trans", NULL},
    {"debug", NULL},
};

static struct node *parse_statement(struct parser *p)
{
    if (p->token->type != TOKEN_NAME) {
        parser_unexpected(p, "a tag name");
        return NULL;
    }
    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
        if (!parser_is_name(p, statements[i].word))
            continue;
        if (statements[i].parse)
            return statements[i].parse(p);
        compiler_fail(p->c, STATUS_UNIMPLEMENTED, p->token->line, "'%s' is not supported",
                      statements[i].word);
        return NULL;
    }
    parser_fail(p, "unknown tag '%.40s'", p->token->text->data);
    return NULL;
}

static bool at_end_word(const struct parser *p, end_words ends)
{
    for (; ends && *ends; ends++)
        if (parser_is_name(p, *ends))
            return true;
    return false;
}

static struct node *parse_print(struct parser *p)
{
    struct node *node = parser_node(p, NODE_PRINT);
    p->token++;
    if (!node || !(node->a = parse_tuple(p, true)))
        return NULL;
    if (p->token->type != TOKEN_VARIABLE_END) {
        parser_unexpected(p, "'}}'");
        return NULL;
    }
    p->token++;
    return node;
}

static struct node *parse_data(struct parser *p)
{
    struct node *node = parser_node(p, NODE_DATA);
    if (node)
        node->constant = value_text(p->token->text);
    p->token++;
    return node;
}

/* Parses statements up to one of `ends`, which is then the current token. NULL: up to the end of
 * the template. */
static struct node *parse_body(struct parser *p, end_words ends)
{
    struct node *first = NULL, **tail = &first;
    uint32_t opened = ends ? p->token[-1].line : 1; /* line where the opening tag ends */
    if (!parser_enter(p, "block"))
        return NULL;
    while (!p->c->failed && p->token->type != TOKEN_EOF) {
        if (p->token->type == TOKEN_DATA) {
            parser_append(&tail, parse_data(p));
        } else if (p->token->type == TOKEN_VARIABLE_BEGIN) {
            parser_append(&tail, parse_print(p));
        } else {
            p->token++;
            if (at_end_word(p, ends)) {
                parser_leave(p);
                return first;
            }
            parser_append(&tail, parse_statement(p));
            expect_block_end(p);
        }
    }
    parser_leave(p);
    if (!p->c->failed && ends) {
        const char *last = *ends;
        for (end_words word = ends; *word; word++)
            last = *word;
        parser_fail(p, "block opened on line %u has no '%s'", opened, last);
    }
    return first;
}

bool parser_run(struct compiler *c, const struct token *tokens, struct node **out_body)
{
    struct parser p = {.c = c, .token = tokens};
    struct node *body = parse_body(&p, NULL);
    if (!c->failed)
        *out_body = body;
    return !c->failed;
}
