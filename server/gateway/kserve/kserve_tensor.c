#include "server/gateway/kserve/kserve_tensor.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"

enum { LENGTH_BYTES = 4, MAX_DIMENSIONS = 2 };

/* The list of InferTensorContents that has a datatype's elements. */
enum list {
    LIST_BOOL,
    LIST_INT,
    LIST_INT64,
    LIST_UINT,
    LIST_UINT64,
    LIST_FP32,
    LIST_FP64,
    LIST_BYTES,
    N_LISTS
};

struct kserve_datatype {
    const char *name;
    enum kserve_kind kind;
    size_t n_bytes; /* bytes of a raw element; BYTES: bytes of its length */
    enum list list;
    int64_t lowest; /* limits of elements in a wider list */
    uint64_t highest;
};

static const struct kserve_datatype datatypes[] = {
    {"BYTES", KSERVE_BYTES, LENGTH_BYTES, LIST_BYTES, 0, 0},
    {"BOOL", KSERVE_BOOL, 1, LIST_BOOL, 0, 0},
    {"INT8", KSERVE_INT, 1, LIST_INT, INT8_MIN, INT8_MAX},
    {"INT16", KSERVE_INT, 2, LIST_INT, INT16_MIN, INT16_MAX},
    {"INT32", KSERVE_INT, 4, LIST_INT, INT32_MIN, INT32_MAX},
    {"INT64", KSERVE_INT, 8, LIST_INT64, INT64_MIN, INT64_MAX},
    {"UINT8", KSERVE_UINT, 1, LIST_UINT, 0, UINT8_MAX},
    {"UINT16", KSERVE_UINT, 2, LIST_UINT, 0, UINT16_MAX},
    {"UINT32", KSERVE_UINT, 4, LIST_UINT, 0, UINT32_MAX},
    {"UINT64", KSERVE_UINT, 8, LIST_UINT64, 0, UINT64_MAX},
    {"FP32", KSERVE_FLOAT, 4, LIST_FP32, 0, 0},
    {"FP64", KSERVE_FLOAT, 8, LIST_FP64, 0, 0},
};

static const char *const list_names[N_LISTS] = {
    [LIST_BOOL] = "bool_contents",     [LIST_INT] = "int_contents",
    [LIST_INT64] = "int64_contents",   [LIST_UINT] = "uint_contents",
    [LIST_UINT64] = "uint64_contents", [LIST_FP32] = "fp32_contents",
    [LIST_FP64] = "fp64_contents",     [LIST_BYTES] = "bytes_contents",
};

static const struct kserve_datatype *find_datatype(const char *name)
{
    for (size_t i = 0; i < sizeof(datatypes) / sizeof(datatypes[0]); i++)
        if (strcmp(datatypes[i].name, name) == 0)
            return &datatypes[i];
    return NULL;
}

/* --- the shape --- */

/* Computes the number of elements. */
static int check_shape(const Inference__ModelInferRequest__InferInputTensor *input, uint64_t *out_n,
                       struct error *err)
{
    uint64_t n = 1;
    if (input->n_shape < 1 || input->n_shape > MAX_DIMENSIONS)
        return error_field(
            err, input->name,
            "the shape has %zu dimensions; send [N], or [1,N] with a batch dimension",
            input->n_shape);
    if (input->n_shape == MAX_DIMENSIONS && input->shape[0] != 1)
        return error_field(err, input->name,
                           "the shape's batch dimension is %" PRId64
                           ", limit 1; send a request for each prompt",
                           input->shape[0]);
    for (size_t i = 0; i < input->n_shape; i++) {
        if (input->shape[i] < 0 || input->shape[i] > INT32_MAX)
            return error_field(err, input->name,
                               "dimension %zu of the shape is %" PRId64 ", not in [0, %d]", i,
                               input->shape[i], INT32_MAX);
        n *= (uint64_t)input->shape[i];
    }
    *out_n = n;
    return 0;
}

/* --- raw elements --- */

static uint64_t little_endian(const uint8_t *bytes, size_t n_bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n_bytes; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* Walks over the texts of a tensor of type BYTES. */
static int check_raw_texts(const char *name, const ProtobufCBinaryData *raw, uint64_t n,
                           struct error *err)
{
    size_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (raw->len - at < LENGTH_BYTES)
            return error_field(err, name,
                               "element %" PRIu64 " needs a length of 4 bytes at byte %zu; the raw "
                               "contents have %zu bytes",
                               i, at, raw->len);
        uint64_t n_text = little_endian(raw->data + at, LENGTH_BYTES);
        at += LENGTH_BYTES;
        if (n_text > raw->len - at)
            return error_field(err, name,
                               "element %" PRIu64 " has a length of %" PRIu64
                               " bytes at byte %zu; %zu bytes are left",
                               i, n_text, at - LENGTH_BYTES, raw->len - at);
        at += (size_t)n_text;
    }
    if (at != raw->len)
        return error_field(err, name,
                           "the raw contents have %zu bytes after the %" PRIu64
                           " elements of the shape",
                           raw->len - at, n);
    return 0;
}

