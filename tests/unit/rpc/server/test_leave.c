/* Tests of the clients' view of a server that shuts down during calls. Clients first receive
 * GOAWAY, and no call ends as cancelled. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/rpc/support_rpc.h"

enum { N_CALLERS = 4, ROUNDS = 12, ENOUGH = 30, GRACE_MS = 10000, PATIENCE_MS = 20000 };

struct caller {
    char target[104];
    pthread_t thread;
    atomic_bool *stop;
    atomic_uint n_ok;
    unsigned n_refused, n_wrong;
    struct error wrong;
};

/* Calls one after the other without a pause, as a busy client does. */
static void *call(void *arg)
{
    struct caller *caller = arg;
    struct rpc_client_config config;
    struct rpc_client *client;
    struct error err;
    rpc_client_config_init(&config);
    config.target = caller->target;
    if (rpc_client_create(&config, &client, &caller->wrong) != 0) {
        caller->n_wrong = 1;
        return NULL;
    }
    while (!atomic_load(caller->stop)) {
        int status = rpc_fixture_tokenize(client, "echo", "x", PATIENCE_MS, NULL, &err);
        if (status == 0) {
            atomic_fetch_add(&caller->n_ok, 1);
        } else if (status == STATUS_UNAVAILABLE) {
            caller->n_refused++;
        } else {
            caller->n_wrong++;
            caller->wrong = err;
        }
    }
    rpc_client_destroy(client);
    return NULL;
}

static void wait_for_answers(struct caller *callers)
{
    int64_t until_ns = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
    for (int i = 0; i < N_CALLERS; i++)
        while (atomic_load(&callers[i].n_ok) < ENOUGH && clock_now_ns() < until_ns)
            poll(NULL, 0, 1);
    assert_true(clock_now_ns() < until_ns);
}

static void round_of_calls(void)
{
    struct rpc_fixture fx;
    struct error err;
    struct caller callers[N_CALLERS];
    struct rpc_server *server;
    atomic_bool stop = false;
    uint16_t port = 0;
    memset(&fx, 0, sizeof(fx));
    memset(callers, 0, sizeof(callers));
    rpc_fixture_dir(fx.dir);
    snprintf(fx.socket, sizeof(fx.socket), "%s/s.sock", fx.dir);
    assert_int_equal(rpc_fixture_server(&fx, NULL, &server, &err), 0);
    assert_int_equal(rpc_server_listen_unix(server, fx.socket, &err), 0);
    assert_int_equal(rpc_server_listen_tcp(server, "127.0.0.1:0", &port, &err), 0);
    assert_int_equal(rpc_server_start(server, &err), 0);
    for (int i = 0; i < N_CALLERS; i++) {
        if (i % 2)
            snprintf(callers[i].target, sizeof(callers[i].target), "unix:%s", fx.socket);
        else
            snprintf(callers[i].target, sizeof(callers[i].target), "127.0.0.1:%u", port);
        callers[i].stop = &stop;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    wait_for_answers(callers);
    rpc_server_shutdown(server, GRACE_MS);
    atomic_store(&stop, true);
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        if (callers[i].n_wrong)
            fail_msg("%s: %u calls, the last: %d, %s", callers[i].target, callers[i].n_wrong,
                     callers[i].wrong.status, callers[i].wrong.message);
    }
    rpc_server_destroy(server);
    assert_int_equal(rmdir(fx.dir), 0);
}

/* Symptom: calls between gRPC's shutdown and the arrival of its GOAWAY ended CANCELLED. */
static void test_shutdown_when_clients_call_all_the_while_then_none_is_cancelled(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        round_of_calls();
}

/* --- by hand --- */

struct frame {
    uint8_t type, flags;
    uint32_t stream, n;
    uint8_t payload[16384];
};

static bool read_whole(int fd, void *bytes, size_t n)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint8_t *at = bytes;
    while (n > 0) {
        ssize_t got = poll(&p, 1, PATIENCE_MS) == 1 ? recv(fd, at, n, 0) : -1;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static bool read_frame(int fd, struct frame *out)
{
    uint8_t head[9];
    if (!read_whole(fd, head, sizeof(head)))
        return false;
    out->n = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    out->type = head[3];
    out->flags = head[4];
    assert_true(out->n <= sizeof(out->payload));
    return read_whole(fd, out->payload, out->n);
}

static int dial(const struct rpc_fixture *fx)
{
    static const char hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof(to.sun_path), "%s", fx->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(fd, hello, sizeof(hello) - 1, 0), sizeof(hello) - 1);
    return fd;
}

struct shutdown_job {
    struct rpc_server *server;
    int64_t took_ns;
};

static void *run_shutdown(void *arg)
{
    struct shutdown_job *job = arg;
    int64_t begin_ns = clock_now_ns();
    rpc_server_shutdown(job->server, GRACE_MS);
    job->took_ns = clock_now_ns() - begin_ns;
    return NULL;
}

