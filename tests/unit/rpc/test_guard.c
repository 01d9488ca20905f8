/* What the guard lets pass and what it ends, however the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "proto/rpc/rpc_guard.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum { HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, CONTINUATION = 9, END_HEADERS = 4, BLOCK = 100 };

static const struct rpc_guard_limits limits = {BLOCK, 10};

struct bytes {
    uint8_t at[65536];
    size_t n;
};

static void add_frame(struct bytes *b, uint8_t type, uint8_t flags, size_t n_payload)
{
    const uint8_t head[9] = {(uint8_t)(n_payload >> 16),
                             (uint8_t)(n_payload >> 8),
                             (uint8_t)n_payload,
                             type,
                             flags,
                             0,
                             0,
                             0,
                             1};
    memcpy(b->at + b->n, head, sizeof(head));
    /* A payload that looks like frames: it must not be taken for any. */
    memset(b->at + b->n + sizeof(head), RST_STREAM, n_payload);
    b->n += sizeof(head) + n_payload;
}

static struct bytes *begin(struct bytes *b)
{
    b->n = 24;
    memcpy(b->at, PREFACE, 24);
    add_frame(b, SETTINGS, 0, 6);
    return b;
}

/* The verdict must not depend on how the bytes come. */
static enum rpc_guard_verdict feed(const struct bytes *b)
{
    static const size_t steps[] = {1, 2, 7, 9, 1000, 65536};
    enum rpc_guard_verdict first = RPC_GUARD_GOOD;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct rpc_guard guard = {0};
        enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
        for (size_t at = 0; at < b->n && verdict == RPC_GUARD_GOOD; at += steps[i]) {
            size_t n = b->n - at < steps[i] ? b->n - at : steps[i];
            verdict = rpc_guard_feed(&guard, &limits, b->at + at, n, NS_PER_S);
        }
        if (i == 0)
            first = verdict;
        assert_int_equal(verdict, first);
    }
    return first;
}

static void test_other_protocols_end_at_the_first_byte_that_differs(void **state)
{
    struct rpc_guard guard = {0};
    (void)state;
    assert_int_equal(rpc_guard_feed(&guard, &limits, "PRI * HTTP/2.0\r\n", 16, 1), RPC_GUARD_GOOD);
    assert_int_equal(rpc_guard_feed(&guard, &limits, "X", 1, 1), RPC_GUARD_NOT_HTTP2);
    guard = (struct rpc_guard){0};
    assert_int_equal(rpc_guard_feed(&guard, &limits, "GET / HTTP/1.1\r\n", 16, 1),
                     RPC_GUARD_NOT_HTTP2);
}

static void test_header_blocks_have_a_limit_over_all_their_frames(void **state)
{
    struct bytes b;
    (void)state;
    add_frame(begin(&b), HEADERS, END_HEADERS, BLOCK);
    add_frame(&b, HEADERS, END_HEADERS, BLOCK); /* the next one begins anew */
    add_frame(&b, 0, 0, 30000);
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_frame(begin(&b), HEADERS, END_HEADERS, BLOCK + 1);
    assert_int_equal(feed(&b), RPC_GUARD_HEADER_BLOCK);
    add_frame(begin(&b), HEADERS, 0, 50);
    add_frame(&b, CONTINUATION, END_HEADERS, BLOCK - 50 - 9);
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_frame(begin(&b), HEADERS, 0, 50);
    add_frame(&b, CONTINUATION, END_HEADERS, BLOCK - 50 - 8);
    assert_int_equal(feed(&b), RPC_GUARD_HEADER_BLOCK);
    add_frame(begin(&b), HEADERS, 0, 0);
    for (int i = 0; i < BLOCK / 9 + 1; i++)
        add_frame(&b, CONTINUATION, 0, 0); /* empty, endless */
    assert_int_equal(feed(&b), RPC_GUARD_HEADER_BLOCK);
}

static void test_nothing_stands_between_the_frames_of_a_block(void **state)
{
    struct bytes b;
    (void)state;
    add_frame(begin(&b), HEADERS, 0, 1);
    add_frame(&b, SETTINGS, 0, 0);
    assert_int_equal(feed(&b), RPC_GUARD_HEADER_BLOCK);
    add_frame(begin(&b), CONTINUATION, END_HEADERS, 1);
    assert_int_equal(feed(&b), RPC_GUARD_HEADER_BLOCK);
}

static enum rpc_guard_verdict reset(struct rpc_guard *guard, int n, int64_t now_ns)
{
    struct bytes b = {.n = 0};
    add_frame(&b, RST_STREAM, 0, 4);
    enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
    for (int i = 0; i < n && verdict == RPC_GUARD_GOOD; i++)
        verdict = rpc_guard_feed(guard, &limits, b.at, b.n, now_ns);
    return verdict;
}

static void test_what_wants_an_answer_counts_with_the_resets(void **state)
{
    enum { PING = 6, ACK = 1 };
    struct bytes b;
    (void)state;
    begin(&b); /* a SETTINGS: one */
    for (int i = 0; i < 19; i++)
        add_frame(&b, PING, 0, 8);
    for (int i = 0; i < 100; i++) {
        add_frame(&b, PING, ACK, 8);
        add_frame(&b, SETTINGS, ACK, 0);
    }
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_frame(&b, PING, 0, 8);
    assert_int_equal(feed(&b), RPC_GUARD_RESETS);
}

static void test_resets_pass_at_their_rate_and_in_bursts_and_no_more(void **state)
{
    struct rpc_guard guard = {.n_preface = 24};
    (void)state;
    assert_int_equal(reset(&guard, 20, NS_PER_S), RPC_GUARD_GOOD);
    for (int s = 2; s < 60; s++) /* ten a second, on top of the burst, for ever */
        assert_int_equal(reset(&guard, 10, s * NS_PER_S), RPC_GUARD_GOOD);
    assert_int_equal(reset(&guard, 11, 60 * NS_PER_S), RPC_GUARD_RESETS);
    guard = (struct rpc_guard){.n_preface = 24};
    assert_int_equal(reset(&guard, 21, NS_PER_S), RPC_GUARD_RESETS);
    guard = (struct rpc_guard){.n_preface = 24};
    assert_int_equal(reset(&guard, 20, NS_PER_S), RPC_GUARD_GOOD);
    assert_int_equal(reset(&guard, 20, 3601 * NS_PER_S), RPC_GUARD_GOOD);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_protocols_end_at_the_first_byte_that_differs),
        cmocka_unit_test(test_header_blocks_have_a_limit_over_all_their_frames),
        cmocka_unit_test(test_nothing_stands_between_the_frames_of_a_block),
        cmocka_unit_test(test_what_wants_an_answer_counts_with_the_resets),
        cmocka_unit_test(test_resets_pass_at_their_rate_and_in_bursts_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
