/* Runs statements and macros. */
#include "engine/template/exec.h"

#include <string.h>

#include "engine/template/eval.h"
#include "engine/template/loop.h"
#include "engine/template/parse/ast.h"
#include "engine/template/scope.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

static bool assign_attribute(struct interp *in, const struct node *target, struct value v)
{
    struct value owner = eval(in, target->a);
    if (owner.type != VALUE_NAMESPACE) {
        interp_fail(in, "set: cannot assign attribute '%.40s' of '%s', only of a namespace",
                    target->name->data, value_type_name(owner));
        return false;
    }
    if (target->name->data[0] == '_') { /* transformers refuses such names */
        interp_fail(in, "set: a namespace takes no attribute '%.40s'", target->name->data);
        return false;
    }
    return dict_set(in, owner.u.dict, value_text(target->name), v);
}

static bool assign_tuple(struct interp *in, const struct node *target, struct value v)
{
    size_t n_targets = 0, n_items = 0;
    struct cursor cursor;
    struct value item;
    if (!cursor_open(in, v, &cursor))
        return false;
    for (const struct node *part = target->list; part; part = part->next)
        n_targets++;
    const struct node *part = target->list;
    while (cursor_next(in, &cursor, &item)) {
        n_items++;
        if (part && !exec_assign(in, part, item))
            return false;
        if (!part) {
            interp_fail(in, "too many values to unpack (expected %zu)", n_targets);
            return false;
        }
        part = part->next;
    }
    if (part)
        interp_fail(in, "not enough values to unpack (expected %zu, got %zu)", n_targets, n_items);
    return interp_ok(in);
}

bool exec_assign(struct interp *in, const struct node *target, struct value v)
{
    if (in->failed)
        return false;
    if (target->type == NODE_TUPLE)
        return assign_tuple(in, target, v);
    if (target->type == NODE_GETATTR)
        return assign_attribute(in, target, v);
    scope_set(in, target->name, v);
    return interp_ok(in);
}

static struct value macro_new(struct interp *in, const struct macro_def *def)
{
    struct macro *macro = interp_alloc(in, 1, sizeof(*macro));
    if (!macro)
        return value_of_type(VALUE_UNSET);
    *macro = (struct macro){def, in->scope};
    for (struct scope *scope = in->scope; scope && !scope->captured; scope = scope->parent)
        scope->captured = true;
    return (struct value){.type = VALUE_MACRO, .u.macro = macro};
}

/* The keyword argument for a parameter, or NULL. */
static const struct keyword *find_keyword(const struct args *args, const struct text *name)
{
    for (size_t i = 0; i < args->n_keywords; i++)
        if (text_equal(args->keywords[i].name, name))
            return &args->keywords[i];
    return NULL;
}

static bool is_param(const struct macro_def *def, const struct text *name)
{
    for (size_t i = 0; i < def->n_params; i++)
        if (text_equal(def->params[i], name))
            return true;
    return false;
}

static bool bind_params(struct interp *in, const struct macro_def *def, const struct args *args)
{
    for (size_t i = 0; i < def->n_params && interp_ok(in); i++) {
        const struct text *name = def->params[i];
        const struct keyword *keyword = find_keyword(args, name);
        struct value v;
        if (keyword && i < args->n_positional)
            interp_fail(in, "macro '%.40s' got multiple values for argument '%.40s'",
                        def->name->data, name->data);
        if (i < args->n_positional)
            v = args->positional[i];
        else if (keyword)
            v = keyword->value;
        else
            v = def->defaults[i] ? eval(in, def->defaults[i]) : value_undefined(name, 0);
        scope_set(in, name, v);
    }
    return interp_ok(in);
}

/* Binds varargs, kwargs and caller, if the body uses them. */
static bool bind_rest(struct interp *in, const struct macro_def *def, const struct args *args)
{
    if (args->n_positional > def->n_params && !def->uses_varargs) {
        interp_fail(in, "macro '%.40s' takes not more than %zu arguments, got %zu", def->name->data,
                    def->n_params, args->n_positional);
        return false;
    }
    struct list *rest = list_new(in, 0);
    struct dict *keywords = dict_new(in);
    for (size_t i = def->n_params; i < args->n_positional; i++)
        list_add(in, rest, args->positional[i]);
    struct value caller = value_undefined(def->caller_name, 0);
    for (size_t i = 0; i < args->n_keywords && interp_ok(in); i++) {
        const struct keyword *keyword = &args->keywords[i];
        if (is_param(def, keyword->name))
            continue;
        if (def->uses_caller && text_equal(keyword->name, def->caller_name))
            caller = keyword->value;
        else if (def->uses_kwargs)
            dict_set(in, keywords, value_text(keyword->name), keyword->value);
        else
            interp_fail(in, "macro '%.40s' takes no keyword argument '%.*s'", def->name->data,
                        (int)(keyword->name->n_bytes > 40 ? 40 : keyword->name->n_bytes),
                        keyword->name->data);
    }
    if (def->uses_varargs && interp_ok(in))
        scope_set(in, def->varargs_name, value_list(VALUE_TUPLE, rest));
    if (def->uses_kwargs && interp_ok(in))
        scope_set(in, def->kwargs_name, value_dict(keywords));
    if (def->uses_caller && !is_param(def, def->caller_name))
        scope_set(in, def->caller_name, caller);
    return interp_ok(in);
}