static int check_raw(const struct kserve_tensor *tensor, const ProtobufCBinaryData *raw, uint64_t n,
                     struct error *err)
{
    const struct kserve_datatype *type = tensor->datatype;
    if (type->kind == KSERVE_BYTES)
        return check_raw_texts(tensor->name, raw, n, err);
    if (raw->len % type->n_bytes || raw->len / type->n_bytes != n)
        return error_field(err, tensor->name,
                           "the raw contents have %zu bytes; %" PRIu64
                           " elements of %s need %" PRIu64,
                           raw->len, n, type->name, n * type->n_bytes);
    for (size_t i = 0; type->kind == KSERVE_BOOL && i < raw->len; i++)
        if (raw->data[i] > 1)
            return error_field(err, tensor->name, "element %zu is %u, which is no BOOL (0 or 1)", i,
                               (unsigned)raw->data[i]);
    return 0;
}

/* --- typed elements --- */

static void list_sizes(const Inference__InferTensorContents *c, size_t out_n[N_LISTS])
{
    out_n[LIST_BOOL] = c->n_bool_contents;
    out_n[LIST_INT] = c->n_int_contents;
    out_n[LIST_INT64] = c->n_int64_contents;
    out_n[LIST_UINT] = c->n_uint_contents;
    out_n[LIST_UINT64] = c->n_uint64_contents;
    out_n[LIST_FP32] = c->n_fp32_contents;
    out_n[LIST_FP64] = c->n_fp64_contents;
    out_n[LIST_BYTES] = c->n_bytes_contents;
}

static int check_contents(const struct kserve_tensor *tensor, uint64_t n, struct error *err)
{
    const struct kserve_datatype *type = tensor->datatype;
    const Inference__InferTensorContents *c = tensor->contents;
    size_t sizes[N_LISTS];
    list_sizes(c, sizes);
    for (int i = 0; i < N_LISTS; i++)
        if (sizes[i] && i != (int)type->list)
            return error_field(err, tensor->name,
                               "has elements in %s; a tensor of %s has them in %s", list_names[i],
                               type->name, list_names[type->list]);
    if (sizes[type->list] != n)
        return error_field(err, tensor->name, "%s has %zu elements; the shape has %" PRIu64,
                           list_names[type->list], sizes[type->list], n);
    for (size_t i = 0; type->list == LIST_INT && i < n; i++)
        if (c->int_contents[i] < type->lowest || c->int_contents[i] > (int64_t)type->highest)
            return error_field(err, tensor->name, "element %zu is %" PRId32 ", which is no %s", i,
                               c->int_contents[i], type->name);
    for (size_t i = 0; type->list == LIST_UINT && i < n; i++)
        if (c->uint_contents[i] > type->highest)
            return error_field(err, tensor->name, "element %zu is %" PRIu32 ", which is no %s", i,
                               c->uint_contents[i], type->name);
    return 0;
}

/* --- a tensor --- */

/* Sets the place of the elements: the raw contents of the request, or the tensor's own. */
static int find_elements(const Inference__ModelInferRequest *request, size_t i, uint64_t n,
                         struct kserve_tensor *tensor, struct error *err)
{
    static const uint8_t nothing[1];
    const Inference__ModelInferRequest__InferInputTensor *input = request->inputs[i];
    if (!request->n_raw_input_contents) {
        if (!input->contents)
            return error_field(err, input->name,
                               "has no elements; send contents or raw_input_contents");
        tensor->contents = input->contents;
        return check_contents(tensor, n, err);
    }
    if (request->n_raw_input_contents != request->n_inputs)
        return error_field(err, "raw_input_contents", "has %zu entries for %zu inputs",
                           request->n_raw_input_contents, request->n_inputs);
    if (input->contents)
        return error_field(err, input->name, "has contents beside raw_input_contents");
    const ProtobufCBinaryData *raw = &request->raw_input_contents[i];
    tensor->raw = raw->len ? raw->data : nothing;
    return check_raw(tensor, raw, n, err);
}

