/* Tests that bytes written within an event go out at its end, in order. Some peers read, others do
 * not. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "proto/rpc/guard/cork.h"

enum { SMALL_BUFFER = 4096, MANY = 64 << 10, PATIENCE_S = 10 };

struct pair {
    int ours, peer;
    struct rpc_cork cork;
};

static int setup(void **state)
{
    struct pair *pair = calloc(1, sizeof(*pair));
    int fds[2], n = SMALL_BUFFER;
    assert_non_null(pair);
    assert_true(rpc_cork_start());
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    pair->ours = fds[0];
    pair->peer = fds[1];
    assert_int_equal(setsockopt(pair->ours, SOL_SOCKET, SO_SNDBUF, &n, sizeof(n)), 0);
    rpc_cork_init(&pair->cork, pair->ours);
    *state = pair;
    return 0;
}

static int teardown(void **state)
{
    struct pair *pair = *state;
    if (pair->ours >= 0)
        close(pair->ours);
    close(pair->peer);
    for (int64_t until = clock_now_ns() + PATIENCE_S * NS_PER_S;;) {
        /* the thread must finish with the closed sockets first */
        pthread_mutex_lock(&pair->cork.lock);
        bool stuck = pair->cork.stuck;
        pthread_mutex_unlock(&pair->cork.lock);
        if (!stuck)
            break;
        assert_true(clock_now_ns() < until);
        usleep(1000);
    }
    pthread_mutex_destroy(&pair->cork.lock);
    free(pair);
    return 0;
}

