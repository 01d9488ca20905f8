/* Tests of the bytes that the guard passes and of the streams that the guard ends, for any cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "proto/rpc/guard/frames.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum {
    DATA = 0,
    HEADERS = 1,
    PRIORITY = 2,
    RST_STREAM = 3,
    SETTINGS = 4,
    PING = 6,
    CONTINUATION = 9
};
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8 };
enum { BLOCK = 100, MESSAGE = 2000, HELD = 10000, STREAMS = 20, READ = 4000 };
/* Costs of a DATA frame: its header, and gRPC's record per piece; a copied frame costs only its
 * bytes. */
enum { PER_FRAME = 9 + 32, SMALL = 23 };

static const struct rpc_guard_limits limits = {BLOCK, 10, MESSAGE, HELD, STREAMS, READ, NULL};

struct bytes {
    uint8_t at[65536];
    size_t n;
};

static uint8_t *add_frame_of(struct bytes *b, uint32_t stream, uint8_t type, uint8_t flags,
                             size_t n_payload)
{
    const uint8_t head[9] = {(uint8_t)(n_payload >> 16),
                             (uint8_t)(n_payload >> 8),
                             (uint8_t)n_payload,
                             type,
                             flags,
                             (uint8_t)(stream >> 24),
                             (uint8_t)(stream >> 16),
                             (uint8_t)(stream >> 8),
                             (uint8_t)stream};
    assert_true(b->n + sizeof(head) + n_payload <= sizeof(b->at));
    memcpy(b->at + b->n, head, sizeof(head));
    /* A payload that looks like frames: it must not be taken for any. */
    memset(b->at + b->n + sizeof(head), RST_STREAM, n_payload);
    b->n += sizeof(head) + n_payload;
    return b->at + b->n - n_payload;
}

static void add_frame(struct bytes *b, uint8_t type, uint8_t flags, size_t n_payload)
{
    add_frame_of(b, 1, type, flags, n_payload);
}

/* HEADERS that leave the stream open. */
static void open_stream(struct bytes *b, uint32_t stream)
{
    add_frame_of(b, stream, HEADERS, END_HEADERS, 1);
}

/* DATA of n bytes that begins with the prefix of a message of n_message. */
static void add_message(struct bytes *b, uint32_t stream, uint32_t n_message, size_t n)
{
    uint8_t *at = add_frame_of(b, stream, DATA, 0, n);
    const uint8_t prefix[5] = {1, (uint8_t)(n_message >> 24), (uint8_t)(n_message >> 16),
                               (uint8_t)(n_message >> 8), (uint8_t)n_message};
    memcpy(at, prefix, sizeof(prefix));
}

static struct bytes *begin(struct bytes *b)
{
    b->n = 24;
    memcpy(b->at, PREFACE, 24);
    add_frame(b, SETTINGS, 0, 6);
    return b;
}

/* Feeds the bytes in pieces of several sizes. The verdict must not depend on the size. */
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
        rpc_guard_reset(&guard);
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
    /* the block length counts from 0 again in the next HEADERS */
    add_frame(&b, HEADERS, END_HEADERS, BLOCK);
    add_frame(&b, PRIORITY, 0, 30000);
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

/* gRPC stores pings that need an answer, and an error for each ping too many. */
static void test_questions_pass_as_long_as_they_are_answered(void **state)
{
    struct bytes b, question = {.n = 0}, answer = {.n = 0};
    struct rpc_guard guard = {.n_preface = 24};
    (void)state;
    add_frame(&question, PING, 0, 8);
    add_frame(&question, SETTINGS, 0, 0);
    add_frame(&answer, PING, ACK, 8);
    add_frame(&answer, SETTINGS, ACK, 0);
    add_frame(&answer, DATA, 0, 100);
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(rpc_guard_feed(&guard, &limits, question.at, question.n, NS_PER_S),
                         RPC_GUARD_GOOD);
        for (size_t at = 0; at < answer.n; at += 50)
            rpc_guard_sent(&guard, answer.at + at, answer.n - at < 50 ? answer.n - at : 50);
    }
    begin(&b); /* a SETTINGS frame, one of four that need no answer in a hurry */
    for (int i = 0; i < 3 + 20; i++)
        add_frame(&b, PING, 0, 8);
    for (int i = 0; i < 100; i++) {
        add_frame(&b, PING, ACK, 8);
        add_frame(&b, SETTINGS, ACK, 0);
    }
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_frame(&b, PING, 0, 8);
    assert_int_equal(feed(&b), RPC_GUARD_RESETS);
}

