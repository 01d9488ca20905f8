#include "server/gateway/tgi/tgi_request.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/base/error_names.h"
#include "server/gateway/http/http_fields.h"

enum { DEFAULT_MAX_NEW_TOKENS = 1024 };

#define AT(member)        HTTP_FIELD(struct tgi_request, member)
#define HAS(part, member) HTTP_FIELD_HAS(struct tgi_request, part, member)

static const struct http_field parameter_fields[] = {
    {"best_of", HAS(, best_of)},
    {"temperature", HAS(sampling., temperature)},
    {"repetition_penalty", HAS(sampling., repetition_penalty)},
    {"frequency_penalty", HAS(sampling., frequency_penalty)},
    {"top_k", HAS(sampling., top_k)},
    {"top_p", HAS(sampling., top_p)},
    {"typical_p", HAS(sampling., typical_p)},
    {"do_sample", AT(do_sample)},
    {"max_new_tokens", HAS(stopping., max_tokens)},
    {"return_full_text", AT(full_text), .has = offsetof(struct tgi_request, has_return_full_text)},
    {"stop", HTTP_FIELD_LIST(struct tgi_request, stopping., stop)},
    {"truncate", HAS(output., truncate)},
    {"details", AT(details)},
    {"decoder_input_details", AT(decoder_input_details)},
    {"seed", HAS(sampling., seed)},
    {"top_n_tokens", HAS(, top_n_tokens)},
    /* Load generators send this one; text-generation-inference itself ignores the field. */
    {"ignore_eos_token", HAS(stopping., ignore_eos)},
    {"watermark", http_fields_refuse, .neutral = 0},
    {"grammar", http_fields_refuse, .neutral = 0},
    {"adapter_id", http_fields_refuse, .neutral = 0},
};

static const struct http_table parameters = {HTTP_TABLE(parameter_fields), .is_flat = true};

static const struct http_field fields[] = {
    {"inputs", AT(inputs)},
    {"parameters", http_fields_object, .table = &parameters},
    {"stream", AT(streams)},
    {"add_special_tokens", HAS(, adds_special_tokens)},
};

static const struct http_table table = {HTTP_TABLE(fields)};

/* Rules of text-generation-inference that concern one field. The server checks the other ranges. */
static int check_values(const struct tgi_request *request, struct error *err)
{
    const Sluice__V1__Sampling *sampling = &request->sampling;
    if (!request->inputs || !request->inputs[0])
        return error_field(err, "inputs", "is missing or empty");
    if (sampling->has_temperature && !(sampling->temperature > 0.0f))
        return error_field(err, "temperature",
                           "must be above 0; a request without sampling parameters is greedy");
    if (sampling->has_top_k && sampling->top_k == 0)
        return error_field(err, "top_k", "must be at least 1");
    if (request->has_best_of && request->best_of == 0)
        return error_field(err, "best_of", "must be at least 1");
    if (!request->has_adds_special_tokens || request->adds_special_tokens)
        return 0;
    /* The proto has no prompt without the tokens that the model expects before a text. */
    error_set(err, STATUS_UNIMPLEMENTED, "add_special_tokens: only true is built");
    snprintf(err->field, sizeof(err->field), "add_special_tokens");
    return STATUS_UNIMPLEMENTED;
}

/* Rules that concern several fields. */
static int check_together(const struct tgi_request *request, struct error *err)
{
    bool many = request->has_best_of && request->best_of > 1;
    if (many && !request->samples)
        return error_field(err, "best_of", "needs do_sample or a sampling parameter above 1");
    if (many && request->sampling.has_seed)
        return error_field(err, "seed", "contradicts best_of above 1");
    if (many && request->streams)
        return error_field(err, "best_of", "must be 1 for a stream");
    if (request->decoder_input_details && request->streams)
        return error_field(err, "decoder_input_details", "is not given in streams");
    return 0;
}