/* Returns the i-th byte of the stream that a test sends. */
static uint8_t byte_of(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

/* In two parts, as gRPC sends frames. */
static ssize_t send_some(struct pair *pair, size_t from, size_t n)
{
    static _Thread_local uint8_t bytes[2 * RPC_CORK_BYTES];
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_of(from + i);
    struct iovec parts[2] = {{bytes, n / 3}, {bytes + n / 3, n - n / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return rpc_cork_send(&pair->cork, &message, MSG_NOSIGNAL);
}

/* Reads the available bytes and checks them. Returns 0 at the end of the stream. */
static ssize_t read_some(struct pair *pair, size_t *at, size_t most)
{
    uint8_t bytes[4096];
    ssize_t n = recv(pair->peer, bytes, most < sizeof(bytes) ? most : sizeof(bytes), 0);
    for (ssize_t i = 0; i < n; i++)
        assert_int_equal(bytes[i], byte_of((*at)++));
    return n;
}

static void read_until(struct pair *pair, size_t *at, size_t end)
{
    for (int64_t until = clock_now_ns() + PATIENCE_S * NS_PER_S; *at < end;) {
        assert_true(clock_now_ns() < until);
        if (read_some(pair, at, end - *at) < 0)
            usleep(1000);
    }
}

static void test_nothing_before_the_end(void **state)
{
    struct pair *pair = *state;
    size_t at = 0;
    rpc_cork_begin();
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(send_some(pair, i * 100, 100), 100);
    assert_int_equal(read_some(pair, &at, 1), -1);
    rpc_cork_end();
    read_until(pair, &at, 1000);
    assert_int_equal(pair->cork.n_held, 0);
    assert_null(pair->cork.bytes);
    assert_int_equal(send_some(pair, 1000, 10), 10); /* outside an event, bytes are sent at once */
    assert_int_equal(read_some(pair, &at, 100), 10);
}

static void test_more_than_is_kept_goes_out_in_order(void **state)
{
    struct pair *pair = *state;
    size_t at = 0, sent = 0;
    rpc_cork_begin();
    while (sent < MANY) {
        ssize_t n = send_some(pair, sent, 1000);
        if (n < 0) {
            assert_int_equal(errno, EAGAIN);
            read_until(pair, &at, at + 1); /* as gRPC waits until the socket is writable */
        } else {
            sent += (size_t)n;
        }
        if (n >= 0 && sent < SMALL_BUFFER)
            assert_int_equal(at, 0);
    }
    rpc_cork_end();
    read_until(pair, &at, sent);
}

static void test_large_messages_pass_through(void **state)
{
    struct pair *pair = *state;
    size_t at = 0, sent = 0;
    rpc_cork_begin();
    assert_int_equal(send_some(pair, sent, 10), 10);
    sent += 10;
    ssize_t n = send_some(pair, sent, RPC_CORK_BYTES + 1); /* may be cut short, as by the kernel */
    assert_true(n > 0);
    sent += (size_t)n;
    read_until(pair, &at, sent);
    rpc_cork_end();
    assert_int_equal(read_some(pair, &at, 1), -1);
}

/* The held bytes arrive though the test sends nothing more. */
static void test_the_thread_writes_what_is_stuck(void **state)
{
    struct pair *pair = *state;
    size_t at = 0, sent = 0;
    ssize_t n;
    while ((n = send_some(pair, sent, 100)) > 0)
        sent += (size_t)n;
    assert_int_equal(errno, EAGAIN);
    rpc_cork_begin();
    for (size_t i = 0; i < 50; i++, sent += 100)
        assert_int_equal(send_some(pair, sent, 100), 100);
    rpc_cork_end();
    assert_true(pair->cork.n_held > 0);
    assert_int_equal(send_some(pair, sent, 100), -1); /* gRPC sees that the peer does not read */
    assert_int_equal(errno, EAGAIN);
    rpc_cork_begin();
    assert_int_equal(send_some(pair, sent, 100), -1); /* within an event too */
    rpc_cork_end();
    read_until(pair, &at, sent);
    assert_int_equal(read_some(pair, &at, 1), -1);
}

static void fill(struct pair *pair, size_t *sent)
{
    ssize_t n;
    while ((n = send_some(pair, *sent, 100)) > 0)
        *sent += (size_t)n;
    rpc_cork_begin();
    for (size_t i = 0; i < 50; i++, *sent += 100)
        assert_int_equal(send_some(pair, *sent, 100), 100);
    rpc_cork_end();
}

static void leave(struct pair *pair, bool lingers)
{
    rpc_cork_leave(&pair->cork, lingers);
    close(pair->ours);
    pair->ours = -1;
}

static void test_a_closed_one_is_written_to_the_end(void **state)
{
    struct pair *pair = *state;
    size_t at = 0, sent = 0;
    fill(pair, &sent);
    rpc_cork_shutdown(&pair->cork);
    leave(pair, true);
    read_until(pair, &at, sent);
    for (int64_t until = clock_now_ns() + PATIENCE_S * NS_PER_S; read_some(pair, &at, 1) != 0;) {
        assert_true(clock_now_ns() < until);
        usleep(1000);
    }
}

static void test_leaving_writes_at_once_where_it_can(void **state)
{
    struct pair *pair = *state;
    size_t at = 0;
    rpc_cork_begin();
    assert_int_equal(send_some(pair, 0, 100), 100);
    rpc_cork_shutdown(&pair->cork);
    assert_int_equal(read_some(pair, &at, 200), 100);
    rpc_cork_end();
    assert_int_equal(read_some(pair, &at, 1), 0); /* the end */
}

static ssize_t answer(const struct pair *pair)
{
    return send(pair->peer, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Returns true if less than 0.8 s have passed. Data lingers for a second. Where the machine itself
 * stood still for longer, the result is void and the check is repeated. */
static bool in_time(int64_t since_ns)
{
    return clock_now_ns() - since_ns < NS_PER_S * 8 / 10;
}

static bool is_read_until_the_peer_closes(void)
{
    void *state;
    size_t at = 0;
    bool heard = true;
    setup(&state);
    struct pair *pair = state;
    int64_t begin_ns = clock_now_ns();
    assert_int_equal(send_some(pair, 0, 100), 100);
    assert_int_equal(answer(pair), 1);
    rpc_cork_shutdown(&pair->cork);
    assert_int_equal(answer(pair), 1);
    leave(pair, true);
    for (int i = 0; i < 50; i++, usleep(1000))
        heard = heard && answer(pair) == 1;
    rpc_cork_settle(0);
    ssize_t n = read_some(pair, &at, 200), n_after = read_some(pair, &at, 1);
    bool valid = in_time(begin_ns);
    assert_true(!valid || (heard && n == 100 && n_after == 0));
    assert_int_equal(shutdown(pair->peer, SHUT_WR), 0);
    rpc_cork_settle(PATIENCE_S * 1000);
    valid = in_time(begin_ns); /* the data left before its time */
    teardown(&state);
    return valid;
}

/* Symptom: a client sent window updates while the server closed, and lost the end of its stream. */
static void test_a_closed_one_is_read_until_the_peer_closes(void **state)
{
    int n_tries = 0;
    (void)state;
    while (!is_read_until_the_peer_closes())
        assert_true(++n_tries < 5);
}

static void test_who_does_not_close_is_not_waited_for_for_ever(void **state)
{
    struct pair *pair = *state;
    leave(pair, true);
    assert_int_equal(answer(pair), 1);
    rpc_cork_settle(PATIENCE_S * 1000);
    assert_int_equal(answer(pair), -1);
    assert_int_equal(errno, EPIPE);
}

static void test_who_is_owed_nothing_is_left_at_once(void **state)
{
    struct pair *pair = *state;
    leave(pair, false);
    assert_int_equal(answer(pair), -1);
    assert_int_equal(errno, EPIPE);
}

static bool as_many_linger_as(uint32_t most)
{
    enum { N = 40 };
    static struct pair pairs[N];
    bool heard[N];
    for (int i = 0; i < N; i++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        pairs[i].ours = fds[0];
        pairs[i].peer = fds[1];
        rpc_cork_init(&pairs[i].cork, fds[0]);
    }
    int64_t begin_ns = clock_now_ns();
    for (int i = 0; i < N; i++)
        leave(&pairs[i], true);
    for (int i = 0; i < N; i++)
        heard[i] = answer(&pairs[i]) == 1;
    bool valid = in_time(begin_ns);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(!valid || heard[i] == (i < most));
        close(pairs[i].peer);
        pthread_mutex_destroy(&pairs[i].cork.lock);
    }
    rpc_cork_settle(PATIENCE_S * 1000);
    return valid;
}

/* Symptom: lingering connections took the descriptors that were kept for workers and files. */
static void test_as_many_linger_as_descriptors_allow(void **state)
{
    enum { FILES = 160, MOST = FILES / 8 };
    struct rlimit before, few;
    int n_tries = 0;
    (void)state;
    rpc_cork_settle(PATIENCE_S * 1000);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = FILES, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(rpc_cork_max_lingering(), MOST);
    while (!as_many_linger_as(MOST))
        assert_true(++n_tries < 5);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rpc_cork_max_lingering(), before.rlim_cur < 4096 ? before.rlim_cur / 8 : 512);
}

static void test_a_broken_one_holds_nothing(void **state)
{
    struct pair *pair = *state;
    size_t sent = 0;
    fill(pair, &sent);
    close(pair->peer);
    for (int64_t until = clock_now_ns() + PATIENCE_S * NS_PER_S; pair->cork.n_held > 0;) {
        assert_true(clock_now_ns() < until);
        usleep(1000);
    }
    assert_int_equal(send_some(pair, sent, 100), -1);
    assert_int_equal(errno, EPIPE);
}

/* Writes 300 events of 3 small messages. Two threads run this at once, as threads of gRPC may. */
static void *write_half(void *arg)
{
    struct pair *pair = arg;
    for (int round = 0; round < 300; round++) {
        rpc_cork_begin();
        for (int i = 0; i < 3; i++) {
            static const uint8_t zeros[10];
            struct iovec part = {(void *)(uintptr_t)zeros, sizeof(zeros)};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
            while (rpc_cork_send(&pair->cork, &message, MSG_NOSIGNAL) < 0)
                usleep(100);
        }
        rpc_cork_end();
    }
    return NULL;
}

static void test_two_writers(void **state)
{
    struct pair *pair = *state;
    pthread_t threads[2];
    size_t n_read = 0;
    uint8_t bytes[4096];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_half, pair), 0);
    for (int64_t until = clock_now_ns() + PATIENCE_S * NS_PER_S; n_read < 2 * 300 * 30;) {
        ssize_t n = recv(pair->peer, bytes, sizeof(bytes), 0);
        assert_true(clock_now_ns() < until);
        if (n > 0)
            n_read += (size_t)n;
        else
            usleep(1000);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(recv(pair->peer, bytes, sizeof(bytes), 0), -1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_before_the_end),
        TEST(test_more_than_is_kept_goes_out_in_order),
        TEST(test_large_messages_pass_through),
        TEST(test_the_thread_writes_what_is_stuck),
        TEST(test_a_closed_one_is_written_to_the_end),
        TEST(test_leaving_writes_at_once_where_it_can),
        TEST(test_a_closed_one_is_read_until_the_peer_closes),
        TEST(test_who_does_not_close_is_not_waited_for_for_ever),
        TEST(test_who_is_owed_nothing_is_left_at_once),
        TEST(test_as_many_linger_as_descriptors_allow),
        TEST(test_a_broken_one_holds_nothing),
        TEST(test_two_writers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