int kserve_tensor_open(const Inference__ModelInferRequest *request, size_t i,
                       struct kserve_tensor *out_tensor, struct error *err)
{
    const Inference__ModelInferRequest__InferInputTensor *input = request->inputs[i];
    struct kserve_tensor tensor = {.name = input->name, .datatype = find_datatype(input->datatype)};
    uint64_t n = 0;
    if (!input->name[0])
        return error_field(err, "inputs", "input %zu has no name", i);
    if (input->n_parameters)
        return error_field(err, input->name,
                           "has the parameter \"%.64s\"; tensors have none (shared memory is not "
                           "built)",
                           input->parameters[0]->key);
    if (!tensor.datatype)
        return error_field(err, input->name,
                           "the datatype \"%.32s\" is not read; send BYTES, BOOL, INT8 to INT64, "
                           "UINT8 to UINT64, FP32 or FP64",
                           input->datatype);
    int rc = check_shape(input, &n, err);
    if (!rc)
        rc = find_elements(request, i, n, &tensor, err);
    if (rc)
        return rc;
    tensor.n_elements = (size_t)n;
    *out_tensor = tensor;
    return 0;
}

static void next_raw(struct kserve_tensor *tensor, struct kserve_value *out)
{
    const struct kserve_datatype *type = tensor->datatype;
    uint64_t bits = little_endian(tensor->raw, type->n_bytes);
    tensor->raw += type->n_bytes;
    if (type->kind == KSERVE_BYTES) {
        out->text = (const char *)tensor->raw;
        out->n_text = (size_t)bits;
        tensor->raw += bits;
    } else if (type->kind == KSERVE_BOOL) {
        out->is_true = bits;
    } else if (type->kind == KSERVE_INT) {
        if (bits > type->highest) /* negative: the bits above are ones */
            bits |= ~type->highest;
        out->i = (int64_t)bits;
    } else if (type->kind == KSERVE_UINT) {
        out->u = bits;
    } else if (type->n_bytes == 4) {
        uint32_t low = (uint32_t)bits;
        float number;
        memcpy(&number, &low, sizeof(number));
        out->f = (double)number;
    } else {
        memcpy(&out->f, &bits, sizeof(out->f));
    }
}

static void next_typed(const struct kserve_tensor *tensor, struct kserve_value *out)
{
    const Inference__InferTensorContents *c = tensor->contents;
    size_t i = tensor->i_element;
    switch (tensor->datatype->list) {
    case LIST_BOOL:
        out->is_true = c->bool_contents[i];
        break;
    case LIST_INT:
        out->i = c->int_contents[i];
        break;
    case LIST_INT64:
        out->i = c->int64_contents[i];
        break;
    case LIST_UINT:
        out->u = c->uint_contents[i];
        break;
    case LIST_UINT64:
        out->u = c->uint64_contents[i];
        break;
    case LIST_FP32:
        out->f = (double)c->fp32_contents[i];
        break;
    case LIST_FP64:
        out->f = c->fp64_contents[i];
        break;
    default:
        out->text = (const char *)c->bytes_contents[i].data;
        out->n_text = c->bytes_contents[i].len;
        break;
    }
}

bool kserve_tensor_next(struct kserve_tensor *tensor, struct kserve_value *out_value)
{
    if (tensor->i_element == tensor->n_elements)
        return false;
    *out_value = (struct kserve_value){.kind = tensor->datatype->kind};
    if (tensor->raw)
        next_raw(tensor, out_value);
    else
        next_typed(tensor, out_value);
    tensor->i_element++;
    return true;
}

/* --- parameters --- */

int kserve_parameter_value(const char *name, const Inference__InferParameter *parameter,
                           struct kserve_value *out_value, struct error *err)
{
    struct kserve_value value = {.kind = KSERVE_BYTES};
    switch (parameter ? parameter->parameter_choice_case
                      : INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE__NOT_SET) {
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM:
        value = (struct kserve_value){.kind = KSERVE_BOOL, .is_true = parameter->bool_param};
        break;
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM:
        value = (struct kserve_value){.kind = KSERVE_INT, .i = parameter->int64_param};
        break;
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM:
        value = (struct kserve_value){.kind = KSERVE_UINT, .u = parameter->uint64_param};
        break;
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM:
        value = (struct kserve_value){.kind = KSERVE_FLOAT, .f = parameter->double_param};
        break;
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM:
        value.text = parameter->string_param;
        value.n_text = strlen(parameter->string_param);
        break;
    default:
        return error_field(err, name, "the parameter has no value");
    }
    *out_value = value;
    return 0;
}