/* Sets a sampling field that the body left out, so that the model's default has no effect. */
#define SET_DEFAULT(sampling, member, value)                                                       \
    do {                                                                                           \
        if (!(sampling)->has_##member)                                                             \
            (sampling)->member = (value);                                                          \
        (sampling)->has_##member = true;                                                           \
    } while (0)

static void fill_sampling(struct tgi_request *request)
{
    Sluice__V1__Sampling *sampling = &request->sampling;
    uint32_t n = request->has_best_of ? request->best_of : 1;
    SET_DEFAULT(sampling, repetition_penalty, 1.0f);
    SET_DEFAULT(sampling, temperature, request->samples ? 1.0f : 0.0f);
    SET_DEFAULT(sampling, top_k, 0);
    SET_DEFAULT(sampling, top_p, 1.0f);
    SET_DEFAULT(sampling, min_p, 0.0f);
    SET_DEFAULT(sampling, typical_p, 1.0f);
    SET_DEFAULT(sampling, do_sample, request->samples);
    SET_DEFAULT(sampling, n, n); /* the answer has every choice of best_of */
}

/* Fills the request of the proto. */
static void fill_request(struct tgi_request *request)
{
    Sluice__V1__Stopping *stopping = &request->stopping;
    Sluice__V1__Output *output = &request->output;
    if (!stopping->has_max_tokens)
        stopping->max_tokens = DEFAULT_MAX_NEW_TOKENS;
    stopping->has_max_tokens = true;
    /* The end token is an event, and a stop text is part of the answer. */
    stopping->has_include_stop = stopping->include_stop = true;
    request->details |= request->decoder_input_details;
    output->top_n = request->top_n_tokens;
    output->has_top_n = request->has_top_n_tokens;
    output->logprobs =
        request->details || request->streams || output->top_n > 0 || request->sampling.n > 1;
    output->prompt_logprobs = request->decoder_input_details;
    request->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request->request.text = request->inputs;
    request->request.parse_special_tokens = true; /* clients render templates themselves */
}

static int complete(struct tgi_request *request, enum tgi_route route, struct error *err)
{
    const Sluice__V1__Sampling *sampling = &request->sampling;
    if (route != TGI_ROUTE_COMPAT)
        request->streams = route == TGI_ROUTE_STREAM;
    else if (!request->has_return_full_text)
        request->full_text = true;
    request->samples = request->do_sample || sampling->has_temperature || sampling->has_top_k ||
                       sampling->has_top_p || sampling->has_typical_p;
    int rc = check_values(request, err);
    if (!rc)
        rc = check_together(request, err);
    if (!rc) {
        fill_sampling(request);
        fill_request(request);
    }
    return rc;
}

int tgi_request_read(struct tgi_request *request, enum tgi_route route, bool is_strict,
                     const char *body, size_t n_bytes, struct error *err)
{
    struct http_fields r = {.body = {.arena = &request->arena, .err = err},
                            .ignored = &request->ignored,
                            .is_strict = is_strict,
                            .out = request};
    memset(request, 0, sizeof(*request));
    arena_init(&request->arena, 0, 0);
    strbuf_init(&request->ignored, 0);
    sluice__v1__generate_request__init(&request->request);
    sluice__v1__sampling__init(&request->sampling);
    sluice__v1__stopping__init(&request->stopping);
    sluice__v1__output__init(&request->output);
    request->request.sampling = &request->sampling;
    request->request.stopping = &request->stopping;
    request->request.output = &request->output;
    int rc = http_fields_read_body(&r, body, n_bytes, &table);
    return rc ? rc : complete(request, route, err);
}

void tgi_request_fini(struct tgi_request *request)
{
    arena_fini(&request->arena);
    strbuf_fini(&request->ignored);
}

void tgi_request_name_field(struct error *err)
{
    static const struct error_name names[] = {{"stopping.max_tokens", "max_new_tokens"},
                                              {"output.top_n", "top_n_tokens"},
                                              {"sampling.n", "best_of"},
                                              {"prompt", "inputs"},
                                              {"sampling.", ""},
                                              {"stopping.", ""},
                                              {"output.", ""},
                                              {NULL, NULL}};
    error_names_apply(err, names);
}
