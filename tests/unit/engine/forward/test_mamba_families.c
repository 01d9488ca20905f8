/* Logits of small random checkpoints with Mamba-2 or a short convolution, against transformers
 * (tests/golden/family_groups/mamba.py). Pieces and ranks do not change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const struct family families[] = {
    {"lfm2", true, 2},
    {"lfm2moe", true, 1},
    {"mamba2", true, 4},
    {"granitehybrid", true, 2},
    {"granitehybrid_moe", true, 2},
    {"nemotron_h", true, 4},
    {"nemotron_h_moe", true, 2},
    {"falcon_h1", true, 2},
    {"falcon_h1_norm", false, 2},
    {"falcon_h1_bare", false, 2},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]), N_IDS = 230, MAX_VOCAB = 128 };

static void test_families_equal_transformers(void **state)
{
    (void)state;
    family_check_logits(families, N_FAMILIES);
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    (void)state;
    family_check_contract(families, N_FAMILIES);
}

static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    (void)state;
    family_check_bits(families, N_FAMILIES);
}

/* The hash of the last row's logits of a prompt in pieces of n tokens. */
static uint64_t run_pieces(const char *name, const char *kernels, uint32_t n)
{
    float logits[MAX_VOCAB];
    struct executor_config cfg = model_run_config(kernels);
    struct model_run run;
    uint32_t ids[N_IDS];
    char path[512];
    cfg.max_rows = N_IDS;
    cfg.max_context_tokens = 256;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), name);
    model_run_open(&run, path, &cfg);
    uint32_t vocab = executor_model_info(run.ex)->vocab_size;
    assert_true(vocab <= MAX_VOCAB);
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + i * i * 5) % vocab;
    model_run_all(&run, ids, N_IDS, n, true, logits);
    model_run_close(&run);
    return match_hash(0, logits, vocab);
}

static void test_pieces_of_1_to_200_tokens_give_the_same_bits(void **state)
{
    static const char *const sets[] = {"f32", "auto"};
    static const uint32_t pieces[] = {1, 7, 64, 200};
    (void)state;
    for (size_t i = 0; i < 2 * (size_t)N_FAMILIES; i++) {
        const char *name = families[i / 2].name;
        uint64_t whole = run_pieces(name, sets[i % 2], N_IDS);
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++)
            if (run_pieces(name, sets[i % 2], pieces[p]) != whole)
                fail_msg("%s, kernels %s: pieces of %u tokens differ", name, sets[i % 2],
                         pieces[p]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_pieces_of_1_to_200_tokens_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
