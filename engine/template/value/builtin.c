#include "engine/template/value/builtin.h"

#include <stdio.h>
#include <string.h>

#include "engine/template/value/interp.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

/* The length of the first name in a comma-separated list. */
static size_t name_length(const char *params)
{
    return strcspn(params, ",");
}

static bool bind_keyword(struct interp *in, const struct builtin *builtin,
                         const struct keyword *keyword, struct value *argv)
{
    const char *param = builtin->params;
    for (size_t i = 0; *param; i++) {
        size_t n = name_length(param);
        if (keyword->name->n_bytes == n && !memcmp(keyword->name->data, param, n)) {
            if (argv[i].type != VALUE_UNSET)
                interp_fail(in, "got multiple values for argument '%.*s'", (int)n, param);
            argv[i] = keyword->value;
            return interp_ok(in);
        }
        param += n + (param[n] == ',');
    }
    interp_fail(in, "got an unexpected keyword argument '%.*s'",
                (int)(keyword->name->n_bytes > 40 ? 40 : keyword->name->n_bytes),
                keyword->name->data);
    return false;
}

enum { MAX_BUILTIN_PARAMS = 8 };

static struct value call_bound(struct interp *in, const struct builtin *builtin, struct value self,
                               const struct args *args)
{
    struct value argv[MAX_BUILTIN_PARAMS] = {{0}};
    size_t n_params = 0;
    for (const char *param = builtin->params; *param; n_params++) {
        size_t n = name_length(param);
        param += n + (param[n] == ',');
    }
    if (args->n_positional > n_params)
        return interp_fail(in, "takes at most %zu arguments, got %zu", n_params,
                           args->n_positional);
    for (size_t i = 0; i < args->n_positional; i++)
        argv[i] = args->positional[i];
    for (size_t i = 0; i < args->n_keywords; i++)
        if (!bind_keyword(in, builtin, &args->keywords[i], argv))
            return value_of_type(VALUE_UNSET);
    for (size_t i = 0; i < builtin->n_required; i++)
        if (argv[i].type == VALUE_UNSET)
            return interp_fail(in, "needs %u arguments", builtin->n_required);
    return builtin->fn(in, self, argv, args);
}

struct value builtin_call(struct interp *in, const struct builtin *builtin, const char *kind,
                          struct value self, const struct args *args)
{
    if (!interp_step(in, 1))
        return value_of_type(VALUE_UNSET);
    /* nesting such as map('map', 'map', ...) needs no nodes */
    if (in->eval_depth >= MAX_EVAL_DEPTH)
        return interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED,
                                  "evaluation is nested deeper than %d levels", MAX_EVAL_DEPTH);
    in->eval_depth++;
    snprintf(in->construct_text, sizeof(in->construct_text), "%s '%.40s'", kind, builtin->name);
    in->construct = in->construct_text;
    struct value result =
        builtin->params ? call_bound(in, builtin, self, args) : builtin->fn(in, self, NULL, args);
    in->construct = "";
    in->eval_depth--;
    return in->failed ? value_of_type(VALUE_UNSET) : result;
}

int64_t builtin_arg_integer(struct interp *in, struct value v, int64_t fallback, const char *name)
{
    if (v.type == VALUE_UNSET)
        return fallback;
    if (value_is_integral(v))
        return value_integer(v);
    interp_fail(in, "%s must be an integer, not '%s'", name, value_type_name(v));
    return fallback;
}

const struct text *builtin_arg_text(struct interp *in, struct value v, const char *name)
{
    if (v.type == VALUE_STRING)
        return v.u.text;
    if (v.type != VALUE_UNSET)
        interp_fail(in, "%s must be a string, not '%s'", name, value_type_name(v));
    return NULL;
}
