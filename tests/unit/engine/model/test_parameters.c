/* Compares whole requests with the NumPy reference (tests/golden/sampler.json, `requests` and
 * `scores`). A request with its generated tokens changes fixed logits. The path is request_create()
 * and sequence_sample_params(). So bad words, forced tokens, masks and the watermark are those that
 * the engine gives to the sampler. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/error.h"
#include "engine/request/sequence.h"
#include "kernels/cpu/sample/sample_cpu.h"

enum { MAX_VOCAB = 512, MAX_LIST = 64 };

static float logits[MAX_VOCAB];
static _Alignas(64) unsigned char scratch[SAMPLE_SCRATCH_BYTES(MAX_VOCAB)];
static json_t *doc;

static int load_golden(void **state)
{
    json_error_t why;
    (void)state;
    doc = json_load_file(SLUICE_SOURCE_DIR "/tests/golden/sampler.json", 0, &why);
    return doc ? 0 : -1;
}

static int free_golden(void **state)
{
    (void)state;
    json_decref(doc);
    return 0;
}

/* Reads the item's logits into `logits`. Returns their number. */
static uint32_t load_row(const json_t *item)
{
    size_t i_row = (size_t)json_integer_value(json_object_get(item, "row"));
    const json_t *row = json_array_get(json_object_get(doc, "rows"), i_row);
    uint32_t n = (uint32_t)json_array_size(row);
    assert_true(n && n <= MAX_VOCAB);
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)json_number_value(json_array_get(row, i));
    return n;
}

static const json_t *value_of(const json_t *item, const char *key)
{
    const json_t *value = json_object_get(json_object_get(item, "params"), key);
    return value ? value : json_object_get(json_object_get(doc, "request_defaults"), key);
}

static float number(const json_t *item, const char *key)
{
    return (float)json_number_value(value_of(item, key));
}

static uint32_t list(const json_t *ids, uint32_t *out)
{
    uint32_t n = (uint32_t)json_array_size(ids);
    assert_true(n <= MAX_LIST);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    return n;
}

/* A request of the golden file, with everything it borrows. */
struct golden_request {
    struct engine_request req;
    struct request_limits limits;
    uint32_t prompt[MAX_LIST], generated[MAX_LIST], allowed[MAX_LIST], stops[MAX_LIST];
    uint32_t words[MAX_LIST][MAX_LIST];
    struct engine_bad_word bad_words[MAX_LIST];
    struct sample_bias biases[MAX_LIST];
    struct engine_resume resume;
};

static void load_lists(struct golden_request *g, const json_t *item)
{
    const json_t *words = value_of(item, "bad_words"), *biases = value_of(item, "logit_bias");
    struct engine_sampling *s = &g->req.sampling;
    s->allowed_ids = g->allowed;
    s->n_allowed_ids = list(value_of(item, "allowed"), g->allowed);
    s->bad_words = g->bad_words;
    s->n_bad_words = (uint32_t)json_array_size(words);
    for (uint32_t i = 0; i < s->n_bad_words; i++) {
        uint32_t n = list(json_array_get(words, i), g->words[i]);
        g->bad_words[i] = (struct engine_bad_word){g->words[i], n, i};
    }
    s->logit_bias = g->biases;
    s->n_logit_bias = (uint32_t)json_array_size(biases);
    for (uint32_t i = 0; i < s->n_logit_bias; i++) {
        const json_t *pair = json_array_get(biases, i);
        g->biases[i] = (struct sample_bias){(uint32_t)json_integer_value(json_array_get(pair, 0)),
                                            (float)json_number_value(json_array_get(pair, 1))};
    }
}

static void load_request(struct golden_request *g, const json_t *item, uint32_t vocab)
{
    memset(g, 0, sizeof(*g));
    engine_request_init(&g->req);
    struct engine_sampling *s = &g->req.sampling;
    g->limits = (struct request_limits){
        .vocab_size = vocab, .n_logits = vocab, .context_tokens = 256, .max_concurrent = 8};
    g->limits.n_end_ids = list(value_of(item, "end_ids"), g->limits.end_ids);
    g->req.prompt_ids = g->prompt;
    g->req.n_prompt_ids = list(value_of(item, "prompt_ids"), g->prompt);
    s->temperature = number(item, "temperature");
    s->top_k = (uint32_t)number(item, "top_k");
    s->top_p = number(item, "top_p");
    s->min_p = number(item, "min_p");
    s->typical_p = number(item, "typical_p");
    s->repetition_penalty = number(item, "repetition_penalty");
    s->presence_penalty = number(item, "presence_penalty");
    s->frequency_penalty = number(item, "frequency_penalty");
    s->watermark = json_is_true(value_of(item, "watermark"));
    load_lists(g, item);
    g->req.stopping.max_tokens = 200;
    g->req.stopping.min_tokens = (uint32_t)number(item, "min_tokens");
    g->req.stopping.ignore_eos = json_is_true(value_of(item, "ignore_eos"));
    g->req.stopping.stop_token_ids = g->stops;
    g->req.stopping.n_stop_token_ids = list(value_of(item, "stop_ids"), g->stops);
    g->resume.ids = g->generated;
    g->resume.n_ids = list(value_of(item, "generated_ids"), g->generated);
    g->req.resume = &g->resume;
}

