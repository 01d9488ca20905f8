/* ast.h: the compiled form of a template. Nodes lie in the template's arena and never change after
 * compile. Private to engine/template. */
#pragma once

#include "engine/template/value/value.h"

/* Kinds of nodes. Each comment says what the fields of struct node hold; other fields are
 * unused. */
enum node_type {
    /* expressions */
    NODE_CONST,   /* constant: the value */
    NODE_NAME,    /* name: the variable */
    NODE_LIST,    /* list: items */
    NODE_TUPLE,   /* list: items */
    NODE_DICT,    /* list: NODE_PAIR items */
    NODE_PAIR,    /* a: key, b: value */
    NODE_COND,    /* a: test, b: then, c: else or NULL */
    NODE_AND,     /* list: operands */
    NODE_OR,      /* list: operands */
    NODE_NOT,     /* a: operand */
    NODE_COMPARE, /* a: first operand, list: NODE_OPERAND items */
    NODE_CHAIN,   /* a: first operand, list: NODE_OPERAND items, applied left to right */
    NODE_OPERAND, /* op: operator, a: right operand */
    NODE_CONCAT,  /* list: operands */
    NODE_NEG,     /* a: operand */
    NODE_POS,     /* a: operand */
    NODE_GETATTR, /* a: object, name: attribute */
    NODE_GETITEM, /* a: object, b: key */
    NODE_SLICE,   /* a: object, list: start, stop, step as NODE_OPERAND with a or NULL */
    NODE_CALL,    /* a: callee, list: NODE_ARG items */
    NODE_ARG,     /* op: enum arg_kind, name: keyword, a: value */
    /* a: input, name, list: NODE_ARG items, builtin (NULL: unknown, an error when run) */
    NODE_FILTER,
    NODE_TEST,        /* a: subject, name, list: NODE_ARG items, builtin */
    NODE_BLOCK_VALUE, /* the text of the enclosing filter block */
    /* statements */
    NODE_DATA,   /* constant: the text */
    NODE_PRINT,  /* a: expression */
    NODE_IF,     /* list: NODE_BRANCH items */
    NODE_BRANCH, /* a: test or NULL, list: body */
    /* a: target, b: iterable, c: filter or NULL, list: body, d: else body, op: recursive */
    NODE_FOR,
    NODE_SET,          /* a: target, b: value */
    NODE_SET_BLOCK,    /* a: target, b: filters over NODE_BLOCK_VALUE or NULL, list: body */
    NODE_MACRO,        /* macro */
    NODE_CALL_BLOCK,   /* a: NODE_CALL, macro: caller() */
    NODE_FILTER_BLOCK, /* b: filters over NODE_BLOCK_VALUE, list: body */
    NODE_WITH,         /* d: list of NODE_SET items, list: body */
    NODE_SCOPE,        /* list: body of a generation block */
    NODE_DO,           /* a: expression */
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
