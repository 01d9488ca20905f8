/* Compares ids of the sample model with those of the reference tokenizers (tests/golden/README.md,
 * tokenizer_*.bin). The ids must also decode back to the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/engine/support/support_golden.h"

static struct tokenizer *open_sample(void)
{
    struct checkpoint *ckpt;
    struct tokenizer *tok;
    struct error err = {0};
    if (checkpoint_open(gguf_sample_path(), &ckpt, &err) != 0)
        fail_msg("%s (etc/fetch_model.sh brings it)", err.message);
    if (tokenizer_open(ckpt, &tok, &err) != 0)
        fail_msg("%s", err.message);
    checkpoint_close(ckpt);
    return tok;
}

static void check_ids(const struct token_list *list, const unsigned char *ids, uint32_t n_ids,
                      uint32_t i)
{
    if (list->n_ids != n_ids)
        fail_msg("string %u: %zu ids, want %u", i, list->n_ids, n_ids);
    for (uint32_t k = 0; k < n_ids; k++) {
        uint32_t want = (uint32_t)ids[2 * k] | (uint32_t)ids[2 * k + 1] << 8;
        if (list->ids[k] != want)
            fail_msg("string %u, id %u: %u, want %u", i, k, list->ids[k], want);
    }
}

static void check_text(const struct tokenizer *tok, const struct token_list *list,
                       const unsigned char *text, uint32_t n_bytes, uint32_t i)
{
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct strbuf out = {0};
    struct error err = {0};
    assert_int_equal(detokenizer_create(tok, false, &d, &err), 0);
    for (size_t k = 0; k < list->n_ids; k++) {
        assert_int_equal(detokenizer_push(d, list->ids[k], &delta, &err), 0);
        strbuf_add(&out, delta.text, delta.n_bytes);
    }
    assert_int_equal(detokenizer_flush(d, &delta, &err), 0);
    strbuf_add(&out, delta.text, delta.n_bytes);
    if (out.n_bytes != n_bytes || (n_bytes && memcmp(out.data, text, n_bytes) != 0))
        fail_msg("string %u does not come back", i);
    strbuf_fini(&out);
    detokenizer_destroy(d);
}

static void check_file(const char *name, unsigned flags, uint32_t n_least)
{
    struct golden g;
    struct tokenizer *tok = open_sample();
    struct error err = {0};
    golden_open(&g, name, "SLTK");
    uint32_t n = golden_u32(&g);
    assert_true(n >= n_least);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_bytes = golden_u32(&g);
        uint32_t n_ids = golden_u32(&g);
        const unsigned char *text = golden_take(&g, n_bytes);
        const unsigned char *ids = golden_take(&g, 2 * (size_t)n_ids);
        struct token_list list = {0};
        size_t n_lost;
        if (tokenizer_encode(tok, (const char *)text, n_bytes, flags, &list, &n_lost, &err) != 0)
            fail_msg("string %u: %s", i, err.message);
        assert_int_equal(n_lost, 0);
        check_ids(&list, ids, n_ids, i);
        check_text(tok, &list, text, n_bytes, i);
        token_list_fini(&list);
    }
    assert_int_equal(g.at, g.n_bytes);
    tokenizer_close(tok);
    golden_close(&g);
}

static void test_encode_when_special_is_plain_then_ids_are_the_references(void **state)
{
    (void)state;
    check_file("tokenizer_plain.bin", 0, 2000);
}

static void test_encode_when_special_is_parsed_then_ids_are_the_references(void **state)
{
    (void)state;
    check_file("tokenizer_special.bin", TOKENIZER_PARSE_SPECIAL, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_special_is_plain_then_ids_are_the_references),
        cmocka_unit_test(test_encode_when_special_is_parsed_then_ids_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
