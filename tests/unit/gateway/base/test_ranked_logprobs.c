/* Tests of ranked_logprobs.h: the bytes of vLLM's list. */
#include <math.h>
#include <string.h>

#include "base/strbuf.h"
#include "server/gateway/base/ranked_logprobs.h"
#include "tests/unit/base/support_cmocka.h"

enum { MAX_TOP = 3 };

struct entry {
    Sluice__V1__TokenLogprob base;
    Sluice__V1__TopLogprob top[MAX_TOP], *tops[MAX_TOP];
};

static ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

static void init_entry(struct entry *entry, uint32_t id, const char *token, float logprob)
{
    *entry = (struct entry){.base = SLUICE__V1__TOKEN_LOGPROB__INIT};
    entry->base.id = id;
    entry->base.token = bytes_of(token);
    entry->base.logprob = logprob;
    entry->base.top = entry->tops;
}

static void add_top(struct entry *entry, uint32_t id, const char *token, float logprob)
{
    Sluice__V1__TopLogprob *top = &entry->top[entry->base.n_top];
    sluice__v1__top_logprob__init(top);
    top->id = id;
    top->token = bytes_of(token);
    top->logprob = logprob;
    entry->tops[entry->base.n_top++] = top;
}

/* The token itself comes first, with its rank among the alternatives. */
static void test_each_token_has_an_object_by_id(void **state)
{
    (void)state;
    struct entry entries[3];
    Sluice__V1__TokenLogprob *list[] = {&entries[0].base, &entries[1].base, &entries[2].base};
    struct strbuf out = {0};
    init_entry(&entries[0], 4, "a", NAN); /* the first token of a prompt */
    init_entry(&entries[1], 8, "b", -1.5f);
    add_top(&entries[1], 9, "\"c\"", -0.25f);
    add_top(&entries[1], 8, "b", -1.5f);
    add_top(&entries[1], 3, "\xf0", -INFINITY);
    init_entry(&entries[2], 7, "d", -4);
    ranked_logprobs_write(list, 3, UINT32_MAX, &out);
    assert_string_equal(strbuf_str(&out),
                        "[null,{\"8\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\"b\"},"
                        "\"9\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"\\\"c\\\"\"},"
                        "\"3\":{\"logprob\":-3.4028234e+38,\"rank\":3,"
                        "\"decoded_token\":\"\xef\xbf\xbd\"}},"
                        "{\"7\":{\"logprob\":-4,\"rank\":null,\"decoded_token\":\"d\"}}]");
    strbuf_clear(&out);
    ranked_logprobs_write(list, 0, 1, &out);
    assert_string_equal(strbuf_str(&out), "[]");
    strbuf_fini(&out);
}

/* A request may ask for fewer alternatives than the engine gave. */
static void test_alternatives_beyond_the_number_are_cut(void **state)
{
    (void)state;
    struct entry entry;
    Sluice__V1__TokenLogprob *list[] = {&entry.base};
    struct strbuf out = {0};
    init_entry(&entry, 1, "a", -2);
    add_top(&entry, 2, "b", -0.5f);
    add_top(&entry, 1, "a", -2);
    ranked_logprobs_write(list, 1, 1, &out);
    assert_string_equal(strbuf_str(&out),
                        "[{\"1\":{\"logprob\":-2,\"rank\":null,\"decoded_token\":\"a\"},"
                        "\"2\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"b\"}}]");
    strbuf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_token_has_an_object_by_id),
        cmocka_unit_test(test_alternatives_beyond_the_number_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
