/* Tests of the GOAWAY frames for a client that must leave. Covers their place between gRPC's
 * frames, and the client's answers, for any cut of the bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rpc/guard/goaway.h"

static const uint8_t settings[] = {0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100};
static const uint8_t data[] = {0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
static const uint8_t goaway_frame[] = {0,    0,    8,    7,    0, 0, 0, 0, 0,
                                       0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0};

/* Takes the bytes to send, `cut` bytes at a time. Returns the number of bytes. */
static size_t take(struct rpc_goaway *goaway, uint8_t *out, size_t cut)
{
    uint8_t *bytes;
    size_t n, n_taken = 0;
    while ((n = rpc_goaway_next(goaway, &bytes)) > 0) {
        n = n < cut ? n : cut;
        memcpy(out + n_taken, bytes, n);
        rpc_goaway_said(goaway, n);
        n_taken += n;
    }
    return n_taken;
}

static void hear(struct rpc_goaway *goaway, const uint8_t *bytes, size_t n_bytes, size_t cut)
{
    for (size_t at = 0; at < n_bytes; at += cut)
        rpc_goaway_heard(goaway, bytes + at, n_bytes - at < cut ? n_bytes - at : cut);
}

static void test_next_when_a_frame_is_being_sent_then_it_waits_for_its_end(void **state)
{
    struct rpc_goaway goaway = {0};
    uint8_t *bytes;
    (void)state;
    rpc_goaway_begin(&goaway);
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), 0); /* SETTINGS come first */
    for (size_t i = 0; i < sizeof(settings); i++) {
        assert_int_equal(rpc_goaway_next(&goaway, &bytes), 0);
        rpc_goaway_sent(&goaway, settings + i, 1);
    }
    rpc_goaway_sent(&goaway, data, 10); /* all of the header, and a byte */
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), 0);
    assert_true(rpc_goaway_is_unheard(&goaway) && rpc_goaway_is_open(&goaway));
    rpc_goaway_sent(&goaway, data + 10, sizeof(data) - 10);
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), RPC_GOAWAY_BYTES);
    /* gRPC sends its own frame first, and no byte of the GOAWAY is out yet. */
    rpc_goaway_sent(&goaway, data, 3);
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), 0);
    rpc_goaway_sent(&goaway, data + 3, sizeof(data) - 3);
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), RPC_GOAWAY_BYTES);
    assert_memory_equal(bytes, goaway_frame, sizeof(goaway_frame));
}

/* Writes the answer to the frames `said`: the PING at their end, with the ACK flag. */
static size_t answer(const uint8_t *said, size_t n_said, uint8_t *out)
{
    memcpy(out, said + n_said - 17, 17);
    assert_int_equal(out[3], 6);
    out[4] = 1;
    return 17;
}

static void test_heard_when_both_are_answered_then_it_is_done(void **state)
{
    static const uint8_t zeros[] = {0, 0, 0, 0, 0, 0, 0, 0, 8, 6, 1, 0, 0, 0};
    (void)state;
    for (size_t cut = 1; cut <= 40; cut++) {
        struct rpc_goaway goaway = {0};
        uint8_t first[RPC_GOAWAY_BYTES], second[RPC_GOAWAY_BYTES], bytes[64];
        rpc_goaway_begin(&goaway);
        rpc_goaway_sent(&goaway, settings, sizeof(settings));
        assert_int_equal(take(&goaway, first, cut), 34);
        /* The answer to another PING does not count. Neither do similar bytes right before the true
         * answer. */
        assert_int_equal(answer(first, 34, bytes), 17);
        bytes[16] ^= 0x40;
        hear(&goaway, bytes, 17, cut);
        hear(&goaway, zeros, sizeof(zeros), cut);
        assert_true(rpc_goaway_is_unheard(&goaway));
        bytes[16] ^= 0x40;
        memmove(bytes + 3, bytes, 17);
        memset(bytes, 0, 3);
        hear(&goaway, bytes, 20, cut);
        assert_false(rpc_goaway_is_unheard(&goaway));
        assert_true(rpc_goaway_is_open(&goaway));
        assert_int_equal(take(&goaway, second, cut), 17);
        hear(&goaway, bytes, 20, cut); /* the first answer again */
        assert_true(rpc_goaway_is_open(&goaway));
        hear(&goaway, bytes, answer(second, 17, bytes), cut);
        assert_false(rpc_goaway_is_open(&goaway));
        assert_int_equal(take(&goaway, second, cut), 0);
    }
}

/* After rpc_goaway_end(), gRPC sends a GOAWAY with a lower stream number. A client may then receive
 * no higher number (RFC 9113, section 6.8). */
static void test_end_when_nothing_was_said_then_nothing_is(void **state)
{
    struct rpc_goaway goaway = {0};
    uint8_t *bytes, rest[RPC_GOAWAY_BYTES];
    (void)state;
    rpc_goaway_begin(&goaway);
    rpc_goaway_sent(&goaway, settings, sizeof(settings));
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), RPC_GOAWAY_BYTES);
    rpc_goaway_end(&goaway);
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), 0);
    assert_false(rpc_goaway_is_open(&goaway));

    memset(&goaway, 0, sizeof(goaway));
    rpc_goaway_begin(&goaway);
    rpc_goaway_sent(&goaway, settings, sizeof(settings));
    assert_int_equal(rpc_goaway_next(&goaway, &bytes), RPC_GOAWAY_BYTES);
    rpc_goaway_said(&goaway, 5);
    assert_true(rpc_goaway_is_midway(&goaway));
    rpc_goaway_end(&goaway);
    assert_int_equal(take(&goaway, rest, 7), RPC_GOAWAY_BYTES - 5);
    assert_false(rpc_goaway_is_midway(&goaway));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_when_a_frame_is_being_sent_then_it_waits_for_its_end),
        cmocka_unit_test(test_heard_when_both_are_answered_then_it_is_done),
        cmocka_unit_test(test_end_when_nothing_was_said_then_nothing_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
