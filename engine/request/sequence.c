#include "engine/request/sequence.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/request/draft.h"

void sequence_append(struct sequence *seq, uint32_t id)
{
    assert(seq->n_ids < seq->max_ids);
    seq->ids[seq->n_ids++] = id;
    if (seq->counts.capacity)
        request_counts_add(&seq->counts, id, true);
    if (seq->draft)
        draft_take_token(seq->draft, seq);
}

/* True if the choice's generated tokens end with these ids. */
static bool ends_with(const struct sequence *seq, const uint32_t *ids, uint32_t n)
{
    return n <= seq->n_ids && seq->ids[seq->n_ids - 1] == ids[n - 1] &&
           memcmp(seq->ids + seq->n_ids - n, ids, n * sizeof(*ids)) == 0;
}

/* Bans the last token of each bad word whose earlier tokens were just generated. */
static void ban_bad_words(const struct sequence *seq, struct sample_params *params)
{
    const struct request *r = seq->request;
    if (params->n_biases)
        memcpy(seq->step_biases, params->biases, params->n_biases * sizeof(*params->biases));
    for (uint32_t i = 0; i < r->n_bad_words; i++) {
        const uint32_t *ids = r->bad_ids + r->bad_words[i].begin;
        uint32_t n = r->bad_words[i].n;
        if (ends_with(seq, ids, n - 1))
            seq->step_biases[params->n_biases++] = (struct sample_bias){ids[n - 1], -INFINITY};
    }
    params->biases = seq->step_biases;
}

void sequence_score_params(const struct sequence *seq, uint32_t i, struct sample_params *out_params)
{
    const struct request *r = seq->request;
    *out_params = (struct sample_params){
        .score = true,
        .score_id = r->prompt[i],
        .want_logprob = true,
        .n_top = r->n_top_logprobs,
    };
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
        .allowed_mask = r->allowed_mask,
        .watermark = s->watermark,
        .previous_id = sequence_token(seq, sequence_n_tokens(seq) - 1),
    };
    if (r->n_bad_words)
        ban_bad_words(seq, out_params);
}