/* Reads until a frame of this type without the flag ACK. */
static void expect(int fd, uint8_t type, struct frame *out)
{
    do
        assert_true(read_frame(fd, out));
    while (out->type != type || (type != 7 && (out->flags & 1)));
}

static void answer_ping(int fd, const struct frame *ping)
{
    uint8_t bytes[17] = {0, 0, 8, 6, 1};
    memcpy(bytes + 9, ping->payload, 8);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static void
test_shutdown_when_begun_then_goaway_comes_first_and_the_rest_after_answers(void **state)
{
    static const uint8_t highest[8] = {0x7f, 0xff, 0xff, 0xff};
    struct rpc_fixture fx;
    struct frame frame;
    pthread_t thread;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    int fd = dial(&fx);
    expect(fd, 4, &frame);
    struct shutdown_job job = {fx.server, 0};
    assert_int_equal(pthread_create(&thread, NULL, run_shutdown, &job), 0);
    expect(fd, 7, &frame);
    assert_int_equal(frame.n, 8);
    assert_memory_equal(frame.payload, highest, 8);
    for (int i = 0; i < 2; i++) {
        expect(fd, 6, &frame);
        assert_memory_equal(frame.payload, "leaving", 7);
        answer_ping(fd, &frame);
    }
    expect(fd, 7, &frame); /* gRPC's own GOAWAY, then its ping */
    expect(fd, 6, &frame);
    assert_memory_not_equal(frame.payload, "leaving", 7);
    /* Symptom: the connection was ended at once, by a GOAWAY with an error. Clients began
     * calls on the connection again and again. */
    poll(NULL, 0, 100);
    answer_ping(fd, &frame);
    expect(fd, 7, &frame); /* no stream was opened, and there is no error */
    assert_memory_equal(frame.payload, "\0\0\0\0\0\0\0\0", 8);
    close(fd);
    pthread_join(thread, NULL);
    rpc_fixture_stop(&fx);
}

/* Expects only frames such as gRPC's SETTINGS for a while. */
static void expect_no_goaway(int fd, int for_ms)
{
    struct frame frame;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int64_t until_ns = clock_now_ns() + for_ms * NS_PER_MS; clock_now_ns() < until_ns;) {
        if (poll(&p, 1, 10) != 1)
            continue;
        assert_true(read_frame(fd, &frame));
        assert_int_not_equal(frame.type, 7);
    }
}

/* Symptom: GOAWAY came right behind SETTINGS. Clients that read both at once took the connection
 * for good and began calls on it over and over. */
static void
test_shutdown_when_a_client_comes_meanwhile_then_it_is_told_after_the_others(void **state)
{
    static const uint8_t highest[4] = {0x7f, 0xff, 0xff, 0xff};
    struct rpc_fixture fx;
    struct frame frame;
    pthread_t thread;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    int first = dial(&fx);
    expect(first, 4, &frame);
    poll(NULL, 0, 100); /* the connection is no longer new */
    struct shutdown_job job = {fx.server, 0};
    assert_int_equal(pthread_create(&thread, NULL, run_shutdown, &job), 0);
    expect(first, 7, &frame);
    int late = dial(&fx);
    expect(late, 4, &frame);
    expect_no_goaway(late, 100);
    for (int i = 0; i < 2; i++) {
        expect(first, 6, &frame);
        answer_ping(first, &frame);
    }
    expect(late, 7, &frame);
    assert_memory_equal(frame.payload, highest, 4);
    expect(late, 6, &frame);
    assert_memory_equal(frame.payload, "leaving", 7);
    close(first);
    close(late);
    pthread_join(thread, NULL);
    rpc_fixture_stop(&fx);
}

/* A client that does not answer delays the shutdown only briefly. */
static void test_shutdown_when_a_client_is_silent_then_it_goes_on(void **state)
{
    struct rpc_fixture fx;
    struct frame frame;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    int fd = dial(&fx);
    expect(fd, 4, &frame);
    pthread_t thread;
    struct shutdown_job job = {fx.server, 0};
    assert_int_equal(pthread_create(&thread, NULL, run_shutdown, &job), 0);
    expect(fd, 6, &frame);
    expect(fd, 7, &frame);
    expect(fd, 6, &frame);
    assert_memory_not_equal(frame.payload, "leaving", 7);
    close(fd);
    pthread_join(thread, NULL);
    assert_true(job.took_ns < (int64_t)GRACE_MS * NS_PER_MS);
    rpc_fixture_stop(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shutdown_when_clients_call_all_the_while_then_none_is_cancelled),
        cmocka_unit_test(
            test_shutdown_when_begun_then_goaway_comes_first_and_the_rest_after_answers),
        cmocka_unit_test(
            test_shutdown_when_a_client_comes_meanwhile_then_it_is_told_after_the_others),
        cmocka_unit_test(test_shutdown_when_a_client_is_silent_then_it_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
