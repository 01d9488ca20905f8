/* Evaluates expressions. */
#include "engine/template/eval.h"

#include <string.h>

#include "engine/template/exec.h"
#include "engine/template/loop.h"
#include "engine/template/operators.h"
#include "engine/template/parse/ast.h"
#include "engine/template/scope.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

static struct value eval_list(struct interp *in, const struct node *node, enum value_type type)
{
    struct list *list = list_new(in, 0);
    for (const struct node *item = node->list; item; item = item->next) {
        struct value v = eval(in, item);
        if (!list_add(in, list, v))
            return value_of_type(VALUE_UNSET);
    }
    return list ? value_list(type, list) : value_of_type(VALUE_UNSET);
}

static struct value eval_dict(struct interp *in, const struct node *node)
{
    struct dict *dict = dict_new(in);
    for (const struct node *pair = node->list; pair; pair = pair->next) {
        struct value key = eval(in, pair->a), item = eval(in, pair->b);
        if (in->failed || !dict_set(in, dict, key, item))
            return value_of_type(VALUE_UNSET);
    }
    return dict ? value_dict(dict) : value_of_type(VALUE_UNSET);
}

static struct value eval_cond(struct interp *in, const struct node *node)
{
    if (value_truth(eval(in, node->a)))
        return eval(in, node->b);
    return node->c && interp_ok(in) ? eval(in, node->c) : value_undefined(NULL, 0);
}

/* `and` and `or` return the operand that decided the result. */
static struct value eval_logic(struct interp *in, const struct node *node, bool stop_at)
{
    struct value v = value_none();
    for (const struct node *item = node->list; item && interp_ok(in); item = item->next) {
        v = eval(in, item);
        if (value_truth(v) == stop_at)
            break;
    }
    return v;
}

