#include "server/gateway/vllm/vllm_request.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/base/error_names.h"

typedef Vllm__Grpc__Engine__SamplingParams vllm_sampling;

static int not_built(struct error *err, const char *field, const char *rule)
{
    error_field(err, field, "%s", rule);
    err->status = STATUS_UNIMPLEMENTED;
    return error_reason(err, REASON_NOT_BUILT);
}

/* --- sampling_params --- */

/* A value of 0 means that the field was not given. */
static void take_float(float value, float *out, protobuf_c_boolean *out_has)
{
    *out = value;
    *out_has = value < 0.0f || value > 0.0f || value != value;
}

static void take_u32(uint32_t value, uint32_t *out, protobuf_c_boolean *out_has)
{
    *out = value;
    *out_has = value != 0;
}

static void take_flag(protobuf_c_boolean value, protobuf_c_boolean *out,
                      protobuf_c_boolean *out_has)
{
    *out = *out_has = value;
}

static int check_constraint(const vllm_sampling *params, struct error *err)
{
    const char *name;
    switch (params->constraint_case) {
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA:
        name = "sampling_params.json_schema";
        break;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX:
        name = "sampling_params.regex";
        break;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR:
        name = "sampling_params.grammar";
        break;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG:
        name = "sampling_params.structural_tag";
        break;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT:
        name = "sampling_params.json_object";
        break;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE:
        name = "sampling_params.choice";
        break;
    default:
        if (params->grammar_from_first_token)
            return error_field(err, "sampling_params.grammar_from_first_token",
                               "needs a constraint");
        return 0;
    }
    return not_built(err, name, "constraints are not built");
}

/* Reads a number of alternatives; absent: -1. */
static int read_top(bool given, int32_t value, const char *field, int32_t *out, struct error *err)
{
    *out = given ? value : -1;
    if (given && value < 0)
        return error_field(err, field, "%" PRId32 " is below 0; all alternatives are not built",
                           value);
    return 0;
}

static int read_logprobs(struct vllm_request *request, const vllm_sampling *params,
                         struct error *err)
{
    int rc = read_top(params->has_logprobs, params->logprobs, "sampling_params.logprobs",
                      &request->n_top, err);
    if (!rc)
        rc = read_top(params->has_prompt_logprobs, params->prompt_logprobs,
                      "sampling_params.prompt_logprobs", &request->n_prompt_top, err);
    if (rc)
        return rc;
    int32_t most = request->n_top > request->n_prompt_top ? request->n_top : request->n_prompt_top;
    request->output.logprobs = request->n_top >= 0;
    request->output.prompt_logprobs = request->n_prompt_top >= 0;
    request->output.has_top_n = most > 0;
    request->output.top_n = most > 0 ? (uint32_t)most : 0;
    return 0;
}

static int read_logit_bias(struct vllm_request *request, const vllm_sampling *params,
                           struct error *err)
{
    size_t n = params->n_logit_bias;
    Sluice__V1__LogitBias **list = arena_calloc(&request->arena, n + 1, sizeof(*list));
    Sluice__V1__LogitBias *rows = arena_calloc(&request->arena, n + 1, sizeof(*rows));
    if (!list || !rows)
        return error_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry *entry = params->logit_bias[i];
        if (entry->key < 0)
            return error_field(err, "sampling_params.logit_bias", "%" PRId32 " is no token id",
                               entry->key);
        sluice__v1__logit_bias__init(&rows[i]);
        rows[i].token_id = (uint32_t)entry->key;
        rows[i].bias = entry->value;
        list[i] = &rows[i];
    }
    request->sampling.logit_bias = list;
    request->sampling.n_logit_bias = n;
    return 0;
}

static void read_stopping(struct vllm_request *request, const vllm_sampling *params)
{
    Sluice__V1__Stopping *stopping = &request->stopping;
    stopping->has_max_tokens = params->has_max_tokens;
    stopping->max_tokens = params->max_tokens;
    take_u32(params->min_tokens, &stopping->min_tokens, &stopping->has_min_tokens);
    take_flag(params->ignore_eos, &stopping->ignore_eos, &stopping->has_ignore_eos);
    take_flag(params->include_stop_str_in_output, &stopping->include_stop,
              &stopping->has_include_stop);
    stopping->stop = params->stop;
    stopping->n_stop = params->n_stop;
    stopping->stop_token_ids = params->stop_token_ids;
    stopping->n_stop_token_ids = params->n_stop_token_ids;
}