struct value exec_macro(struct interp *in, struct macro *macro, const struct args *args)
{
    struct scope *saved = in->scope;
    uint32_t line = in->line;
    if (in->macro_depth >= CHAT_TEMPLATE_MAX_DEPTH)
        return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                                  "macro '%.40s' is called more than %d levels deep",
                                  macro->def->name->data, CHAT_TEMPLATE_MAX_DEPTH);
    in->macro_depth++;
    in->scope = macro->scope;
    size_t mark = interp_capture_begin(in);
    if (scope_push(in) && bind_rest(in, macro->def, args) && bind_params(in, macro->def, args))
        exec_list(in, macro->def->body);
    struct value text = interp_capture_end(in, mark);
    in->scope = saved;
    in->macro_depth--;
    if (!in->failed)
        in->line = line;
    return text;
}

static enum flow exec_if(struct interp *in, const struct node *node)
{
    for (const struct node *branch = node->list; branch && interp_ok(in); branch = branch->next)
        if (!branch->a || value_truth(eval(in, branch->a)))
            return interp_ok(in) ? exec_list(in, branch->list) : FLOW_BREAK;
    return FLOW_NEXT;
}

/* Captures the text of a body and applies the block's filters. */
static enum flow capture_body(struct interp *in, const struct node *node, struct value *out)
{
    size_t mark = interp_capture_begin(in);
    struct scope *saved = in->scope;
    enum flow flow = scope_push(in) ? exec_list(in, node->list) : FLOW_BREAK;
    in->scope = saved;
    struct value text = interp_capture_end(in, mark);
    if (node->b && interp_ok(in)) {
        struct value outer = in->block_value;
        in->block_value = text;
        text = eval(in, node->b);
        in->block_value = outer;
    }
    *out = text;
    return flow;
}

static enum flow exec_set_block(struct interp *in, const struct node *node)
{
    struct value text;
    enum flow flow = capture_body(in, node, &text);
    if (flow == FLOW_NEXT)
        exec_assign(in, node->a, text);
    return flow;
}

static enum flow exec_filter_block(struct interp *in, const struct node *node)
{
    struct value text;
    enum flow flow = capture_body(in, node, &text);
    if (interp_ok(in))
        value_write(in, text);
    return flow;
}

static enum flow exec_call_block(struct interp *in, const struct node *node)
{
    struct arg_space space;
    const struct node *call = node->a;
    struct value caller = macro_new(in, node->macro), callee = eval(in, call->a);
    if (!eval_args(in, call->list, &space))
        return FLOW_BREAK;
    size_t n = space.args.n_keywords;
    struct keyword *keywords = interp_alloc(in, n + 1, sizeof(*keywords));
    if (!keywords)
        return FLOW_BREAK;
    if (n)
        memcpy(keywords, space.args.keywords, n * sizeof(*keywords));
    keywords[n] = (struct keyword){node->name, caller};
    space.args.keywords = keywords;
    space.args.n_keywords = n + 1;
    in->line = node->line;
    value_write(in, eval_call(in, callee, &space.args));
    return FLOW_NEXT;
}

static enum flow exec_with(struct interp *in, const struct node *node)
{
    struct scope *outer = in->scope;
    struct list *values = list_new(in, 0);
    for (const struct node *set = node->d; set; set = set->next)
        list_add(in, values, eval(in, set->b)); /* the assigned names do not see one another */
    size_t i = 0;
    enum flow flow = FLOW_BREAK;
    if (interp_ok(in) && scope_push(in)) {
        for (const struct node *set = node->d; set; set = set->next)
            exec_assign(in, set->a, values->items[i++]);
        flow = exec_list(in, node->list);
    }
    in->scope = outer;
    return flow;
}

static enum flow exec_scope(struct interp *in, const struct node *node)
{
    struct scope *outer = in->scope;
    enum flow flow = scope_push(in) ? exec_list(in, node->list) : FLOW_BREAK;
    in->scope = outer;
    return flow;
}

static enum flow exec_node(struct interp *in, const struct node *node)
{
    switch ((enum node_type)node->type) {
    case NODE_DATA:
        interp_write(in, node->constant.u.text->data, node->constant.u.text->n_bytes);
        return FLOW_NEXT;
    case NODE_PRINT:
        value_write(in, eval(in, node->a));
        return FLOW_NEXT;
    case NODE_IF:
        return exec_if(in, node);
    case NODE_FOR:
        return loop_run(in, node);
    case NODE_SET:
        exec_assign(in, node->a, eval(in, node->b));
        return FLOW_NEXT;
    case NODE_SET_BLOCK:
        return exec_set_block(in, node);
    case NODE_MACRO:
        scope_set(in, node->macro->name, macro_new(in, node->macro));
        return FLOW_NEXT;
    case NODE_CALL_BLOCK:
        return exec_call_block(in, node);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(in, node);
    case NODE_WITH:
        return exec_with(in, node);
    case NODE_SCOPE:
        return exec_scope(in, node);
    case NODE_DO:
        eval(in, node->a);
        return FLOW_NEXT;
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        interp_fail_status(in, STATUS_INTERNAL, "node %d is not a statement", node->type);
        return FLOW_BREAK;
    }
}

enum flow exec_list(struct interp *in, const struct node *first)
{
    enum flow flow = FLOW_NEXT;
    if (in->eval_depth >= MAX_EVAL_DEPTH)
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                           "evaluation is nested deeper than %d levels", MAX_EVAL_DEPTH);
    in->eval_depth++;
    for (const struct node *node = first; node && flow == FLOW_NEXT; node = node->next) {
        if (!interp_step(in, 1)) {
            flow = FLOW_BREAK;
            break;
        }
        in->line = node->line;
        flow = exec_node(in, node);
        if (in->failed)
            flow = FLOW_BREAK;
    }
    in->eval_depth--;
    return flow;
}
