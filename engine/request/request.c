#include "engine/request/request.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "engine/request/draft.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"
#include "engine/request/stop.h"

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

/* Copies the end-of-sequence ids (unless ignored), then the caller's stop ids. */
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

static bool copy_biases(struct request *r, const struct engine_sampling *sampling,
                        const struct request_limits *limits)
{
    size_t most = 1ull + sampling->n_logit_bias + sampling->n_bad_words + limits->n_suppressed_ids +
                  r->n_stop_ids;
    r->biases = calloc(most, sizeof(*r->biases));
    if (!r->biases)
        return false;
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++)
        r->biases[r->n_biases++] = sampling->logit_bias[i];
    for (uint32_t i = 0; i < sampling->n_bad_words; i++)
        if (sampling->bad_words[i].n_ids == 1)
            r->biases[r->n_biases++] =
                (struct sample_bias){sampling->bad_words[i].ids[0], -INFINITY};
    for (uint32_t i = 0; i < limits->n_suppressed_ids; i++)
        r->biases[r->n_biases++] = (struct sample_bias){limits->suppressed_ids[i], -INFINITY};
    r->n_user_biases = r->n_biases;
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        r->biases[r->n_biases++] = (struct sample_bias){r->stop_ids[i], -INFINITY};
    return true;
}

static bool copy_bad_words(struct request *r, const struct engine_sampling *sampling)
{
    size_t n_words = 0, n_ids = 0;
    for (uint32_t i = 0; i < sampling->n_bad_words; i++)
        if (sampling->bad_words[i].n_ids > 1) {
            n_words++;
            n_ids += sampling->bad_words[i].n_ids;
        }
    if (!n_words)
        return true;
    r->bad_words = calloc(n_words, sizeof(*r->bad_words));
    r->bad_ids = calloc(n_ids, sizeof(*r->bad_ids));
    if (!r->bad_words || !r->bad_ids)
        return false;
    n_ids = 0;
    for (uint32_t i = 0; i < sampling->n_bad_words; i++) {
        const struct engine_bad_word *word = &sampling->bad_words[i];
        if (word->n_ids < 2)
            continue;
        memcpy(r->bad_ids + n_ids, word->ids, word->n_ids * sizeof(*word->ids));
        r->bad_words[r->n_bad_words++] = (struct bad_word){(uint32_t)n_ids, word->n_ids};
        n_ids += word->n_ids;
    }
    return true;
}

static bool make_mask(struct request *r, const struct engine_sampling *sampling,
                      const struct request_limits *limits)
{
    if (!sampling->n_allowed_ids && !limits->drawable)
        return true;
    /* The sampler reads one bit per column of the logits, and there may be more columns than
     * tokens. */
    uint32_t n_bits = limits->n_logits > limits->vocab_size ? limits->n_logits : limits->vocab_size;
    r->allowed_mask = calloc(n_bits / 32 + 1ull, sizeof(*r->allowed_mask));
    if (!r->allowed_mask)
        return false;
    for (uint32_t i = 0; i < sampling->n_allowed_ids; i++)
        r->allowed_mask[sampling->allowed_ids[i] / 32] |= 1u << (sampling->allowed_ids[i] % 32);
    for (uint32_t i = 0; limits->drawable && i < n_bits / 32 + 1; i++)
        r->allowed_mask[i] =
            limits->drawable[i] & (sampling->n_allowed_ids ? r->allowed_mask[i] : UINT32_MAX);
    return true;
}

/* The first prompt token has no token before it, and so no probability. */
static bool make_prompt_logprobs(struct request *r, const struct engine_request *req)
{
    if (!req->want_prompt_logprobs || req->n_prompt_logprobs_known >= r->n_prompt)
        return true;
    r->prompt_logprobs = calloc(r->n_prompt, sizeof(*r->prompt_logprobs));
    if (!r->prompt_logprobs)
        return false;
    r->prompt_logprobs[0] = (struct engine_logprob){.id = r->prompt[0], .logprob = NAN};
    r->n_scored = req->n_prompt_logprobs_known ? req->n_prompt_logprobs_known : 1;
    r->published.n_scored_read = req->n_prompt_logprobs_known;
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
    if (resume && resume->n_ids > seq->max_ids)
        seq->max_ids = resume->n_ids;
    /* calloc leaves the pages of a large array unmapped until their first use. */
    seq->ids = calloc(seq->max_ids, sizeof(*seq->ids));
    seq->text_bytes = calloc(seq->max_ids, sizeof(*seq->text_bytes));
    if (!seq->ids || !seq->text_bytes)
        return false;
    if (r->n_bad_words) {
        seq->step_biases = calloc(r->n_biases + r->n_bad_words, sizeof(*seq->step_biases));
        if (!seq->step_biases)
            return false;
    }
    if (r->want_logprobs) {
        seq->logprobs = calloc(seq->max_ids, sizeof(*seq->logprobs));
        if (!seq->logprobs)
            return false;
    }
    if (wants_counts(&r->sampling)) {
        if (!request_counts_init(&seq->counts, r->n_prompt + seq->max_ids))
            return false;
        for (uint32_t t = 0; t < r->n_prompt; t++)
            request_counts_add(&seq->counts, r->prompt[t], false);
    }
    if (r->max_draft_tokens) {
        if (r->drafts_by_model ? !draft_create_by_model(r->sampling.temperature > 0, &seq->draft)
                               : !draft_create(&seq->draft))
            return false;
    }
    for (uint32_t t = 0; resume && t < resume->n_ids; t++)
        sequence_append(seq, resume->ids[t]);
    seq->n_replayed = seq->n_ids;
    return true;
}

