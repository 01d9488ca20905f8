/* The sampler against golden references: tests/golden/sampler.json, made in f64 and compared with
 * transformers' processors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "kernels/cpu/sample/sample_cpu.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cpu/sample/sample_philox.h"
#include "kernels/cpu/sample/sample_select.h"

enum { MAX_VOCAB = 50000, MAX_LIST = 512 };

static float logits[MAX_VOCAB];
static _Alignas(64) unsigned char scratch[SAMPLE_SCRATCH_BYTES(MAX_VOCAB)];

struct golden_case {
    struct sample_params params;
    struct sample_count counts[MAX_LIST];
    struct sample_bias biases[MAX_LIST];
    uint32_t mask[MAX_LIST];
};

static double number(const json_t *params, const json_t *defaults, const char *key)
{
    const json_t *value = json_object_get(params, key);
    return json_number_value(value ? value : json_object_get(defaults, key));
}

static void count_ids(struct golden_case *c, const json_t *ids, bool generated)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i)), at = 0;
        while (at < c->params.n_counts && c->counts[at].id != id)
            at++;
        if (at == c->params.n_counts)
            c->counts[c->params.n_counts++] = (struct sample_count){.id = id};
        c->counts[at].n_generated += generated;
    }
}

static void load_case(struct golden_case *c, const json_t *params, const json_t *defaults)
{
    memset(c, 0, sizeof(*c));
    c->params = (struct sample_params){
        .temperature = (float)number(params, defaults, "temperature"),
        .top_k = (uint32_t)number(params, defaults, "top_k"),
        .top_p = (float)number(params, defaults, "top_p"),
        .min_p = (float)number(params, defaults, "min_p"),
        .typical_p = (float)number(params, defaults, "typical_p"),
        .repetition_penalty = (float)number(params, defaults, "repetition_penalty"),
        .presence_penalty = (float)number(params, defaults, "presence_penalty"),
        .frequency_penalty = (float)number(params, defaults, "frequency_penalty"),
        .counts = c->counts,
        .biases = c->biases,
    };
    count_ids(c, json_object_get(params, "prompt_ids"), false);
    count_ids(c, json_object_get(params, "generated_ids"), true);
    const json_t *biases = json_object_get(params, "logit_bias");
    for (size_t i = 0; i < json_array_size(biases); i++) {
        const json_t *pair = json_array_get(biases, i);
        c->biases[c->params.n_biases++] =
            (struct sample_bias){(uint32_t)json_integer_value(json_array_get(pair, 0)),
                                 (float)json_number_value(json_array_get(pair, 1))};
    }
    const json_t *allowed = json_object_get(params, "allowed");
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        json_int_t id = json_integer_value(json_array_get(allowed, i));
        c->mask[id / 32] |= 1u << (id % 32);
    }
    if (json_is_array(allowed))
        c->params.allowed_mask = c->mask;
}

static void check_kept(const struct golden_case *c, uint32_t n, const json_t *item, size_t i_case)
{
    const json_t *kept = json_object_get(item, "kept"), *probs = json_object_get(item, "probs");
    const float *weights;
    double sum = 0.0;
    size_t k = 0;
    assert_int_equal(sample_weights_cpu(logits, n, &c->params, scratch, &weights), 0);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)weights[i];
    for (uint32_t i = 0; i < n; i++) {
        bool listed = !kept || (json_int_t)i == json_integer_value(json_array_get(kept, k));
        double p = listed ? json_number_value(json_array_get(probs, k++)) : 0.0;
        /* Golden keeps tokens of any weight; here those below exp(-87) of the largest vanish. */
        if (listed != (weights[i] > 0.0f) && !(listed && p < 1e-37))
            fail_msg("case %zu: token %u is %s", i_case, i, listed ? "not kept" : "kept");
        if (fabs((double)weights[i] / sum - p) > 2e-6 + 1e-5 * p)
            fail_msg("case %zu: token %u has p %.9g, expected %.9g", i_case, i,
                     (double)weights[i] / sum, p);
    }
    assert_int_equal(k, json_array_size(probs));
}

static void check_draws(struct golden_case *c, uint32_t n, const json_t *item, size_t i_case)
{
    const json_t *draws = json_object_get(item, "draws");
    for (size_t i = 0; i < json_array_size(draws); i++) {
        const json_t *d = json_array_get(draws, i);
        struct sample_result result;
        c->params.seed = strtoull(json_string_value(json_array_get(d, 0)), NULL, 10);
        c->params.choice = (uint32_t)json_integer_value(json_array_get(d, 1));
        c->params.position = (uint32_t)json_integer_value(json_array_get(d, 2));
        sample_row_cpu(logits, n, &c->params, scratch, &result);
        assert_int_equal(result.status, 0);
        if ((json_int_t)result.id != json_integer_value(json_array_get(d, 3)))
            fail_msg("case %zu, draw %zu: token %u, expected %lld", i_case, i, result.id,
                     json_integer_value(json_array_get(d, 3)));
    }
}

static json_t *load_golden(void)
{
    json_error_t why;
    json_t *doc = json_load_file(SLUICE_SOURCE_DIR "/tests/golden/sampler.json", 0, &why);
    if (!doc)
        fail_msg("sampler.json:%d: %s", why.line, why.text);
    return doc;
}

static void test_chain_golden_cases_agree(void **state)
{
    (void)state;
    static struct golden_case c;
    json_t *doc = load_golden(), *item;
    size_t i_case;
    json_array_foreach(json_object_get(doc, "cases"), i_case, item)
    {
        const json_t *row = json_array_get(
            json_object_get(doc, "rows"), (size_t)json_integer_value(json_object_get(item, "row")));
        uint32_t n = (uint32_t)json_array_size(row);
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)json_number_value(json_array_get(row, i));
        load_case(&c, json_object_get(item, "params"), json_object_get(doc, "defaults"));
        const json_t *greedy = json_object_get(item, "greedy");
        if (greedy) {
            struct sample_result result;
            sample_row_cpu(logits, n, &c.params, scratch, &result);
            assert_int_equal(result.id, json_integer_value(greedy));
            continue;
        }
        check_kept(&c, n, item, i_case);
        check_draws(&c, n, item, i_case);
    }
    assert_true(i_case >= 150);
    json_decref(doc);
}

static void test_philox_known_answers(void **state)
{
    (void)state;
    json_t *doc = load_golden(), *item;
    size_t i;
    json_array_foreach(json_object_get(doc, "philox"), i, item)
    {
        uint32_t counter[4], key[2], out[4];
        for (size_t j = 0; j < 4; j++)
            counter[j] =
                (uint32_t)json_integer_value(json_array_get(json_object_get(item, "counter"), j));
        for (size_t j = 0; j < 2; j++)
            key[j] = (uint32_t)json_integer_value(json_array_get(json_object_get(item, "key"), j));
        sample_philox4x32_10(counter, key, out);
        for (size_t j = 0; j < 4; j++)
            assert_int_equal(out[j],
                             json_integer_value(json_array_get(json_object_get(item, "out"), j)));
    }
    json_decref(doc);
    /* Random123 1.14, tests/kat_vectors, philox4x32 10. */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t v = 0; v < sizeof(vectors) / sizeof(vectors[0]); v++) {
        uint32_t out[4];
        sample_philox4x32_10(vectors[v].counter, vectors[v].key, out);
        assert_memory_equal(out, vectors[v].out, sizeof(out));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_chain_golden_cases_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
