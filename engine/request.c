#include "engine/request.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/request_output.h"
#include "engine/stop.h"

static bool wants_counts(const struct engine_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

static bool copy_ids(const uint32_t *ids, uint32_t n, uint32_t **out_copy)
{
    *out_copy = malloc((n ? n : 1) * sizeof(*ids));
    if (*out_copy && n)
        memcpy(*out_copy, ids, n * sizeof(*ids));
    return *out_copy != NULL;
}

/* End-of-sequence ids unless ignored, then the caller's. */
static bool copy_stop_ids(struct request *r, const struct engine_stopping *stopping,
                          const struct request_limits *limits)
{
    r->stop_ids =
        calloc(limits->n_end_ids + stopping->n_stop_token_ids + 1ull, sizeof(*r->stop_ids));
    if (!r->stop_ids)
        return false;
    for (uint32_t i = 0; i < limits->n_end_ids && !stopping->ignore_eos; i++)
        r->stop_ids[r->n_stop_ids++] = limits->end_ids[i];
    for (uint32_t i = 0; i < stopping->n_stop_token_ids; i++)
        r->stop_ids[r->n_stop_ids++] = stopping->stop_token_ids[i];
    return true;
}

static bool copy_biases(struct request *r, const struct engine_sampling *sampling)
{
    r->biases = calloc(sampling->n_logit_bias + r->n_stop_ids + 1ull, sizeof(*r->biases));
    if (!r->biases)
        return false;
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++)
        r->biases[r->n_biases++] = sampling->logit_bias[i];
    r->n_user_biases = r->n_biases;
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        r->biases[r->n_biases++] = (struct sample_bias){r->stop_ids[i], -INFINITY};
    return true;
}

static int hash_salt(struct request *r, const char *salt, struct error *err)
{
    struct sha256 *ctx;
    uint8_t digest[SHA256_BYTES];
    int rc = sha256_create(&ctx, err);
    if (rc)
        return rc;
    sha256_update(ctx, salt, strlen(salt));
    sha256_final(ctx, digest);
    memcpy(&r->salt, digest, sizeof(r->salt));
    return 0;
}

static bool init_choice(struct request *r, uint32_t i, const struct engine_resume *resume)
{
    struct sequence *seq = &r->choices[i];
    seq->request = r;
    seq->choice = i;
    seq->max_ids = r->max_tokens;
    /* calloc leaves pages of a large array untouched until they are needed. */
    seq->ids = calloc(seq->max_ids, sizeof(*seq->ids));
    if (!seq->ids)
        return false;
    if (r->want_logprobs) {
        seq->logprobs = calloc(seq->max_ids, sizeof(*seq->logprobs));
        if (!seq->logprobs)
            return false;
    }
    if (wants_counts(&r->sampling)) {
        if (!token_counts_init(&seq->counts, r->n_prompt + seq->max_ids))
            return false;
        for (uint32_t t = 0; t < r->n_prompt; t++)
            token_counts_add(&seq->counts, r->prompt[t], false);
    }
    for (uint32_t t = 0; resume && t < resume->n_ids; t++)
        sequence_append(seq, resume->ids[t]);
    seq->n_replayed = seq->n_ids;
    return true;
}

/* What a request may generate: its own limit, cut to what the context leaves. */
static uint32_t cut_max_tokens(const struct engine_request *req,
                               const struct request_limits *limits)
{
    uint32_t room = limits->context_tokens - req->n_prompt_ids;
    return req->stopping.max_tokens < room ? req->stopping.max_tokens : room;
}

static void copy_plain(struct request *r, const struct engine_request *req,
                       const struct request_limits *limits)
{
    r->user_data = req->user_data;
    r->n_prompt = req->n_prompt_ids;
    r->sampling = req->sampling;
    r->sampling.logit_bias = NULL;
    r->min_tokens = req->stopping.min_tokens;
    r->max_tokens = cut_max_tokens(req, limits);
    r->include_stop = req->stopping.include_stop;
    r->want_logprobs = req->want_logprobs;
    r->n_top_logprobs = req->n_top_logprobs;
    r->keep_special_tokens = req->keep_special_tokens;
    r->priority = req->priority;
    r->deadline_ns = req->deadline_ns;
    r->n_choices = r->n_live = req->sampling.n;
    atomic_init(&r->n_refs, 1);
}