/* How many tokens may follow a prompt, by the context and the limits. */
static uint32_t room_after(uint32_t n_prompt, const struct request_limits *limits)
{
    uint32_t room = limits->context_tokens - n_prompt;
    uint32_t total = limits->max_total_tokens;
    return total > n_prompt && total - n_prompt < room ? total - n_prompt : room;
}

/* Sets the request's own limit, cut to the room there is. */
static void set_max_tokens(struct request *r, uint32_t max_tokens,
                           const struct request_limits *limits)
{
    uint32_t room = room_after(r->n_prompt, limits);
    r->cut_to_context = max_tokens > room;
    r->max_tokens = max_tokens < room ? max_tokens : room;
}

/* Most drafted tokens of a choice in a step: the request's number, else the engine's. */
static uint32_t resolve_drafts(const struct engine_speculate *s,
                               const struct request_limits *limits)
{
    if (s->drafter == ENGINE_DRAFTER_NONE ||
        (s->drafter == ENGINE_DRAFTER_DEFAULT && !s->max_draft_tokens))
        return s->drafter == ENGINE_DRAFTER_NONE ? 0 : limits->draft_tokens;
    if (s->max_draft_tokens)
        return s->max_draft_tokens;
    return limits->draft_tokens ? limits->draft_tokens : ENGINE_DEFAULT_DRAFT_TOKENS;
}

static void copy_plain(struct request *r, const struct engine_request *req,
                       const struct request_limits *limits)
{
    r->user_data = req->user_data;
    r->n_prompt = req->n_prompt_ids;
    r->sampling = req->sampling;
    r->sampling.logit_bias = NULL;
    r->sampling.allowed_ids = NULL;
    r->sampling.bad_words = NULL;
    r->min_tokens = req->stopping.min_tokens;
    set_max_tokens(r, req->stopping.max_tokens, limits);
    r->max_draft_tokens = resolve_drafts(&req->speculate, limits);
    r->drafts_by_model =
        req->speculate.drafter == ENGINE_DRAFTER_MODEL ||
        (req->speculate.drafter == ENGINE_DRAFTER_DEFAULT && limits->has_draft_model);
    r->include_stop = req->stopping.include_stop;
    r->want_logprobs = req->want_logprobs;
    r->n_top_logprobs = req->n_top_logprobs;
    r->keep_special_tokens = req->keep_special_tokens;
    r->return_full_text = req->return_full_text;
    r->priority = req->priority;
    r->deadline_ns = req->deadline_ns;
    r->arrival = (uint64_t)(req->arrived_ns ? req->arrived_ns : clock_now_ns());
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
        !copy_stop_ids(r, &req->stopping, limits) || !copy_biases(r, &req->sampling, limits) ||
        !copy_bad_words(r, &req->sampling) || !make_mask(r, &req->sampling, limits) ||
        !make_prompt_logprobs(r, req))
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

void request_stop_change_destroy(struct request_stop_change *change)
{
    if (!change)
        return;
    for (uint32_t i = 0; i < ENGINE_MAX_CHOICES; i++)
        stop_matcher_destroy(change->matchers[i]);
    stop_set_destroy(change->set);
    free(change);
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
        free(r->choices[i].text_bytes);
        free(r->choices[i].step_biases);
        free(r->choices[i].logprobs);
        request_counts_fini(&r->choices[i].counts);
        draft_destroy(r->choices[i].draft);
        request_output_destroy(r->choices[i].output);
    }
    stop_set_destroy(r->stop_set);
    request_stop_change_destroy(atomic_load(&r->new_stops));
    free(r->choices);
    free(r->prompt);
    free(r->prompt_logprobs);
    free(r->biases);
    free(r->allowed_mask);
    free(r->bad_words);
    free(r->bad_ids);
    free(r->stop_ids);
    free(r->caller);
    free(r);
}

static bool resize_choice(struct sequence *seq, uint32_t max_ids)
{
    struct request_counts counts = {0};
    uint32_t *ids = realloc(seq->ids, max_ids * sizeof(*ids));
    if (!ids)
        return false;
    seq->ids = ids;
    uint32_t *text_bytes = realloc(seq->text_bytes, max_ids * sizeof(*text_bytes));
    if (!text_bytes)
        return false;
    memset(text_bytes + seq->max_ids, 0, (max_ids - seq->max_ids) * sizeof(*text_bytes));
    seq->text_bytes = text_bytes;
    if (seq->logprobs) {
        struct engine_logprob *logprobs = realloc(seq->logprobs, max_ids * sizeof(*logprobs));
        if (!logprobs)
            return false;
        seq->logprobs = logprobs;
    }
    if (seq->counts.capacity) {
        const struct request *r = seq->request;
        if (!request_counts_init(&counts, r->n_prompt + max_ids))
            return false;
        for (uint32_t i = 0; i < sequence_n_tokens(seq); i++)
            request_counts_add(&counts, sequence_token(seq, i), i >= r->n_prompt);
        request_counts_fini(&seq->counts);
        seq->counts = counts;
    }
    seq->max_ids = max_ids;
    return true;
}

bool request_resize(struct request *r, uint32_t max_tokens, const struct request_limits *limits)
{
    uint32_t room = room_after(r->n_prompt, limits);
    uint32_t n = max_tokens < room ? max_tokens : room;
    for (uint32_t i = 0; i < r->n_choices; i++) /* arrays may be larger already */
        if (r->choices[i].max_ids < n && !resize_choice(&r->choices[i], n))
            return false;
    set_max_tokens(r, max_tokens, limits);
    return true;
}

bool request_is_stop_id(const struct request *request, uint32_t id)
{
    for (uint32_t i = 0; i < request->n_stop_ids; i++)
        if (request->stop_ids[i] == id)
            return true;
    return false;
}