static void test_unanswered_questions_have_a_limit_however_slowly_they_come(void **state)
{
    struct bytes ping = {.n = 0};
    struct rpc_guard guard = {.n_preface = 24};
    (void)state;
    add_frame(&ping, PING, 0, 8);
    for (int i = 1; i <= 64; i++)
        assert_int_equal(rpc_guard_feed(&guard, &limits, ping.at, ping.n, i * NS_PER_S),
                         RPC_GUARD_GOOD);
    assert_int_equal(rpc_guard_feed(&guard, &limits, ping.at, ping.n, 65 * NS_PER_S),
                     RPC_GUARD_RESETS);
}

static void test_messages_may_announce_so_much_and_no_more(void **state)
{
    struct bytes b;
    (void)state;
    open_stream(begin(&b), 1);
    add_message(&b, 1, MESSAGE, 5);
    add_frame(&b, DATA, 0, MESSAGE);
    add_message(&b, 1, 0, 5);
    add_message(&b, 1, 100, 50);
    add_frame(&b, DATA, 0, 55);
    add_message(&b, 1, MESSAGE, 5 + MESSAGE); /* the guard still finds the next message */
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_message(&b, 1, MESSAGE + 1, 5);
    assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
    open_stream(begin(&b), 1);
    add_message(&b, 1, UINT32_MAX, 5);
    assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
    open_stream(begin(&b), 1);
    add_message(&b, 1, 0x00ffffff, 5);
    assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
}

static void test_a_prefix_may_come_in_pieces_and_with_padding(void **state)
{
    struct bytes b, whole = {.n = 0};
    (void)state;
    add_message(&whole, 1, MESSAGE + 1, 5);
    for (size_t n_padding = 0; n_padding < 30; n_padding += 29) {
        open_stream(begin(&b), 1);
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(feed(&b), RPC_GUARD_GOOD);
            uint8_t *at = n_padding > 0 ? add_frame_of(&b, 1, DATA, PADDED, 2 + n_padding)
                                        : add_frame_of(&b, 1, DATA, 0, 1);
            if (n_padding > 0)
                *at++ = (uint8_t)n_padding;
            *at = whole.at[9 + i];
            add_frame(&b, DATA, 0, 0);
            add_frame_of(&b, 3, DATA, 0, 10); /* a stream that does not exist */
        }
        assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
    }
    open_stream(begin(&b), 1);
    *add_frame_of(&b, 1, DATA, PADDED, 10) = 10; /* more padding than frame */
    *add_frame_of(&b, 1, DATA, PADDED, 1) = 255;
    add_message(&b, 1, MESSAGE + 1, 5);
    assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
}

static void test_streams_that_ended_are_not_followed(void **state)
{
    struct bytes b;
    (void)state;
    add_message(begin(&b), 1, UINT32_MAX, 5); /* never began */
    open_stream(&b, 2); /* a stream number of the server: gRPC ignores the frame */
    add_message(&b, 2, UINT32_MAX, 5);
    add_frame_of(&b, 3, HEADERS, END_HEADERS | END_STREAM, 1);
    add_message(&b, 3, UINT32_MAX, 5);
    open_stream(&b, 5);
    *add_frame_of(&b, 5, DATA, END_STREAM, 1) = 0;
    add_message(&b, 5, UINT32_MAX, 5);
    open_stream(&b, 7);
    add_frame_of(&b, 7, RST_STREAM, 0, 4);
    add_message(&b, 7, UINT32_MAX, 5);
    open_stream(&b, 9);
    add_frame_of(&b, 9, DATA, END_STREAM, 0);
    add_message(&b, 9, UINT32_MAX, 5);
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    open_stream(&b, 13);
    open_stream(&b, 11); /* out of order: gRPC ignores the stream, but the guard still follows it */
    assert_int_equal(feed(&b), RPC_GUARD_GOOD);
    add_message(&b, 11, UINT32_MAX, 5);
    assert_int_equal(feed(&b), RPC_GUARD_MESSAGE);
}

