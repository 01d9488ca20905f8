#include "server/gateway/kserve/kserve_request.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/base/error_names.h"
#include "server/gateway/kserve/kserve_fields.h"
#include "server/gateway/kserve/kserve_output.h"

/* Sets the field of a tensor. */
static int read_tensor(struct kserve_request *request, const Inference__ModelInferRequest *message,
                       size_t i, struct error *err)
{
    struct kserve_tensor tensor;
    int rc = kserve_tensor_open(message, i, &tensor, err);
    if (rc)
        return rc;
    const struct kserve_field *field =
        kserve_fields_find(KSERVE_TENSOR, tensor.name, tensor.name, err);
    if (!field)
        return err->status;
    if (tensor.n_elements > KSERVE_MAX_ELEMENTS)
        return error_field(err, tensor.name, "has %zu elements, limit %d", tensor.n_elements,
                           KSERVE_MAX_ELEMENTS);
    struct kserve_value *values =
        arena_calloc(&request->arena, tensor.n_elements + 1, sizeof(*values));
    size_t n = 0;
    if (!values)
        return error_no_memory(err);
    while (kserve_tensor_next(&tensor, &values[n]))
        n++;
    return kserve_fields_set(request, field, tensor.name, values, n, err);
}

static int read_tensors(struct kserve_request *request, const Inference__ModelInferRequest *message,
                        struct error *err)
{
    int rc = 0;
    if (message->n_raw_input_contents && !message->n_inputs)
        return error_field(err, "raw_input_contents", "has %zu entries for 0 inputs",
                           message->n_raw_input_contents);
    for (size_t i = 0; !rc && i < message->n_inputs; i++)
        rc = read_tensor(request, message, i, err);
    return rc;
}

/* Sets the fields that no tensor has set. */
static int read_parameters(struct kserve_request *request,
                           const Inference__ModelInferRequest *message, struct error *err)
{
    uint64_t by_tensor = request->given;
    int rc = 0;
    for (size_t i = 0; !rc && i < message->n_parameters; i++) {
        const char *name = message->parameters[i]->key;
        struct kserve_value value;
        const struct kserve_field *field = kserve_fields_find(KSERVE_PARAMETER, name, name, err);
        if (!field)
            return err->status;
        rc = kserve_parameter_value(name, message->parameters[i]->value, &value, err);
        if (!rc && !kserve_fields_is_in(field, by_tensor))
            rc = kserve_fields_set(request, field, name, &value, 1, err);
    }
    return rc;
}

static int read_outputs(struct kserve_request *request, const Inference__ModelInferRequest *message,
                        struct error *err)
{
    for (size_t i = 0; i < message->n_outputs; i++) {
        const Inference__ModelInferRequest__InferRequestedOutputTensor *output =
            message->outputs[i];
        if (output->n_parameters)
            return error_field(err, output->name,
                               "the output has the parameter \"%.64s\"; outputs have none "
                               "(classification and shared memory are not built)",
                               output->parameters[0]->key);
        int kind = kserve_output_find(output->name);
        if (kind < 0)
            return error_field(err, output->name[0] ? output->name : "outputs",
                               "is no output of this model");
        request->outputs |= 1u << kind;
    }
    if (!message->n_outputs)
        request->outputs |= 1u << KSERVE_OUTPUT_TEXT;
    return 0;
}

int kserve_request_complete(struct kserve_request *request, bool may_stream, struct error *err)
{
    static const unsigned of_logprobs =
        1u << KSERVE_OUTPUT_CUMULATIVE_LOGPROB | 1u << KSERVE_OUTPUT_LOGPROBS |
        1u << KSERVE_OUTPUT_CUM_LOG_PROBS | 1u << KSERVE_OUTPUT_OUTPUT_LOG_PROBS;
    uint32_t n = request->sampling.has_n ? request->sampling.n : 1;
    if (request->generate.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT__NOT_SET)
        return error_field(err, "text_input", "is missing; send a text, as BYTES of shape [1]");
    if (request->streams && !may_stream)
        return error_field(err, "stream",
                           "ModelInfer answers once; send the request on ModelStreamInfer");
    if (request->streams && request->has_exclude && !request->excludes_prompt)
        return error_field(err, "exclude_input_in_output",
                           "false needs stream false: a stream has no prompt in its text");
    if ((request->outputs & 1u << KSERVE_OUTPUT_OUTPUT_LOG_PROBS) && n > 1)
        return error_field(err, "return_log_probs",
                           "output_log_probs needs n 1, and n is %u; use return_logprobs", n);
    request->prepends_prompt = !request->streams && !request->excludes_prompt;
    if (request->outputs & of_logprobs)
        request->output.logprobs = true;
    if (!request->stopping.has_max_tokens) {
        request->stopping.has_max_tokens = true;
        request->stopping.max_tokens = KSERVE_DEFAULT_MAX_TOKENS;
    }
    return 0;
}

void kserve_request_init(struct kserve_request *request, const char *model, const char *version)
{
    *request = (struct kserve_request){.generate = SLUICE__V1__GENERATE_REQUEST__INIT,
                                       .sampling = SLUICE__V1__SAMPLING__INIT,
                                       .stopping = SLUICE__V1__STOPPING__INIT,
                                       .output = SLUICE__V1__OUTPUT__INIT};
    arena_init(&request->arena, 0, 0);
    request->generate.sampling = &request->sampling;
    request->generate.stopping = &request->stopping;
    request->generate.output = &request->output;
    request->generate.model = (char *)(uintptr_t)model;
    request->generate.version = (char *)(uintptr_t)version;
}

int kserve_request_read(struct kserve_request *out_request,
                        const Inference__ModelInferRequest *message, bool may_stream,
                        struct error *err)
{
    struct kserve_request *request = out_request;
    kserve_request_init(request, message->model_name, message->model_version);
    if (!message->model_name[0])
        return error_field(err, "model_name", "is empty");
    if (strlen(message->id) > KSERVE_MAX_ID_BYTES)
        return error_field(err, "id", "%zu bytes, limit %d", strlen(message->id),
                           KSERVE_MAX_ID_BYTES);
    int rc = read_tensors(request, message, err);
    if (!rc)
        rc = read_parameters(request, message, err);
    if (!rc && request->sampling_text)
        rc = kserve_sampling_read(request, request->sampling_text, request->n_sampling_text, err);
    if (!rc)
        rc = read_outputs(request, message, err);
    return rc ? rc : kserve_request_complete(request, may_stream, err);
}

void kserve_request_fini(struct kserve_request *request)
{
    arena_fini(&request->arena);
}

void kserve_request_name_field(uint64_t given, struct error *err)
{
    static const struct error_name names[] = {
        {"model", "model_name"}, {"version", "model_version"}, {NULL, NULL}};
    const char *name = err->field[0] ? kserve_fields_name(given, err->field) : NULL;
    if (!error_names_apply(err, names) && name)
        error_names_set(err, name);
}