static void check_kept(const struct sample_params *params, uint32_t n, const json_t *item,
                       size_t at)
{
    const json_t *kept = json_object_get(item, "kept"), *probs = json_object_get(item, "probs");
    const float *weights;
    double sum = 0.0;
    size_t k = 0;
    assert_int_equal(sample_weights_cpu(logits, n, params, scratch, &weights), 0);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)weights[i];
    for (uint32_t i = 0; i < n; i++) {
        bool listed = !kept || (json_int_t)i == json_integer_value(json_array_get(kept, k));
        double p = listed ? json_number_value(json_array_get(probs, k++)) : 0.0;
        if (listed != (weights[i] > 0.0f))
            fail_msg("request %zu: token %u is %s", at, i, listed ? "not kept" : "kept");
        if (fabs((double)weights[i] / sum - p) > 2e-6 + 1e-5 * p)
            fail_msg("request %zu: token %u has p %.9g, expected %.9g", at, i,
                     (double)weights[i] / sum, p);
    }
    assert_int_equal(k, json_array_size(probs));
}

static void check_draws(struct sample_params params, uint32_t n, const json_t *item, size_t at)
{
    const json_t *draws = json_object_get(item, "draws");
    assert_true(json_array_size(draws) > 0);
    for (size_t i = 0; i < json_array_size(draws); i++) {
        const json_t *d = json_array_get(draws, i);
        struct sample_result result;
        params.seed = strtoull(json_string_value(json_array_get(d, 0)), NULL, 10);
        params.choice = (uint32_t)json_integer_value(json_array_get(d, 1));
        params.position = (uint32_t)json_integer_value(json_array_get(d, 2));
        sample_row_cpu(logits, n, &params, scratch, &result);
        assert_int_equal(result.status, 0);
        if ((json_int_t)result.id != json_integer_value(json_array_get(d, 3)))
            fail_msg("request %zu, draw %zu: token %u", at, i, result.id);
    }
}

static void test_requests_draw_what_the_reference_draws(void **state)
{
    (void)state;
    static struct golden_request g;
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(doc, "requests"), i, item)
    {
        struct request *r;
        struct error err;
        struct sample_params params;
        uint32_t n = load_row(item);
        load_request(&g, item, n);
        if (request_check(&g.req, &g.limits, &err) || request_create(&g.req, &g.limits, &r, &err))
            fail_msg("request %zu: %s", i, err.message);
        sequence_sample_params(&r->choices[0], &params);
        const json_t *greedy = json_object_get(item, "greedy");
        if (greedy) {
            struct sample_result result;
            sample_row_cpu(logits, n, &params, scratch, &result);
            if ((json_int_t)result.id != json_integer_value(greedy))
                fail_msg("request %zu: token %u, expected %lld", i, result.id,
                         json_integer_value(greedy));
        } else {
            check_kept(&params, n, item, i);
            check_draws(params, n, item, i);
        }
        request_release(r);
    }
    assert_true(i >= 150);
}

static void test_scores_are_the_references_log_softmax(void **state)
{
    (void)state;
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(doc, "scores"), i, item)
    {
        const json_t *top = json_object_get(item, "top");
        const json_t *top_logprobs = json_object_get(item, "top_logprobs");
        uint32_t n = load_row(item), n_top = (uint32_t)json_array_size(top);
        uint32_t prompt[] = {1, (uint32_t)json_integer_value(json_object_get(item, "id"))};
        struct request_limits limits = {
            .vocab_size = n, .context_tokens = 64, .max_concurrent = 8, .n_logits = n};
        /* None of these may touch a prompt's log-probabilities. */
        struct sample_bias bias = {prompt[1], -100.0f};
        struct engine_request req;
        struct sample_params params;
        struct sample_result result;
        struct request *r;
        struct error err;
        engine_request_init(&req);
        req.prompt_ids = prompt;
        req.n_prompt_ids = 2;
        req.want_prompt_logprobs = true;
        req.n_top_logprobs = n_top;
        req.sampling.temperature = 0.3f;
        req.sampling.repetition_penalty = 1.7f;
        req.sampling.watermark = true;
        req.sampling.logit_bias = &bias;
        req.sampling.n_logit_bias = 1;
        assert_int_equal(request_check(&req, &limits, &err), 0);
        assert_int_equal(request_create(&req, &limits, &r, &err), 0);
        assert_true(request_scores_row(r, 0) && !request_scores_row(r, 1));
        sequence_score_params(&r->choices[0], 1, &params);
        sample_row_cpu(logits, n, &params, scratch, &result);
        assert_int_equal(result.status, 0);
        assert_int_equal(result.id, prompt[1]);
        assert_true(fabs((double)result.logprob -
                         json_number_value(json_object_get(item, "logprob"))) < 2e-6 * 20);
        assert_int_equal(result.n_top, n_top);
        for (uint32_t t = 0; t < n_top; t++) {
            assert_int_equal(result.top_ids[t], json_integer_value(json_array_get(top, t)));
            assert_true(fabs((double)result.top_logprobs[t] -
                             json_number_value(json_array_get(top_logprobs, t))) < 2e-6 * 20);
        }
        request_release(r);
    }
    assert_true(i >= 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_draw_what_the_reference_draws),
        cmocka_unit_test(test_scores_are_the_references_log_softmax),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
