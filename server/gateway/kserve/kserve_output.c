#include "server/gateway/kserve/kserve_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/ranked_logprobs.h"
#include "server/gateway/kserve/kserve_part.h"

const struct kserve_output_facts kserve_output_facts[N_KSERVE_OUTPUTS] = {
    [KSERVE_OUTPUT_TEXT] = {"text_output", "BYTES", INFERENCE__DATA_TYPE__TYPE_STRING},
    [KSERVE_OUTPUT_FINISH_REASON] = {"finish_reason", "BYTES", INFERENCE__DATA_TYPE__TYPE_STRING},
    [KSERVE_OUTPUT_CUMULATIVE_LOGPROB] = {"cumulative_logprob", "FP32",
                                          INFERENCE__DATA_TYPE__TYPE_FP32},
    [KSERVE_OUTPUT_LOGPROBS] = {"logprobs", "BYTES", INFERENCE__DATA_TYPE__TYPE_STRING},
    [KSERVE_OUTPUT_NUM_INPUT_TOKENS] = {"num_input_tokens", "UINT32",
                                        INFERENCE__DATA_TYPE__TYPE_UINT32},
    [KSERVE_OUTPUT_NUM_OUTPUT_TOKENS] = {"num_output_tokens", "UINT32",
                                         INFERENCE__DATA_TYPE__TYPE_UINT32},
    [KSERVE_OUTPUT_CUM_LOG_PROBS] = {"cum_log_probs", "FP32", INFERENCE__DATA_TYPE__TYPE_FP32},
    [KSERVE_OUTPUT_OUTPUT_LOG_PROBS] = {"output_log_probs", "FP32",
                                        INFERENCE__DATA_TYPE__TYPE_FP32},
};

int kserve_output_find(const char *name)
{
    for (int i = 0; i < N_KSERVE_OUTPUTS; i++)
        if (strcmp(kserve_output_facts[i].name, name) == 0)
            return i;
    return -1;
}

struct kserve_answer *kserve_output_create(const struct kserve_request *request,
                                           const Inference__ModelInferRequest *message,
                                           bool on_stream)
{
    struct kserve_answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return NULL;
    snprintf(answer->id, sizeof(answer->id), "%s", message->id);
    answer->given = request->given;
    answer->outputs = request->outputs;
    answer->n_choices = request->sampling.has_n ? request->sampling.n : 1;
    answer->prepends_prompt = request->prepends_prompt;
    answer->empty_final = request->empty_final;
    answer->on_stream = on_stream;
    return answer;
}

/* --- contents --- */

