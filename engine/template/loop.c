/* `for` and its loop variable. Items are fetched one at a time, as late as in Jinja. A body may
 * change the namespace that the loop's filter reads. */
#include "engine/template/loop.h"

#include <stdio.h>
#include <string.h>

#include "engine/template/eval.h"
#include "engine/template/exec.h"
#include "engine/template/parse/ast.h"
#include "engine/template/scope.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

struct loop {
    struct cursor cursor;
    const struct node *node; /* the NODE_FOR node */
    struct scope *outer;
    struct list *ahead; /* items that were fetched early */
    size_t i_ahead;
    size_t index0;
    size_t length; /* SIZE_MAX until it is known */
    struct value previous, current;
    unsigned depth0;      /* nesting level of a recursive loop */
    struct value changed; /* last arguments of loop.changed() */
};

static bool passes_filter(struct interp *in, struct loop *loop, struct value item)
{
    if (!loop->node->c)
        return true;
    struct scope *saved = in->scope;
    in->scope = loop->outer;
    bool passes = scope_push(in) && exec_assign(in, loop->node->a, item) &&
                  value_truth(eval(in, loop->node->c));
    in->scope = saved;
    return passes && interp_ok(in);
}

/* Fetches the next item that passes the filter. */
static bool fetch_source(struct interp *in, struct loop *loop, struct value *out)
{
    while (cursor_next(in, &loop->cursor, out)) {
        if (passes_filter(in, loop, *out))
            return true;
        if (in->failed)
            return false;
    }
    return false;
}

static bool has_ahead(struct interp *in, struct loop *loop)
{
    struct value item;
    if (loop->i_ahead < loop->ahead->n)
        return true;
    loop->ahead->n = loop->i_ahead = 0;
    return fetch_source(in, loop, &item) && list_add(in, loop->ahead, item);
}

static bool fetch_item(struct interp *in, struct loop *loop, struct value *out)
{
    if (loop->i_ahead < loop->ahead->n) {
        *out = loop->ahead->items[loop->i_ahead++];
        return true;
    }
    return fetch_source(in, loop, out);
}

static size_t loop_length(struct interp *in, struct loop *loop)
{
    struct value item;
    if (loop->length != SIZE_MAX)
        return loop->length;
    while (fetch_source(in, loop, &item))
        if (!list_add(in, loop->ahead, item))
            return 0;
    loop->length = loop->index0 + 1 + loop->ahead->n - loop->i_ahead;
    return loop->length;
}

static struct value cycle(struct interp *in, struct value self, const struct value *argv,
                          const struct args *args)
{
    (void)argv;
    if (!args->n_positional)
        return interp_fail(in, "no items for cycling given");
    return args->positional[self.u.loop->index0 % args->n_positional];
}

static struct value changed(struct interp *in, struct value self, const struct value *argv,
                            const struct args *args)
{
    (void)argv;
    struct list *list = list_new(in, args->n_positional);
    for (size_t i = 0; list && i < args->n_positional; i++)
        list_add(in, list, args->positional[i]);
    if (in->failed)
        return value_of_type(VALUE_UNSET);
    struct value now = value_list(VALUE_TUPLE, list), before = self.u.loop->changed;
    bool same = before.type == VALUE_TUPLE && value_equal(in, before, now);
    self.u.loop->changed = now;
    return value_bool(!same);
}

static const struct builtin loop_methods[] = {{"cycle", cycle, NULL, 0},
                                              {"changed", changed, NULL, 0}};