/* Feeds, and lets the server end streams afterwards. */
static enum rpc_guard_verdict go_on(struct rpc_guard *guard, struct bytes *b)
{
    enum rpc_guard_verdict verdict = rpc_guard_feed(guard, &limits, b->at, b->n, NS_PER_S);
    b->n = 0;
    return verdict;
}

static void test_what_is_not_whole_has_a_limit_over_all_streams(void **state)
{
    enum { EACH = HELD / 8 };
    static const uint8_t kinds[][2] = {
        {RST_STREAM, 0}, {DATA, END_STREAM}, {HEADERS, END_STREAM | END_HEADERS}};
    struct rpc_guard guard = {.n_preface = 24};
    struct bytes b = {.n = 0};
    (void)state;
    for (uint32_t i = 0; i < 7; i++) {
        open_stream(&b, 1 + 2 * i);
        add_message(&b, 1 + 2 * i, MESSAGE, EACH - PER_FRAME - 10);
    }
    open_stream(&b, 15);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, 7 * EACH);
    /* A stream gives its share back when it ends, whatever the frame. A frame that begins a stream
     * gives nothing back. */
    for (size_t i = 0; i < 3; i++) {
        add_frame_of(&b, (uint32_t)(1 + 2 * i), kinds[i][0], kinds[i][1], 20);
        add_frame_of(&b, (uint32_t)(1 + 2 * i), DATA, 0, 20);
        add_frame_of(&b, (uint32_t)(1 + 2 * i), DATA, 0, 20);
        for (size_t at = 0; at < b.n; at += 7)
            rpc_guard_sent(&guard, b.at + at, b.n - at < 7 ? b.n - at : 7);
        b.n = 0;
        assert_int_equal(guard.n_held, (6 - i) * EACH);
    }
    add_frame_of(&b, 7, RST_STREAM, 0, 4);
    add_frame_of(&b, 9, DATA, END_STREAM, 0);
    add_frame_of(&b, 11, HEADERS, END_STREAM | END_HEADERS, 1);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, EACH);
    /* A whole message returns its share; the beginning of the next message counts. */
    add_frame_of(&b, 13, DATA, 0, MESSAGE + 5 - (EACH - PER_FRAME - 10) + 3);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, 3);
    rpc_guard_reset(&guard);
    guard.n_preface = 24;
    for (uint32_t i = 0; i < 8; i++) {
        open_stream(&b, 1 + 2 * i);
        add_message(&b, 1 + 2 * i, MESSAGE, EACH - PER_FRAME - 10);
    }
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, HELD);
    add_frame(&b, DATA, 0, 1);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_MESSAGE);
    rpc_guard_reset(&guard);
}

/* A kept byte keeps the whole read it came with, up to READ bytes. A byte that gRPC copies keeps
 * nothing else. */
static void test_what_comes_between_counts_with_what_is_kept(void **state)
{
    struct rpc_guard guard = {.n_preface = 24};
    struct bytes b = {.n = 0};
    (void)state;
    open_stream(&b, 1);
    add_message(&b, 1, MESSAGE, SMALL);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, SMALL);
    add_frame(&b, DATA, 0, SMALL + 1);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, SMALL + 10 + 9 + SMALL + 1 + PER_FRAME);
    uint64_t before = guard.n_held;
    add_frame(&b, PRIORITY, 0, 991);
    add_frame(&b, DATA, 0, 100);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, before + 1000 + 100 + PER_FRAME);
    before = guard.n_held;
    add_frame(&b, PRIORITY, 0, 10000);
    add_frame(&b, DATA, 0, 100);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, before + READ + 100 + 32);
    *add_frame_of(&b, 1, DATA, PADDED, 100) = 99; /* a frame of padding only still costs memory */
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, before + READ + 100 + 32 + 100 + PER_FRAME);
    open_stream(&b, 3);
    *add_frame_of(&b, 3, DATA, PADDED, 100) = 99; /* before any message, nothing is kept */
    before = guard.n_held;
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    assert_int_equal(guard.n_held, before);
    rpc_guard_reset(&guard);
    assert_int_equal(guard.n_held, 0);
}

