#include "engine/template/scope.h"

#include <string.h>

#include "engine/template/value/builtin.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/value.h"

struct scope *scope_push(struct interp *in)
{
    struct scope *scope = interp_alloc(in, 1, sizeof(*scope));
    if (!scope)
        return NULL;
    scope->parent = in->scope;
    in->scope = scope;
    return scope;
}

void scope_set(struct interp *in, const struct text *name, struct value v)
{
    struct scope *scope = in->scope;
    if (!interp_step(in, scope->n / 16))
        return;
    for (size_t i = 0; i < scope->n; i++)
        if (scope->variables[i].name == name) {
            scope->variables[i].value = v;
            return;
        }
    if (scope->n == scope->capacity) {
        size_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        struct variable *grown = interp_alloc(in, capacity, sizeof(*grown));
        if (!grown)
            return;
        if (scope->n)
            memcpy(grown, scope->variables, scope->n * sizeof(*grown));
        scope->variables = grown;
        scope->capacity = capacity;
    }
    scope->variables[scope->n++] = (struct variable){name, v};
}

struct value scope_lookup(struct interp *in, const struct text *name)
{
    for (const struct scope *scope = in->scope; scope; scope = scope->parent) {
        if (!interp_step(in, scope->n / 16))
            return value_of_type(VALUE_UNSET);
        for (size_t i = 0; i < scope->n; i++)
            if (scope->variables[i].name == name)
                return scope->variables[i].value;
    }
    const struct value *given = dict_get(in, in->context, value_text(name), NULL);
    if (given)
        return *given;
    const struct builtin *builtin = builtin_global(name);
    if (builtin)
        return (struct value){.type = VALUE_BUILTIN, .u.builtin = builtin};
    return value_undefined(name, 0);
}