struct value loop_getattr(struct interp *in, struct loop *loop, const struct text *name)
{
    int64_t index0 = (int64_t)loop->index0;
    if (text_equal_str(name, "index"))
        return value_int(index0 + 1);
    if (text_equal_str(name, "index0"))
        return value_int(index0);
    if (text_equal_str(name, "first"))
        return value_bool(!loop->index0);
    if (text_equal_str(name, "last"))
        return value_bool(!has_ahead(in, loop));
    if (text_equal_str(name, "length"))
        return value_int((int64_t)loop_length(in, loop));
    if (text_equal_str(name, "revindex"))
        return value_int((int64_t)loop_length(in, loop) - index0);
    if (text_equal_str(name, "revindex0"))
        return value_int((int64_t)loop_length(in, loop) - index0 - 1);
    if (text_equal_str(name, "previtem"))
        return loop->previous;
    if (text_equal_str(name, "nextitem"))
        return has_ahead(in, loop) ? loop->ahead->items[loop->i_ahead] : value_undefined(name, 0);
    if (text_equal_str(name, "depth"))
        return value_int((int64_t)loop->depth0 + 1);
    if (text_equal_str(name, "depth0"))
        return value_int(loop->depth0);
    for (size_t i = 0; i < sizeof(loop_methods) / sizeof(loop_methods[0]); i++) {
        if (!text_equal_str(name, loop_methods[i].name))
            continue;
        struct method *method = interp_alloc(in, 1, sizeof(*method));
        if (!method)
            return value_of_type(VALUE_UNSET);
        *method = (struct method){{.type = VALUE_LOOP, .u.loop = loop}, &loop_methods[i]};
        return (struct value){.type = VALUE_METHOD, .u.method = method};
    }
    return value_undefined(name, VALUE_LOOP);
}

static struct loop *loop_open(struct interp *in, const struct node *node, struct value iterable,
                              unsigned depth0)
{
    struct loop *loop = interp_alloc(in, 1, sizeof(*loop));
    in->line = node->line;
    in->construct = "for";
    bool ok = loop && cursor_open(in, iterable, &loop->cursor);
    in->construct = "";
    if (!ok)
        return NULL;
    loop->node = node;
    loop->outer = in->scope;
    loop->ahead = list_new(in, 0);
    loop->length = SIZE_MAX;
    loop->depth0 = depth0;
    loop->previous = loop->current = value_undefined(node->name, 0);
    return loop->ahead ? loop : NULL;
}

/* Each pass gets a fresh scope. The previous scope is reused if no macro captured it. */
static bool renew_scope(struct interp *in, struct loop *loop)
{
    if (in->scope != loop->outer && !in->scope->captured) {
        in->scope->n = 0;
        return true;
    }
    in->scope = loop->outer;
    return scope_push(in) != NULL;
}

static enum flow run_items(struct interp *in, const struct node *node, struct value iterable,
                           unsigned depth0)
{
    struct loop *loop = loop_open(in, node, iterable, depth0);
    if (!loop)
        return FLOW_BREAK;
    struct value item;
    bool any = false;
    enum flow flow = FLOW_NEXT;
    while (flow != FLOW_BREAK && fetch_item(in, loop, &item)) {
        loop->index0 = any ? loop->index0 + 1 : 0;
        loop->previous = any ? loop->current : loop->previous;
        loop->current = item;
        any = true;
        if (!renew_scope(in, loop))
            break;
        scope_set(in, node->name, (struct value){.type = VALUE_LOOP, .u.loop = loop});
        in->line = node->line;
        if (!exec_assign(in, node->a, item))
            break;
        flow = exec_list(in, node->list);
    }
    in->scope = loop->outer;
    if (any || !interp_ok(in) || !node->d)
        return interp_ok(in) ? FLOW_NEXT : FLOW_BREAK;
    flow = scope_push(in) ? exec_list(in, node->d) : FLOW_BREAK;
    in->scope = loop->outer;
    return flow;
}

enum flow loop_run(struct interp *in, const struct node *node)
{
    struct value iterable = eval(in, node->b);
    return interp_ok(in) ? run_items(in, node, iterable, 0) : FLOW_BREAK;
}

struct value loop_call(struct interp *in, struct loop *loop, const struct args *args)
{
    if (!loop->node->op)
        return interp_fail(in, "the loop needs the 'recursive' marker to be called");
    if (args->n_positional != 1 || args->n_keywords)
        return interp_fail(in, "loop() takes one iterable");
    if (in->macro_depth >= CHAT_TEMPLATE_MAX_DEPTH)
        return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                                  "loop() is called more than %d levels deep",
                                  CHAT_TEMPLATE_MAX_DEPTH);
    struct scope *saved = in->scope;
    in->macro_depth++;
    in->scope = loop->outer;
    size_t mark = interp_capture_begin(in);
    run_items(in, loop->node, args->positional[0], loop->depth0 + 1);
    struct value text = interp_capture_end(in, mark);
    in->scope = saved;
    in->macro_depth--;
    return text;
}