static struct value eval_compare(struct interp *in, const struct node *node)
{
    struct value left = eval(in, node->a);
    for (const struct node *part = node->list; part && interp_ok(in); part = part->next) {
        struct value right = eval(in, part->a);
        in->line = part->line;
        if (!interp_ok(in) || !operator_compare(in, (enum operator_code)part->op, left, right))
            return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static struct value eval_chain(struct interp *in, const struct node *node)
{
    struct value left = eval(in, node->a);
    for (const struct node *part = node->list; part && interp_ok(in); part = part->next) {
        struct value right = eval(in, part->a);
        in->line = part->line;
        left = operator_binary(in, (enum operator_code)part->op, left, right);
    }
    return left;
}

static struct value eval_concat(struct interp *in, const struct node *node)
{
    struct value left = value_of_type(VALUE_UNSET);
    for (const struct node *item = node->list; item && interp_ok(in); item = item->next) {
        struct value v = eval(in, item);
        const struct text *text = value_to_text(in, v);
        left = left.type == VALUE_STRING ? text_concat(in, left.u.text, text) : value_text(text);
    }
    return left;
}

static struct value eval_slice(struct interp *in, const struct node *node)
{
    struct value v = eval(in, node->a), parts[3];
    const struct node *part = node->list;
    for (size_t i = 0; i < 3; i++, part = part->next)
        parts[i] = part->a ? eval(in, part->a) : value_none();
    in->line = node->line;
    return in->failed ? value_of_type(VALUE_UNSET)
                      : operator_slice(in, v, parts[0], parts[1], parts[2]);
}

/* Room for argument n: first in the struct, then in arrays of the arena. These double in size at
 * powers of two (ARG_SPACE is a power of two). Returns NULL after a failure. */
static void *arg_room(struct interp *in, void *items, size_t n, size_t size)
{
    if (n < ARG_SPACE || (n & (n - 1)) != 0)
        return items;
    void *grown = interp_alloc(in, n * 2, size);
    if (grown && interp_step(in, n))
        memcpy(grown, items, n * size);
    return grown;
}

static bool add_positional(struct interp *in, struct arg_space *space, struct value v)
{
    size_t n = space->args.n_positional;
    struct value *items = arg_room(in, space->positional_items, n, sizeof(*items));
    if (!items)
        return false;
    items[n] = v;
    space->args.positional = space->positional_items = items;
    space->args.n_positional = n + 1;
    return interp_ok(in);
}

static bool add_keyword(struct interp *in, struct arg_space *space, const struct text *name,
                        struct value v)
{
    size_t n = space->args.n_keywords;
    for (size_t i = 0; i < n && interp_step(in, 1); i++)
        if (text_equal(space->args.keywords[i].name, name)) {
            interp_fail(in, "keyword argument '%.*s' is given twice",
                        (int)(name->n_bytes > 40 ? 40 : name->n_bytes), name->data);
            return false;
        }
    struct keyword *items = arg_room(in, space->keyword_items, n, sizeof(*items));
    if (!items)
        return false;
    items[n] = (struct keyword){name, v};
    space->args.keywords = space->keyword_items = items;
    space->args.n_keywords = n + 1;
    return interp_ok(in);
}

static bool add_star(struct interp *in, struct arg_space *space, struct value v)
{
    struct cursor cursor;
    struct value item;
    if (!cursor_open(in, v, &cursor))
        return false;
    while (cursor_next(in, &cursor, &item))
        if (!add_positional(in, space, item))
            return false;
    return interp_ok(in);
}

static bool add_double_star(struct interp *in, struct arg_space *space, struct value v)
{
    if (v.type != VALUE_DICT) {
        interp_fail(in, "** needs a dict, not '%s'", value_type_name(v));
        return false;
    }
    for (size_t i = 0; i < v.u.dict->n; i++) {
        struct value key = v.u.dict->entries[i].key;
        if (key.type != VALUE_STRING) {
            interp_fail(in, "keywords must be strings");
            return false;
        }
        if (!add_keyword(in, space, key.u.text, v.u.dict->entries[i].value))
            return false;
    }
    return true;
}

bool eval_args(struct interp *in, const struct node *list, struct arg_space *out_space)
{
    out_space->positional_items = out_space->positional;
    out_space->keyword_items = out_space->keywords;
    out_space->args =
        (struct args){.positional = out_space->positional, .keywords = out_space->keywords};
    bool ok = interp_ok(in);
    for (const struct node *arg = list; arg && ok; arg = arg->next) {
        struct value v = eval(in, arg->a);
        in->line = arg->line;
        if (in->failed)
            return false;
        switch ((enum arg_kind)arg->op) {
        case ARG_POSITIONAL:
            ok = add_positional(in, out_space, v);
            break;
        case ARG_KEYWORD:
            ok = add_keyword(in, out_space, arg->name, v);
            break;
        case ARG_STAR:
            ok = add_star(in, out_space, v);
            break;
        case ARG_DOUBLE_STAR:
            ok = add_double_star(in, out_space, v);
            break;
        }
    }
    return ok;
}

struct value eval_call(struct interp *in, struct value callee, const struct args *args)
{
    switch ((enum value_type)callee.type) {
    case VALUE_BUILTIN:
        return builtin_call(in, callee.u.builtin, "function", value_none(), args);
    case VALUE_METHOD:
        return builtin_call(in, callee.u.method->builtin, "method", callee.u.method->self, args);
    case VALUE_MACRO:
        return exec_macro(in, callee.u.macro, args);
    case VALUE_LOOP:
        return loop_call(in, callee.u.loop, args);
    case VALUE_JOINER:
        if (!callee.u.joiner->used) {
            callee.u.joiner->used = true;
            return text_new(in, "", 0);
        }
        return callee.u.joiner->separator;
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
        return in->failed ? callee : interp_fail_undefined(in, callee);
    default:
        return interp_fail(in, "'%s' object is not callable", value_type_name(callee));
    }
}

/* Calls `value.method(...)` without creating a method value. */
static struct value eval_call_node(struct interp *in, const struct node *node)
{
    struct arg_space space;
    if (node->a->type == NODE_GETATTR) {
        const struct text *name = node->a->name;
        struct value self = eval(in, node->a->a);
        const struct builtin *method = in->failed ? NULL : builtin_method(self, name);
        in->line = node->a->line;
        if (!in->failed && builtin_is_mutating(self, name))
            return interp_fail(in, "method '%.40s' of '%s' would change it and is not allowed",
                               name->data, value_type_name(self));
        struct value callee =
            method || in->failed ? value_none() : operator_getattr(in, self, name);
        if (!eval_args(in, node->list, &space))
            return value_of_type(VALUE_UNSET);
        in->line = node->line;
        return method ? builtin_call(in, method, "method", self, &space.args)
                      : eval_call(in, callee, &space.args);
    }
    struct value callee = eval(in, node->a);
    if (!eval_args(in, node->list, &space))
        return value_of_type(VALUE_UNSET);
    in->line = node->line;
    return eval_call(in, callee, &space.args);
}

static struct value eval_builtin_node(struct interp *in, const struct node *node, const char *kind)
{
    struct arg_space space;
    struct value self = eval(in, node->a);
    if (!eval_args(in, node->list, &space))
        return value_of_type(VALUE_UNSET);
    in->line = node->line;
    if (!node->builtin)
        return interp_fail_status(in, STATUS_UNIMPLEMENTED, "%s '%.40s' is not supported", kind,
                                  node->name->data);
    return builtin_call(in, node->builtin, kind, self, &space.args);
}

static struct value eval_node(struct interp *in, const struct node *node)
{
    struct value a;
    switch ((enum node_type)node->type) {
    case NODE_CONST:
        return node->constant;
    case NODE_NAME:
        return scope_lookup(in, node->name);
    case NODE_LIST:
        return eval_list(in, node, VALUE_LIST);
    case NODE_TUPLE:
        return eval_list(in, node, VALUE_TUPLE);
    case NODE_DICT:
        return eval_dict(in, node);
    case NODE_COND:
        return eval_cond(in, node);
    case NODE_AND:
        return eval_logic(in, node, false);
    case NODE_OR:
        return eval_logic(in, node, true);
    case NODE_NOT:
        return value_bool(!value_truth(eval(in, node->a)));
    case NODE_COMPARE:
        return eval_compare(in, node);
    case NODE_CHAIN:
        return eval_chain(in, node);
    case NODE_CONCAT:
        return eval_concat(in, node);
    case NODE_NEG:
        a = eval(in, node->a);
        in->line = node->line;
        return operator_negate(in, a);
    case NODE_POS:
        a = eval(in, node->a);
        in->line = node->line;
        return value_is_number(a) || a.type == VALUE_BIG || in->failed
                   ? a
                   : interp_fail(in, "bad operand type for unary +: '%s'", value_type_name(a));
    case NODE_GETATTR:
        a = eval(in, node->a);
        in->line = node->line;
        return operator_getattr(in, a, node->name);
    case NODE_GETITEM: {
        a = eval(in, node->a);
        struct value key = eval(in, node->b);
        in->line = node->line;
        return in->failed ? a : operator_getitem(in, a, key);
    }
    case NODE_SLICE:
        return eval_slice(in, node);
    case NODE_CALL:
        return eval_call_node(in, node);
    case NODE_FILTER:
        return eval_builtin_node(in, node, "filter");
    case NODE_TEST:
        return eval_builtin_node(in, node, "test");
    case NODE_BLOCK_VALUE:
        return in->block_value;
    default:
        return interp_fail_status(in, STATUS_INTERNAL, "node %d is not an expression", node->type);
    }
}

struct value eval(struct interp *in, const struct node *node)
{
    if (!interp_step(in, 1))
        return value_of_type(VALUE_UNSET);
    in->line = node->line;
    if (in->eval_depth >= MAX_EVAL_DEPTH)
        return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                                  "evaluation is nested deeper than %d levels", MAX_EVAL_DEPTH);
    in->eval_depth++;
    struct value v = eval_node(in, node);
    in->eval_depth--;
    return in->failed ? value_of_type(VALUE_UNSET) : v;
}