static void add_u32(struct strbuf *out, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                                    (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    strbuf_add(out, bytes, sizeof(bytes));
}

static void add_float(struct strbuf *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    add_u32(out, bits);
}

/* An element of type BYTES, in two pieces. */
static void add_text(struct strbuf *out, const char *first, size_t n_first, const char *second,
                     size_t n_second)
{
    add_u32(out, (uint32_t)(n_first + n_second));
    strbuf_add(out, first, n_first);
    strbuf_add(out, second, n_second);
}

static void add_logprobs(struct strbuf *out, const struct kserve_part *part)
{
    struct strbuf json;
    strbuf_init(&json, 0);
    if (part->n_logprobs)
        ranked_logprobs_write(part->logprobs, part->n_logprobs, UINT32_MAX, &json);
    else
        strbuf_add_str(&json, "null");
    add_text(out, strbuf_str(&json), json.n_bytes, "", 0);
    out->failed |= strbuf_failed(&json);
    strbuf_fini(&json);
}

/* Writes the elements of an output, and returns their number. */
static size_t write_output(const struct kserve_answer *answer, enum kserve_output output,
                           const char *prompt, const struct kserve_part *parts, struct strbuf *out)
{
    size_t n = answer->n_choices;
    if (output == KSERVE_OUTPUT_NUM_INPUT_TOKENS) {
        add_u32(out, answer->n_prompt_tokens);
        return 1;
    }
    if (output == KSERVE_OUTPUT_OUTPUT_LOG_PROBS) { /* a single choice, see kserve_request.c */
        for (size_t i = 0; i < parts[0].n_logprobs; i++)
            add_float(out, parts[0].logprobs[i]->logprob);
        return parts[0].n_logprobs;
    }
    for (size_t i = 0; i < n; i++) {
        const char *reason = parts[i].reason ? parts[i].reason : "None";
        if (output == KSERVE_OUTPUT_TEXT)
            add_text(out, prompt, strlen(prompt), parts[i].text, strlen(parts[i].text));
        else if (output == KSERVE_OUTPUT_FINISH_REASON)
            add_text(out, reason, strlen(reason), "", 0);
        else if (output == KSERVE_OUTPUT_LOGPROBS)
            add_logprobs(out, &parts[i]);
        else if (output == KSERVE_OUTPUT_NUM_OUTPUT_TOKENS)
            add_u32(out, (uint32_t)parts[i].n_tokens);
        else
            add_float(out, (float)answer->logprob_sums[i]);
    }
    return n;
}

/* --- a response --- */

struct response {
    Inference__ModelInferResponse message;
    Inference__ModelInferResponse__InferOutputTensor outputs[N_KSERVE_OUTPUTS];
    Inference__ModelInferResponse__InferOutputTensor *list[N_KSERVE_OUTPUTS];
    ProtobufCBinaryData raw[N_KSERVE_OUTPUTS];
    struct strbuf contents[N_KSERVE_OUTPUTS];
    int64_t shapes[N_KSERVE_OUTPUTS][2];
    Inference__ModelInferResponse__ParametersEntry entry, *entries[1];
    Inference__InferParameter final;
};

static void init_response(struct response *r, const struct kserve_answer *answer,
                          const struct relay *relay)
{
    inference__model_infer_response__init(&r->message);
    r->message.model_name = (char *)(uintptr_t)relay->model;
    r->message.model_version = (char *)(uintptr_t)relay->version;
    r->message.id = (char *)(uintptr_t)answer->id;
    r->message.outputs = r->list;
    r->message.raw_output_contents = r->raw;
}

static void mark_final(struct response *r, bool is_final)
{
    static char key[] = "triton_final_response";
    inference__infer_parameter__init(&r->final);
    inference__model_infer_response__parameters_entry__init(&r->entry);
    r->final.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
    r->final.bool_param = is_final;
    r->entry.key = key;
    r->entry.value = &r->final;
    r->entries[0] = &r->entry;
    r->message.parameters = r->entries;
    r->message.n_parameters = 1;
}

static void add_output(struct response *r, const struct kserve_answer *answer,
                       enum kserve_output output, const char *prompt,
                       const struct kserve_part *parts)
{
    size_t i = r->message.n_outputs++;
    Inference__ModelInferResponse__InferOutputTensor *tensor = &r->outputs[i];
    struct strbuf *contents = &r->contents[i];
    inference__model_infer_response__infer_output_tensor__init(tensor);
    strbuf_init(contents, 0);
    size_t n = write_output(answer, output, prompt, parts, contents);
    tensor->name = (char *)(uintptr_t)kserve_output_facts[output].name;
    tensor->datatype = (char *)(uintptr_t)kserve_output_facts[output].datatype;
    tensor->shape = r->shapes[i];
    tensor->n_shape = output == KSERVE_OUTPUT_OUTPUT_LOG_PROBS ? 2 : 1;
    r->shapes[i][0] = tensor->n_shape == 2 ? 1 : (int64_t)n;
    r->shapes[i][1] = (int64_t)n;
    r->list[i] = tensor;
    r->raw[i] = (ProtobufCBinaryData){contents->n_bytes, (uint8_t *)contents->data};
    r->message.n_raw_output_contents++;
}

/* Puts a response into `out`, in the message of the RPC. */
static void put_message(const struct kserve_answer *answer, Inference__ModelInferResponse *message,
                        struct rpc_out *out)
{
    Inference__ModelStreamInferResponse frame = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
    frame.infer_response = message;
    rpc_out_put(out, answer->on_stream ? &frame.base : &message->base);
}

static void put_parts(const struct kserve_answer *answer, const struct relay *relay,
                      const struct kserve_part *parts, bool with_outputs, bool is_final,
                      struct rpc_out *out)
{
    const char *prompt = answer->prepends_prompt ? relay->request->text : "";
    struct response r;
    bool failed = false;
    init_response(&r, answer, relay);
    if (answer->on_stream)
        mark_final(&r, is_final);
    for (int i = 0; i < N_KSERVE_OUTPUTS && with_outputs; i++)
        if (answer->outputs & 1u << i)
            add_output(&r, answer, (enum kserve_output)i, prompt, parts);
    for (size_t i = 0; i < r.message.n_outputs; i++)
        failed |= strbuf_failed(&r.contents[i]);
    if (failed && answer->on_stream) {
        struct error err;
        error_no_memory(&err);
        kserve_output_put_error(answer->id, &err, out);
    } else if (failed) {
        struct error err;
        error_no_memory(&err);
        rpc_out_finish(out, &err); /* the first end counts */
    } else {
        put_message(answer, &r.message, out);
    }
    for (size_t i = 0; i < r.message.n_outputs; i++)
        strbuf_fini(&r.contents[i]);
}

void kserve_output_put_error(const char *id, const struct error *err, struct rpc_out *out)
{
    Inference__ModelStreamInferResponse frame = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
    Inference__ModelInferResponse message = INFERENCE__MODEL_INFER_RESPONSE__INIT;
    message.id = (char *)(uintptr_t)id;
    frame.infer_response = &message;
    frame.error_message = (char *)(uintptr_t)err->message;
    rpc_out_put(out, &frame.base);
}

/* --- frames --- */

bool kserve_output_put(struct kserve_answer *answer, const struct relay *relay,
                       const struct relay_frame *frame, struct rpc_out *out)
{
    static const unsigned text_alone = 1u << KSERVE_OUTPUT_TEXT;
    struct kserve_part parts[RELAY_MAX_CHOICES];
    kserve_part_fill(frame, parts, answer->logprob_sums);
    if (frame->kind == RELAY_FRAME_WHOLE) {
        answer->n_choices = (uint32_t)frame->whole->n_choices;
        if (frame->whole->prompt_info)
            answer->n_prompt_tokens = frame->whole->prompt_info->n_prompt_tokens;
        put_parts(answer, relay, parts, true, true, out);
    } else if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        answer->n_prompt_tokens = frame->prompt_info.n_prompt_tokens;
        return false;
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        put_parts(answer, relay, parts, true, false, out);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        bool says_nothing = answer->outputs == text_alone;
        if (!frame->last && says_nothing)
            return false;
        put_parts(answer, relay, parts, !(answer->empty_final && says_nothing), frame->last, out);
    } else if (answer->on_stream) {
        struct error err = *frame->error;
        kserve_request_name_field(answer->given, &err);
        kserve_output_put_error(answer->id, &err, out);
    } else {
        return false;
    }
    return true;
}