static int read_sampling(struct vllm_request *request, const vllm_sampling *params,
                         struct error *err)
{
    Sluice__V1__Sampling *sampling = &request->sampling;
    int rc = check_constraint(params, err);
    if (!rc)
        rc = read_logprobs(request, params, err);
    if (!rc)
        rc = read_logit_bias(request, params, err);
    if (rc)
        return rc;
    sampling->has_temperature = params->has_temperature;
    sampling->temperature = params->temperature;
    take_float(params->top_p, &sampling->top_p, &sampling->has_top_p);
    take_u32(params->top_k, &sampling->top_k, &sampling->has_top_k);
    take_float(params->min_p, &sampling->min_p, &sampling->has_min_p);
    take_float(params->frequency_penalty, &sampling->frequency_penalty,
               &sampling->has_frequency_penalty);
    take_float(params->presence_penalty, &sampling->presence_penalty,
               &sampling->has_presence_penalty);
    take_float(params->repetition_penalty, &sampling->repetition_penalty,
               &sampling->has_repetition_penalty);
    take_u32(params->n, &sampling->n, &sampling->has_n);
    sampling->has_seed = params->has_seed;
    sampling->seed = (uint64_t)(int64_t)params->seed;
    read_stopping(request, params);
    request->output.has_skip_special_tokens = true;
    request->output.skip_special_tokens = params->skip_special_tokens;
    request->output.has_truncate = params->has_truncate_prompt_tokens;
    if (params->has_truncate_prompt_tokens && params->truncate_prompt_tokens < 1)
        return error_field(err, "sampling_params.truncate_prompt_tokens",
                           "%" PRId32 " is not in [1, %d]", params->truncate_prompt_tokens,
                           INT32_MAX);
    request->output.truncate = (uint32_t)params->truncate_prompt_tokens;
    return 0;
}

/* --- the request --- */

static int check_unbuilt(const Vllm__Grpc__Engine__GenerateRequest *message, struct error *err)
{
    static const char images[] = "images, sound and video are not built";
    static const char transfer[] = "KV transfer between servers is not built";
    if (message->mm_inputs)
        return not_built(err, "mm_inputs", images);
    if (message->n_extra_mm_inputs)
        return not_built(err, "extra_mm_inputs", images);
    if (message->media_refs)
        return not_built(err, "media_refs", images);
    if (message->kv_transfer_params)
        return not_built(err, "kv_transfer_params", transfer);
    if (message->has_kv_transfer_params_json)
        return not_built(err, "kv_transfer_params_json", transfer);
    if (message->has_data_parallel_rank && message->data_parallel_rank != 0)
        return error_field(err, "data_parallel_rank", "%" PRId32 "; there is rank 0 alone",
                           message->data_parallel_rank);
    return 0;
}

static int read_input(struct vllm_request *request,
                      const Vllm__Grpc__Engine__GenerateRequest *message, struct error *err)
{
    Sluice__V1__GenerateRequest *generate = &request->generate;
    if (message->input_case == VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT) {
        generate->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        generate->text = message->text;
        generate->parse_special_tokens = true; /* the client has rendered the chat template */
        return 0;
    }
    if (message->input_case != VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED)
        return error_field(err, "input", "is missing; give tokenized or text");
    generate->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    generate->token_ids = &request->ids;
    request->ids.ids = message->tokenized->input_ids;
    request->ids.n_ids = message->tokenized->n_input_ids;
    return 0;
}

int vllm_request_read(struct vllm_request *out_request,
                      const Vllm__Grpc__Engine__GenerateRequest *message, struct error *err)
{
    struct vllm_request *request = out_request;
    *request = (struct vllm_request){.generate = SLUICE__V1__GENERATE_REQUEST__INIT,
                                     .sampling = SLUICE__V1__SAMPLING__INIT,
                                     .stopping = SLUICE__V1__STOPPING__INIT,
                                     .output = SLUICE__V1__OUTPUT__INIT,
                                     .ids = SLUICE__V1__TOKEN_IDS__INIT,
                                     .n_top = -1,
                                     .n_prompt_top = -1};
    arena_init(&request->arena, 0, 0);
    request->generate.sampling = &request->sampling;
    request->generate.stopping = &request->stopping;
    request->generate.output = &request->output;
    request->generate.request_id = message->request_id;
    int rc = check_unbuilt(message, err);
    if (!rc)
        rc = read_input(request, message, err);
    if (!rc && message->sampling_params)
        rc = read_sampling(request, message->sampling_params, err);
    return rc;
}

void vllm_request_fini(struct vllm_request *request)
{
    arena_fini(&request->arena);
}

void vllm_request_name_field(struct error *err)
{
    static const struct error_name names[] = {
        {"model", "x-sluice-model"},
        {"version", "x-sluice-model"},
        {"token_ids.ids", "tokenized.input_ids"},
        {"output.top_n", "sampling_params.logprobs"},
        {"output.truncate", "sampling_params.truncate_prompt_tokens"},
        {"stopping.include_stop", "sampling_params.include_stop_str_in_output"},
        {"sampling.", "sampling_params."},
        {"stopping.", "sampling_params."},
        {"output.", "sampling_params."},
        {NULL, NULL},
    };
    error_names_apply(err, names);
}
