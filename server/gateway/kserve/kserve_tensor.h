/* kserve_tensor.h: values of a ModelInferRequest: elements of input tensors, and parameters. Plain
 * functions that read a decoded message; any thread. Knows no name of an input.
 *
 * An input's elements stand in its `contents`, or in raw_input_contents of the request. Raw numbers
 * are little-endian; a raw element of BYTES has its length before it, in four bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inference/grpc_service.pb-c.h"

struct error;

/* KSERVE_OBJECT: a JSON object for a field without members; no member of the value is set. */
enum kserve_kind {
    KSERVE_BYTES,
    KSERVE_BOOL,
    KSERVE_INT,
    KSERVE_UINT,
    KSERVE_FLOAT,
    KSERVE_OBJECT
};

/* A value, from a tensor, a parameter or a JSON text. The member of the kind is set. */
struct kserve_value {
    enum kserve_kind kind;
    const char *text; /* BYTES: borrowed, not terminated, any bytes */
    size_t n_text;
    bool is_true;
    int64_t i;
    uint64_t u;
    double f;
};

/* A checked input. Everything is borrowed from the request. */
struct kserve_tensor {
    const char *name;
    size_t n_elements;
    const struct kserve_datatype *datatype;
    const uint8_t *raw; /* rest of the raw elements; NULL: the elements are in `contents` */
    const Inference__InferTensorContents *contents;
    size_t i_element; /* the next element in `contents` */
};

/* Checks input `i` of the request: datatype, shape, number of elements, and every length. A shape
 * has one dimension, or two of which the first is 1. INVALID_ARGUMENT with the tensor's name. */
int kserve_tensor_open(const Inference__ModelInferRequest *request, size_t i,
                       struct kserve_tensor *out_tensor, struct error *err);
/* Reads the next element; false after the last. */
bool kserve_tensor_next(struct kserve_tensor *tensor, struct kserve_value *out_value);

/* Reads a parameter. INVALID_ARGUMENT with `name` if the parameter has no value. */
int kserve_parameter_value(const char *name, const Inference__InferParameter *parameter,
                           struct kserve_value *out_value, struct error *err);
