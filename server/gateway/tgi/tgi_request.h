/* tgi_request.h: reads the body of POST /, /generate and /generate_stream into a request of the
 * proto, with the defaults and rules of text-generation-inference 3. Plain functions; any thread.
 *
 * The sampling defaults are those of text-generation-inference, and not the model's: greedy, unless
 * do_sample or a sampling parameter is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

/* The paths differ in how they answer. */
enum tgi_route {
    TGI_ROUTE_COMPAT,   /* POST /: a list or events, as the field "stream" says */
    TGI_ROUTE_GENERATE, /* POST /generate: an object */
    TGI_ROUTE_STREAM,   /* POST /generate_stream: events */
};

struct tgi_request {
    struct arena arena;                  /* memory of everything below */
    Sluice__V1__GenerateRequest request; /* without a model */
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
    char *inputs;
    bool streams;
    bool details;               /* the answer describes each token */
    bool decoder_input_details; /* and each token of the prompt */
    bool full_text;             /* the generated text begins with `inputs` */
    bool samples;               /* not greedy */
    struct strbuf ignored;      /* names of fields without effect, between commas */

    /* As the body has them. */
    protobuf_c_boolean has_return_full_text, has_best_of, has_top_n_tokens, has_adds_special_tokens;
    bool do_sample, adds_special_tokens;
    uint32_t best_of, top_n_tokens;
};

/* INVALID_ARGUMENT with the field's name as text-generation-inference spells it, or UNIMPLEMENTED.
 * Call fini in any case. */
int tgi_request_read(struct tgi_request *request, enum tgi_route route, bool is_strict,
                     const char *body, size_t n_bytes, struct error *err);
void tgi_request_fini(struct tgi_request *request);

/* Rewrites the field of an error from the proto's spelling: "stopping.max_tokens" becomes
 * "max_new_tokens". */
void tgi_request_name_field(struct error *err);
