/* Elements of tensors: raw and typed contents, and a table of what is refused. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/kserve/kserve_tensor.h"
#include "tests/unit/base/support_cmocka.h"

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;

/* A request with one input. */
struct given {
    Inference__ModelInferRequest request;
    input_tensor input, *inputs[1];
    ProtobufCBinaryData raw[2];
    Inference__InferTensorContents contents;
    int64_t shape[4];
};

static char tensor_name[] = "t";

static void set_shape(struct given *g, size_t n, int64_t first, int64_t second)
{
    g->shape[0] = first;
    g->shape[1] = second;
    g->shape[2] = g->shape[3] = 1;
    g->input.shape = g->shape;
    g->input.n_shape = n;
}

static void init(struct given *g, const char *datatype, int64_t n)
{
    inference__model_infer_request__init(&g->request);
    inference__model_infer_request__infer_input_tensor__init(&g->input);
    inference__infer_tensor_contents__init(&g->contents);
    g->inputs[0] = &g->input;
    g->request.inputs = g->inputs;
    g->request.n_inputs = 1;
    g->request.raw_input_contents = g->raw;
    g->input.name = tensor_name;
    g->input.datatype = (char *)(uintptr_t)datatype;
    set_shape(g, 1, n, 0);
}

static void set_raw(struct given *g, const void *bytes, size_t n_bytes)
{
    g->raw[0] = g->raw[1] = (ProtobufCBinaryData){n_bytes, (uint8_t *)(uintptr_t)bytes};
    g->request.n_raw_input_contents = 1;
}

