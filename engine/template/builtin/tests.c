/* Tests, the functions behind `is`. */
#include <string.h>

#include "base/utf8.h"
#include "engine/template/operators.h"
#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

typedef const struct args *args_in;

#define TEST(name)                                                                                 \
    static struct value test_##name(struct interp *in, struct value self,                          \
                                    const struct value *argv, args_in args)

TEST(defined)
{
    (void)in, (void)argv, (void)args;
    return value_bool(!value_is_undefined(self));
}

TEST(undefined)
{
    (void)in, (void)argv, (void)args;
    return value_bool(value_is_undefined(self));
}

TEST(none)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_NONE);
}

TEST(boolean)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_BOOL);
}

TEST(true)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_BOOL && self.u.boolean);
}

TEST(false)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_BOOL && !self.u.boolean);
}

TEST(integer)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_INT || self.type == VALUE_BIG);
}

TEST(float)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_FLOAT);
}

TEST(number)
{
    (void)in, (void)argv, (void)args;
    return value_bool(value_is_number(self) || self.type == VALUE_BIG);
}

TEST(string)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_STRING);
}

TEST(mapping)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_DICT);
}

TEST(sequence)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_STRING || self.type == VALUE_LIST ||
                      self.type == VALUE_TUPLE || self.type == VALUE_RANGE ||
                      self.type == VALUE_DICT || value_is_undefined(self));
}

TEST(iterable)
{
    (void)in, (void)argv, (void)args;
    return value_bool((self.type >= VALUE_STRING && self.type <= VALUE_DICT) ||
                      value_is_undefined(self) || self.type == VALUE_LOOP);
}

TEST(callable)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_BUILTIN || self.type == VALUE_METHOD ||
                      self.type == VALUE_MACRO || self.type == VALUE_JOINER ||
                      value_is_undefined(self));
}

TEST(escaped)
{
    (void)in, (void)argv, (void)args;
    return value_bool(value_is_markup(self));
}

TEST(sameas)
{
    (void)in, (void)args;
    struct value other = argv[0];
    if (self.type != other.type)
        return value_bool(false);
    if (self.type == VALUE_BOOL)
        return value_bool(self.u.boolean == other.u.boolean);
    if (self.type == VALUE_NONE)
        return value_bool(true);
    if (self.type == VALUE_INT)
        return value_bool(self.u.integer == other.u.integer);
    return value_bool(self.u.list == other.u.list);
}

TEST(in)
{
    (void)args;
    return value_bool(operator_contains(in, argv[0], self));
}

TEST(eq)
{
    (void)args;
    return value_bool(operator_compare(in, OP_EQ, self, argv[0]));
}

TEST(ne)
{
    (void)args;
    return value_bool(operator_compare(in, OP_NE, self, argv[0]));
}

TEST(gt)
{
    (void)args;
    return value_bool(operator_compare(in, OP_GT, self, argv[0]));
}

TEST(ge)
{
    (void)args;
    return value_bool(operator_compare(in, OP_GE, self, argv[0]));
}

TEST(lt)
{
    (void)args;
    return value_bool(operator_compare(in, OP_LT, self, argv[0]));
}

TEST(le)
{
    (void)args;
    return value_bool(operator_compare(in, OP_LE, self, argv[0]));
}

static struct value remainder_is(struct interp *in, struct value v, struct value by, int64_t wanted)
{
    return value_bool(value_equal(in, operator_binary(in, OP_MOD, v, by), value_int(wanted)));
}

TEST(odd)
{
    (void)argv, (void)args;
    return remainder_is(in, self, value_int(2), 1);
}

TEST(even)
{
    (void)argv, (void)args;
    return remainder_is(in, self, value_int(2), 0);
}

TEST(divisibleby)
{
    (void)args;
    return remainder_is(in, self, argv[0], 0);
}

/* str.islower and str.isupper: true if some letters have case, and all of these have the right
 * one. */
static struct value all_cased(struct interp *in, struct value v,
                              bool (*is_right)(uint32_t code_point))
{
    const struct text *text = value_to_text(in, v);
    bool any = false;
    uint32_t cp;
    size_t n;
    for (size_t i = 0; i < text->n_bytes && interp_step(in, 1) &&
                       (n = utf8_decode(text->data + i, text->n_bytes - i, &cp));
         i += n) {
        if (unicode_is_cased(cp) && !is_right(cp))
            return value_bool(false);
        any |= unicode_is_cased(cp);
    }
    return value_bool(any);
}

TEST(lower)
{
    (void)argv, (void)args;
    return all_cased(in, self, unicode_is_lower);
}

TEST(upper)
{
    (void)argv, (void)args;
    return all_cased(in, self, unicode_is_upper);
}

TEST(filter)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_STRING && builtin_filter(self.u.text));
}

TEST(test)
{
    (void)in, (void)argv, (void)args;
    return value_bool(self.type == VALUE_STRING && builtin_test(self.u.text));
}

static const struct builtin tests[] = {
    {"defined", test_defined, "", 0},
    {"undefined", test_undefined, "", 0},
    {"none", test_none, "", 0},
    {"boolean", test_boolean, "", 0},
    {"true", test_true, "", 0},
    {"false", test_false, "", 0},
    {"integer", test_integer, "", 0},
    {"float", test_float, "", 0},
    {"number", test_number, "", 0},
    {"string", test_string, "", 0},
    {"mapping", test_mapping, "", 0},
    {"sequence", test_sequence, "", 0},
    {"iterable", test_iterable, "", 0},
    {"callable", test_callable, "", 0},
    {"escaped", test_escaped, "", 0},
    {"sameas", test_sameas, "other", 1},
    {"in", test_in, "seq", 1},
    {"eq", test_eq, "other", 1},
    {"equalto", test_eq, "other", 1},
    {"==", test_eq, "other", 1},
    {"ne", test_ne, "other", 1},
    {"!=", test_ne, "other", 1},
    {"gt", test_gt, "other", 1},
    {"greaterthan", test_gt, "other", 1},
    {">", test_gt, "other", 1},
    {"ge", test_ge, "other", 1},
    {">=", test_ge, "other", 1},
    {"lt", test_lt, "other", 1},
    {"lessthan", test_lt, "other", 1},
    {"<", test_lt, "other", 1},
    {"le", test_le, "other", 1},
    {"<=", test_le, "other", 1},
    {"odd", test_odd, "", 0},
    {"even", test_even, "", 0},
    {"divisibleby", test_divisibleby, "num", 1},
    {"lower", test_lower, "", 0},
    {"upper", test_upper, "", 0},
    {"filter", test_filter, "", 0},
    {"test", test_test, "", 0},
};

const struct builtin *builtin_test(const struct text *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (text_equal_str(name, tests[i].name))
            return &tests[i];
    return NULL;
}
