/* kserve_fields.h: the names of inputs, with what each name sets in a request. Plain functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inference/model_config.pb-c.h"
#include "server/gateway/kserve/kserve_tensor.h"

struct error;
struct json_cursor;
struct kserve_request;

/* Elements of one value. */
enum { KSERVE_MAX_ELEMENTS = 4096 };

/* Where a value comes from. */
enum kserve_source { KSERVE_TENSOR = 1, KSERVE_PARAMETER = 2, KSERVE_JSON = 4 };

struct kserve_field;

/* Finds a name. NULL with INVALID_ARGUMENT if that source has no such name. `label` names the value
 * in errors. */
const struct kserve_field *kserve_fields_find(enum kserve_source source, const char *name,
                                              const char *label, struct error *err);
/* True if the field's bit is in `given` (kserve_request.given). */
bool kserve_fields_is_in(const struct kserve_field *field, uint64_t given);
/* True if the field takes a JSON object, as pairs of key and value. */
bool kserve_fields_is_pairs(const struct kserve_field *field);
/* Sets the field; texts of the values are copied. INVALID_ARGUMENT for a value of the wrong kind,
 * out of range or given twice; UNIMPLEMENTED for a value that is not built. */
int kserve_fields_set(struct kserve_request *request, const struct kserve_field *field,
                      const char *label, const struct kserve_value *values, size_t n,
                      struct error *err);
/* Returns the name in `given` that sets a field of GenerateRequest ("sampling.top_p"), or NULL. */
const char *kserve_fields_name(uint64_t given, const char *sluice_field);

/* Inputs for metadata, in a fixed order; NULL after the last. */
struct kserve_input {
    const char *name, *datatype;
    Inference__DataType type;
    bool is_list, is_required;
};
bool kserve_fields_input(size_t i, struct kserve_input *out_input);

/* kserve_sampling.c: reads the text of sampling_parameters. INVALID_ARGUMENT, with
 * "sampling_parameters.KEY" as field where a key is at fault. */
int kserve_sampling_read(struct kserve_request *request, const char *text, size_t n_bytes,
                         struct error *err);
/* Reads the value at the cursor and sets the field. Errors as kserve_fields_set, or of the cursor,
 * which name no field. */
int kserve_sampling_value(struct kserve_request *request, struct json_cursor *cursor,
                          const struct kserve_field *field, const char *label, struct error *err);
