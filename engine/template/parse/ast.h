/* ast.h: the compiled form of a template. Nodes lie in the template's arena and never change after
 * compile. Private to engine/template. */
#pragma once

#include "engine/template/value/value.h"

enum node_type {
    /* expressions */
    NODE_CONST,       /* constant */
    NODE_NAME,        /* name */
    NODE_LIST,        /* list: items */
    NODE_TUPLE,       /* list: items */
    NODE_DICT,        /* list: NODE_PAIR */
    NODE_PAIR,        /* a key, b value */
    NODE_COND,        /* a test, b then, c else or NULL */
    NODE_AND,         /* list */
    NODE_OR,          /* list */
    NODE_NOT,         /* a */
    NODE_COMPARE,     /* a, list: NODE_OPERAND */
    NODE_CHAIN,       /* a, list: NODE_OPERAND; left to right */
    NODE_OPERAND,     /* op, a */
    NODE_CONCAT,      /* list */
    NODE_NEG,         /* a */
    NODE_POS,         /* a */
    NODE_GETATTR,     /* a, name */
    NODE_GETITEM,     /* a, b key */
    NODE_SLICE,       /* a, list: start, stop, step as NODE_OPERAND with a or NULL */
    NODE_CALL,        /* a, list: NODE_ARG */
    NODE_ARG,         /* op: enum arg_kind, name for a keyword, a value */
    NODE_FILTER,      /* a, name, list: NODE_ARG, builtin (NULL: unknown, an error when run) */
    NODE_TEST,        /* a, name, list: NODE_ARG, builtin */
    NODE_BLOCK_VALUE, /* the text of the enclosing filter block */
    /* statements */
    NODE_DATA,   /* constant: text */
    NODE_PRINT,  /* a */
    NODE_IF,     /* list: NODE_BRANCH */
    NODE_BRANCH, /* a test or NULL, list: body */
    NODE_FOR, /* a target, b iterable, c filter or NULL, list: body, d: else body, op: recursive */
    NODE_SET, /* a target, b value */
    NODE_SET_BLOCK,    /* a target, b filters over NODE_BLOCK_VALUE or NULL, list: body */
    NODE_MACRO,        /* macro */
    NODE_CALL_BLOCK,   /* a NODE_CALL, macro: the caller() */
    NODE_FILTER_BLOCK, /* b filters over NODE_BLOCK_VALUE, list: body */
    NODE_WITH,         /* d: list of NODE_SET, list: body */
    NODE_SCOPE,        /* list: body (generation) */
    NODE_DO,           /* a */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum operator_code {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LBRACE,
    OP_RBRACE,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_COMMA,
    OP_PIPE,
    OP_SEMICOLON,
    OP_IN,     /* in the parser only */
    OP_NOT_IN, /* in the parser only */
};

enum arg_kind { ARG_POSITIONAL, ARG_KEYWORD, ARG_STAR, ARG_DOUBLE_STAR };

struct node {
    uint8_t type; /* enum node_type */
    uint8_t op;
    uint32_t line;
    struct node *next; /* sibling in a list */
    struct node *a, *b, *c, *d;
    struct node *list;
    const struct text *name;
    struct value constant;
    const struct builtin *builtin;
    const struct macro_def *macro;
};

struct macro_def {
    const struct text *name;
    uint32_t line;
    size_t n_params;
    const struct text **params;
    struct node **defaults; /* [n_params]; NULL: no default */
    struct node *body;
    bool uses_varargs, uses_kwargs, uses_caller;
    const struct text *varargs_name, *kwargs_name, *caller_name; /* interned */
};