static void test_streams_have_a_limit_and_make_room(void **state)
{
    struct rpc_guard guard = {.n_preface = 24};
    struct bytes b = {.n = 0};
    (void)state;
    for (uint32_t i = 0; i < STREAMS; i++)
        open_stream(&b, 1 + 2 * i);
    open_stream(&b, 5); /* the same stream again does not count */
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    for (uint32_t i = 0; i < 1000; i++) {
        add_frame_of(&b, 1 + 2 * i, RST_STREAM, 0, 4);
        rpc_guard_sent(&guard, b.at, b.n);
        b.n = 0;
        open_stream(&b, 1 + 2 * (STREAMS + i));
        assert_int_equal(go_on(&guard, &b), RPC_GUARD_GOOD);
    }
    open_stream(&b, 99999);
    assert_int_equal(go_on(&guard, &b), RPC_GUARD_STREAMS);
    rpc_guard_reset(&guard);
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

/* A hundred connections that each keep to their own limit are still too much together. */
static void test_resets_of_all_connections_have_a_limit_too(void **state)
{
    enum { N = 100 };
    _Atomic(int64_t) all = 0;
    struct rpc_guard_limits shared = limits; /* ten resets a second for all guards */
    struct rpc_guard guards[N];
    unsigned n_passed = 0;
    struct bytes b;
    (void)state;
    shared.all_resets = &all;
    for (int i = 0; i < N; i++) {
        guards[i] = (struct rpc_guard){.n_preface = 24};
        for (int r = 0; r < 20; r++) {
            b.n = 0;
            add_frame(&b, RST_STREAM, 0, 4);
            if (rpc_guard_feed(&guards[i], &shared, b.at, b.n, NS_PER_S) != RPC_GUARD_GOOD)
                break;
            n_passed++;
        }
    }
    /* 40 in bursts of 20, 40 in bursts of 2, then one of each. */
    assert_int_equal(n_passed, 40 + 40 + (N - 2 - 20));
    shared.max_resets_per_second = 1; /* a reset each, even if the limit is a reset a second */
    all = 0;
    for (int i = 0; i < N; i++) {
        guards[i] = (struct rpc_guard){.n_preface = 24};
        b.n = 0;
        add_frame(&b, RST_STREAM, 0, 4);
        assert_int_equal(rpc_guard_feed(&guards[i], &shared, b.at, b.n, NS_PER_S), RPC_GUARD_GOOD);
    }
    shared.max_resets_per_second = limits.max_resets_per_second;
    guards[0] = (struct rpc_guard){.n_preface = 24}; /* four seconds later there is room again */
    for (int r = 0; r < 20; r++) {
        b.n = 0;
        add_frame(&b, RST_STREAM, 0, 4);
        assert_int_equal(rpc_guard_feed(&guards[0], &shared, b.at, b.n, 4 * NS_PER_S),
                         RPC_GUARD_GOOD);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_protocols_end_at_the_first_byte_that_differs),
        cmocka_unit_test(test_header_blocks_have_a_limit_over_all_their_frames),
        cmocka_unit_test(test_nothing_stands_between_the_frames_of_a_block),
        cmocka_unit_test(test_questions_pass_as_long_as_they_are_answered),
        cmocka_unit_test(test_unanswered_questions_have_a_limit_however_slowly_they_come),
        cmocka_unit_test(test_messages_may_announce_so_much_and_no_more),
        cmocka_unit_test(test_a_prefix_may_come_in_pieces_and_with_padding),
        cmocka_unit_test(test_streams_that_ended_are_not_followed),
        cmocka_unit_test(test_what_is_not_whole_has_a_limit_over_all_streams),
        cmocka_unit_test(test_what_comes_between_counts_with_what_is_kept),
        cmocka_unit_test(test_streams_have_a_limit_and_make_room),
        cmocka_unit_test(test_resets_pass_at_their_rate_and_in_bursts_and_no_more),
        cmocka_unit_test(test_resets_of_all_connections_have_a_limit_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