static void expect_refused(const struct given *g, const char *field)
{
    struct kserve_tensor tensor;
    struct error err;
    error_clear(&err);
    assert_int_equal(kserve_tensor_open(&g->request, 0, &tensor, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(err.status, STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, field);
    assert_true(err.message[0]);
}

static struct kserve_tensor expect_open(const struct given *g, size_t n)
{
    struct kserve_tensor tensor;
    struct error err;
    error_clear(&err);
    assert_int_equal(kserve_tensor_open(&g->request, 0, &tensor, &err), 0);
    assert_int_equal(tensor.n_elements, n);
    return tensor;
}

/* --- good tensors --- */

static void test_raw_numbers_are_little_endian(void **state)
{
    static const struct {
        const char *datatype, *bytes;
        size_t n_bytes;
        struct kserve_value value;
    } rows[] = {
        {"BOOL", "\x01", 1, {.kind = KSERVE_BOOL, .is_true = true}},
        {"INT8", "\xfe", 1, {.kind = KSERVE_INT, .i = -2}},
        {"INT16", "\xfe\xff", 2, {.kind = KSERVE_INT, .i = -2}},
        {"INT32", "\x10\x27\x00\x00", 4, {.kind = KSERVE_INT, .i = 10000}},
        {"INT64", "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, {.kind = KSERVE_INT, .i = INT64_MAX}},
        {"UINT8", "\xfe", 1, {.kind = KSERVE_UINT, .u = 254}},
        {"UINT16", "\x01\x02", 2, {.kind = KSERVE_UINT, .u = 513}},
        {"UINT32", "\xff\xff\xff\xff", 4, {.kind = KSERVE_UINT, .u = UINT32_MAX}},
        {"UINT64", "\xff\xff\xff\xff\xff\xff\xff\xff", 8, {.kind = KSERVE_UINT, .u = UINT64_MAX}},
        {"FP32", "\x00\x00\x80\x3e", 4, {.kind = KSERVE_FLOAT, .f = 0.25}},
        {"FP64", "\x00\x00\x00\x00\x00\x00\xd0\x3f", 8, {.kind = KSERVE_FLOAT, .f = 0.25}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct given g = {0};
        struct kserve_value value;
        init(&g, rows[i].datatype, 1);
        set_shape(&g, 2, 1, 1); /* with a batch dimension */
        set_raw(&g, rows[i].bytes, rows[i].n_bytes);
        struct kserve_tensor tensor = expect_open(&g, 1);
        assert_true(kserve_tensor_next(&tensor, &value));
        assert_int_equal(value.kind, rows[i].value.kind);
        assert_int_equal(value.is_true, rows[i].value.is_true);
        assert_true(value.i == rows[i].value.i && value.u == rows[i].value.u);
        assert_true(value.f == rows[i].value.f);
        assert_false(kserve_tensor_next(&tensor, &value));
    }
}

static const char three_texts[] = "\x02\0\0\0ab\0\0\0\0\x03\0\0\0cde";
enum { THREE_BYTES = sizeof(three_texts) - 1 };

static void test_raw_texts_have_their_lengths_before_them(void **state)
{
    static const char *const texts[] = {"ab", "", "cde"};
    struct given g = {0};
    struct kserve_value value;
    (void)state;
    init(&g, "BYTES", 3);
    set_raw(&g, three_texts, THREE_BYTES);
    struct kserve_tensor tensor = expect_open(&g, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(kserve_tensor_next(&tensor, &value));
        assert_int_equal(value.n_text, strlen(texts[i]));
        assert_memory_equal(value.text, texts[i], value.n_text);
    }
    assert_false(kserve_tensor_next(&tensor, &value));
}

static void test_raw_texts_that_end_at_any_byte_are_refused(void **state)
{
    (void)state;
    for (size_t n = 0; n < THREE_BYTES; n++) {
        struct given g = {0};
        char *exact = malloc(n + 1); /* so that a sanitizer sees a read beyond the end */
        assert_non_null(exact);
        memcpy(exact, three_texts, n);
        init(&g, "BYTES", 3);
        set_raw(&g, exact, n);
        expect_refused(&g, "t");
        free(exact);
    }
}

static void test_typed_contents_give_the_same_values(void **state)
{
    int32_t numbers[] = {-128, 127};
    float floats[] = {0.5f, -1.0f};
    uint8_t ab[] = {'a', 'b'};
    ProtobufCBinaryData texts[] = {{2, ab}, {0, NULL}};
    struct kserve_value value;
    (void)state;
    struct given g = {0};
    init(&g, "INT8", 2);
    g.contents.int_contents = numbers;
    g.contents.n_int_contents = 2;
    g.input.contents = &g.contents;
    struct kserve_tensor tensor = expect_open(&g, 2);
    assert_true(kserve_tensor_next(&tensor, &value) && value.i == -128);
    assert_true(kserve_tensor_next(&tensor, &value) && value.i == 127);
    init(&g, "FP32", 2);
    g.contents.fp32_contents = floats;
    g.contents.n_fp32_contents = 2;
    g.input.contents = &g.contents;
    tensor = expect_open(&g, 2);
    assert_true(kserve_tensor_next(&tensor, &value) && value.f == 0.5);
    init(&g, "BYTES", 2);
    g.contents.bytes_contents = texts;
    g.contents.n_bytes_contents = 2;
    g.input.contents = &g.contents;
    tensor = expect_open(&g, 2);
    assert_true(kserve_tensor_next(&tensor, &value) && value.n_text == 2);
    assert_true(kserve_tensor_next(&tensor, &value) && value.n_text == 0);
}

/* --- refused tensors --- */

static void test_shapes_are_checked(void **state)
{
    static const struct {
        size_t n;
        int64_t first, second;
    } rows[] = {{0, 0, 0},         {3, 1, 1}, {4, 1, 1}, {1, -1, 0},       {1, INT64_MAX, 0},
                {1, INT64_MIN, 0}, {2, 2, 1}, {2, 0, 1}, {2, -1, 1},       {2, 1, -1},
                {2, 1, INT64_MAX}, {1, 2, 0}, {1, 0, 0}, {2, 1, INT32_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct given g = {0};
        init(&g, "INT32", 1);
        set_raw(&g, "\1\0\0\0", 4);
        set_shape(&g, rows[i].n, rows[i].first, rows[i].second);
        expect_refused(&g, "t");
    }
}

static void test_lengths_and_datatypes_are_checked(void **state)
{
    static const struct {
        const char *datatype, *bytes;
        size_t n_bytes;
    } rows[] = {
        {"INT32", "\1\0\0\0", 3},
        {"INT32", "\1\0\0\0\0", 5},
        {"INT32", "\1\0\0\0\1\0\0\0", 8},
        {"INT32", "", 0},
        {"INT64", "\1\0\0\0", 4},
        {"BOOL", "\2", 1},
        {"BOOL", "\xff", 1},
        {"BYTES", "\xff\xff\xff\xff", 4},
        {"BYTES", "\1\0\0\0", 4},
        {"BYTES", "\0\0\0\0\0", 5},
        {"BYTES", "\1\0\0\0ab", 6},
        {"FP16", "\0\0", 2},
        {"BF16", "\0\0", 2},
        {"int32", "\1\0\0\0", 4},
        {"", "\1\0\0\0", 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct given g = {0};
        init(&g, rows[i].datatype, 1);
        set_raw(&g, rows[i].bytes, rows[i].n_bytes);
        expect_refused(&g, "t");
    }
}

static void test_counts_and_places_of_elements_are_checked(void **state)
{
    int32_t numbers[] = {300, 1};
    uint32_t naturals[] = {300};
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry entry, *entries[] = {&entry};
    (void)state;
    struct given g = {0};
    init(&g, "INT32", 1);
    expect_refused(&g, "t"); /* neither raw nor typed elements */
    g.input.contents = &g.contents;
    expect_refused(&g, "t"); /* the shape has one element, the contents none */
    g.contents.int_contents = numbers;
    g.contents.n_int_contents = 2;
    expect_refused(&g, "t"); /* the shape has one element, the contents two */
    g.contents.n_int_contents = 1;
    expect_open(&g, 1);
    g.input.datatype = (char *)(uintptr_t) "INT8";
    expect_refused(&g, "t"); /* 300 is no INT8 */
    g.input.datatype = (char *)(uintptr_t) "FP32";
    expect_refused(&g, "t"); /* elements of another datatype */
    g.contents.n_int_contents = 0;
    g.contents.uint_contents = naturals;
    g.contents.n_uint_contents = 1;
    g.input.datatype = (char *)(uintptr_t) "UINT8";
    expect_refused(&g, "t");
    g.input.datatype = (char *)(uintptr_t) "UINT16";
    expect_open(&g, 1);
    set_raw(&g, "\1\0", 2);
    expect_refused(&g, "t"); /* both raw and typed */
    g.input.contents = NULL;
    expect_open(&g, 1);
    g.request.n_raw_input_contents = 2;
    expect_refused(&g, "raw_input_contents"); /* two entries for one input */
    g.request.n_raw_input_contents = 1;
    inference__model_infer_request__infer_input_tensor__parameters_entry__init(&entry);
    entry.key = (char *)(uintptr_t) "shared_memory_region";
    g.input.parameters = entries;
    g.input.n_parameters = 1;
    expect_refused(&g, "t");
    g.input.n_parameters = 0;
    g.input.name = (char *)(uintptr_t) "";
    expect_refused(&g, "inputs");
}

static void test_parameters_need_a_value(void **state)
{
    Inference__InferParameter parameter = INFERENCE__INFER_PARAMETER__INIT;
    struct kserve_value value;
    struct error err;
    (void)state;
    assert_int_equal(kserve_parameter_value("p", NULL, &value, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(kserve_parameter_value("p", &parameter, &value, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "p");
    parameter.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM;
    parameter.double_param = 0.5;
    assert_int_equal(kserve_parameter_value("p", &parameter, &value, &err), 0);
    assert_true(value.kind == KSERVE_FLOAT && value.f == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raw_numbers_are_little_endian),
        cmocka_unit_test(test_raw_texts_have_their_lengths_before_them),
        cmocka_unit_test(test_raw_texts_that_end_at_any_byte_are_refused),
        cmocka_unit_test(test_typed_contents_give_the_same_values),
        cmocka_unit_test(test_shapes_are_checked),
        cmocka_unit_test(test_lengths_and_datatypes_are_checked),
        cmocka_unit_test(test_counts_and_places_of_elements_are_checked),
        cmocka_unit_test(test_parameters_need_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
