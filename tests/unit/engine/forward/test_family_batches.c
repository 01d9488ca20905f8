/* The bits of a row do not depend on the rows beside it, nor on the pieces of its prompt. Each kind
 * of mixer, rope and FFN has a checkpoint of tests/golden/tiny. Four sequences run alone, whole,
 * and then side by side in random pieces, past window and original context. The
 * keys of every second sequence are rotated by longrope's long table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"

/* A checkpoint for each way in which rows of a sequence meet, and for each kind of FFN. */
static const char *const names[] = {
    "llama3",       /* rope with divisors */
    "qwen3",        /* norms of heads */
    "gemma2",       /* window, softcaps */
    "gemma3",       /* two ropes */
    "smollm3",      /* layers without positions */
    "olmo3",        /* norms over all heads, yarn */
    "cohere2",      /* parallel, window */
    "ministral3",   /* scores by position */
    "phi2",         /* partial rope */
    "phi3_long",    /* longrope: two tables in a step */
    "gpt2",         /* learned positions */
    "bloom",        /* ALiBi */
    "falcon",       /* a single KV head, joined Q, K and V */
    "mixtral",      /* experts */
    "gpt_oss",      /* sinks, window, experts with biases */
    "qwen2moe",     /* a shared expert */
    "glm4moe",      /* groups of experts, a dense layer */
    "ernie4_5_moe", /* a selection bias */
    "mimo2",        /* keys wider than values */
};

static void test_rows_have_the_same_bits_beside_any_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        family_check_batches(names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_the_same_bits_beside_any_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