int request_create(const struct engine_request *req, const struct request_limits *limits,
                   struct request **out_request, struct error *err)
{
    int rc = 0;
    struct request *r = calloc(1, sizeof(*r));
    if (!r)
        goto no_memory;
    copy_plain(r, req, limits);
    r->caller = strdup(req->caller ? req->caller : "");
    r->choices = calloc(r->n_choices, sizeof(*r->choices));
    if (!r->caller || !r->choices || !copy_ids(req->prompt_ids, r->n_prompt, &r->prompt) ||
        !copy_stop_ids(r, &req->stopping, limits) || !copy_biases(r, &req->sampling))
        goto no_memory;
    if (req->stopping.n_stop) {
        rc = stop_set_create(req->stopping.stop, req->stopping.n_stop, r->include_stop,
                             &r->stop_set, err);
        if (rc)
            goto out;
    }
    rc = hash_salt(r, req->cache_salt ? req->cache_salt : "", err);
    if (rc)
        goto out;
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (!init_choice(r, i, req->resume ? &req->resume[i] : NULL))
            goto no_memory;
    *out_request = r;
    return 0;
no_memory:
    rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a request of %u prompt tokens",
                   req->n_prompt_ids);
out:
    request_release(r);
    return rc;
}

void request_retain(struct request *r)
{
    atomic_fetch_add_explicit(&r->n_refs, 1, memory_order_relaxed);
}

void request_release(struct request *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; r->choices && i < r->n_choices; i++) {
        free(r->choices[i].ids);
        free(r->choices[i].logprobs);
        token_counts_fini(&r->choices[i].counts);
        request_output_destroy(r->choices[i].output);
    }
    stop_set_destroy(r->stop_set);
    free(r->choices);
    free(r->prompt);
    free(r->biases);
    free(r->stop_ids);
    free(r->caller);
    free(r);
}

void sequence_append(struct sequence *seq, uint32_t id)
{
    assert(seq->n_ids < seq->max_ids);
    seq->ids[seq->n_ids++] = id;
    if (seq->counts.capacity)
        token_counts_add(&seq->counts, id, true);
}

static bool resize_choice(struct sequence *seq, uint32_t max_ids)
{
    struct token_counts counts = {0};
    uint32_t *ids = realloc(seq->ids, max_ids * sizeof(*ids));
    if (!ids)
        return false;
    seq->ids = ids;
    if (seq->logprobs) {
        struct engine_logprob *logprobs = realloc(seq->logprobs, max_ids * sizeof(*logprobs));
        if (!logprobs)
            return false;
        seq->logprobs = logprobs;
    }
    if (seq->counts.capacity) {
        const struct request *r = seq->request;
        if (!token_counts_init(&counts, r->n_prompt + max_ids))
            return false;
        for (uint32_t i = 0; i < sequence_n_tokens(seq); i++)
            token_counts_add(&counts, sequence_token(seq, i), i >= r->n_prompt);
        token_counts_fini(&seq->counts);
        seq->counts = counts;
    }
    seq->max_ids = max_ids;
    return true;
}

bool request_resize(struct request *r, uint32_t max_tokens)
{
    if (max_tokens <= r->max_tokens) {
        r->max_tokens = max_tokens; /* arrays may stay larger */
        return true;
    }
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].max_ids < max_tokens && !resize_choice(&r->choices[i], max_tokens))
            return false;
    r->max_tokens = max_tokens;
    return true;
}

void sequence_sample_params(const struct sequence *seq, struct sample_params *out_params)
{
    const struct request *r = seq->request;
    const struct engine_sampling *s = &r->sampling;
    *out_params = (struct sample_params){
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .typical_p = s->typical_p,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .seed = s->seed,
        .choice = seq->choice,
        .position = seq->n_ids,
        .counts = seq->counts.counts,
        .n_counts = seq->counts.n,
        .biases = r->biases,
        .n_biases = seq->n_ids < r->min_tokens ? r->n_biases : r->n_user_biases,
        .n_top = r->want_logprobs ? r->n_top_logprobs : 0,
        .want_logprob = r->want_logprobs,
    };
}

bool request_is_stop_id(const struct request *request, uint32_t id)
{
    for (uint32_t i = 0; i < request->n_stop_ids; i++)
        if (request->stop_ids[i] == id)
            return true;
    return false;
}
