/* Tests of a server's limits: connections, metadata, messages, compressed messages. Also tests that
 * the server still listens after it ran out of descriptors. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "tests/support/names.h"
#include "tests/unit/rpc/support_rpc.h"

enum { PATIENCE_MS = 20000 };

static atomic_uint n_limits[N_RPC_LIMITS];

static void count(void *context, enum rpc_limit limit)
{
    (void)context;
    atomic_fetch_add(&n_limits[limit], 1);
}

static bool counted(enum rpc_limit limit, unsigned n)
{
    int64_t until_ns = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
    while (atomic_load(&n_limits[limit]) < n && clock_now_ns() < until_ns)
        poll(NULL, 0, 5);
    return atomic_load(&n_limits[limit]) >= n;
}

struct tcp {
    struct rpc_fixture fx;
    struct rpc_server *server;
    uint16_t port;
};

static void start(struct tcp *t, struct rpc_server_config *config)
{
    struct error err;
    memset(t, 0, sizeof(*t));
    for (int i = 0; i < N_RPC_LIMITS; i++)
        atomic_store(&n_limits[i], 0);
    config->on_limit = count;
    assert_int_equal(rpc_fixture_server(&t->fx, config, &t->server, &err), 0);
    assert_int_equal(rpc_server_listen_tcp(t->server, "127.0.0.1:0", &t->port, &err), 0);
    assert_int_equal(rpc_server_start(t->server, &err), 0);
}

static int dial(const struct tcp *t)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(t->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Returns true if the server closes the connection in time. Ignores its settings before that. */
static bool is_closed(int fd, int patience_ms)
{
    char bytes[512];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, patience_ms) == 1)
        if (recv(fd, bytes, sizeof(bytes), 0) <= 0)
            return true;
    return false;
}

static bool has_connections(const struct tcp *t, uint32_t n)
{
    int64_t until_ns = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
    while (rpc_server_n_connections(t->server) != n && clock_now_ns() < until_ns)
        poll(NULL, 0, 5);
    return rpc_server_n_connections(t->server) == n;
}

static bool answers(const struct tcp *t)
{
    struct rpc_client_config config;
    struct rpc_client *client;
    struct error err;
    char target[32];
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "127.0.0.1:%u", t->port);
    config.target = target;
    assert_int_equal(rpc_client_create(&config, &client, &err), 0);
    int status = rpc_client_wait_connected(client, PATIENCE_MS, &err);
    rpc_client_destroy(client);
    return status == 0;
}

static void test_connections_over_the_limit_are_closed_at_once_and_room_comes_back(void **state)
{
    enum { LIMIT = 5, OVER = 3 };
    struct rpc_server_config config;
    struct tcp t;
    int fds[LIMIT + OVER];
    (void)state;
    rpc_server_config_init(&config);
    config.max_connections = LIMIT;
    start(&t, &config);
    for (int i = 0; i < LIMIT + OVER; i++)
        fds[i] = dial(&t);
    for (int i = LIMIT; i < LIMIT + OVER; i++)
        assert_true(is_closed(fds[i], PATIENCE_MS));
    assert_true(counted(RPC_LIMIT_CONNECTIONS, OVER));
    assert_true(has_connections(&t, LIMIT));
    for (int i = 0; i < LIMIT; i++)
        assert_false(is_closed(fds[i], 20));
    for (int i = 0; i < LIMIT + OVER; i++)
        close(fds[i]);
    assert_true(has_connections(&t, 0)); /* the server may notice the end late */
    assert_true(answers(&t));
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_CONNECTIONS]), OVER);
    rpc_server_destroy(t.server);
}

/* gRPC 1.51 stops listening for ever when accept() finds no free descriptor. */
static void test_without_a_descriptor_connections_are_dropped_and_the_port_stays_open(void **state)
{
    enum { ONE_BY_ONE = 10, CLIENTS = 20, MAX_FILL = 256 };
    struct rpc_server_config config;
    struct rlimit before, few;
    struct tcp t;
    int fds[CLIENTS], fill[MAX_FILL], n_fill = 0;
    (void)state;
    rpc_server_config_init(&config);
    start(&t, &config);
    assert_true(answers(&t));
    assert_true(has_connections(&t, 0));
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = MAX_FILL;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < CLIENTS; i++) {
        /* No descriptor is left: descriptors that gRPC returns late are taken as well. Those of
         * lingering connections are taken for a second. Nothing is taken while the server drops a
         * connection, because the server needs a descriptor to do that. */
        for (int quiet = 0; quiet < (i ? 1 : 300) && i < ONE_BY_ONE; quiet++) {
            if (n_fill < MAX_FILL && (fill[n_fill] = dup(fds[0])) >= 0) {
                n_fill++;
                quiet = -1;
            } else {
                poll(NULL, 0, 5);
            }
        }
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(t.port)};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&to, sizeof(to)), 0);
        if (i < ONE_BY_ONE)
            assert_true(counted(RPC_LIMIT_CONNECTIONS, i + 1));
    }
    for (int i = 0; i < CLIENTS; i++)
        assert_true(is_closed(fds[i], PATIENCE_MS));
    assert_true(counted(RPC_LIMIT_CONNECTIONS, CLIENTS));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < n_fill; i++)
        close(fill[i]);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    assert_true(answers(&t));
    rpc_server_destroy(t.server);
}

static void test_a_connection_that_stays_silent_is_closed_after_the_handshake_timeout(void **state)
{
    struct rpc_server_config config;
    struct tcp t;
    (void)state;
    rpc_server_config_init(&config);
    config.handshake_timeout_ms = 300;
    start(&t, &config);
    int64_t begin_ns = clock_now_ns();
    int fd = dial(&t);
    assert_true(is_closed(fd, PATIENCE_MS));
    int64_t took_ms = (clock_now_ns() - begin_ns) / NS_PER_MS;
    assert_in_range(took_ms, 250, 6000);
    close(fd);
    assert_true(counted(RPC_LIMIT_HANDSHAKE, 1));
    fd = dial(&t); /* neither a connection that leaves in time nor a served one counts */
    close(fd);
    assert_true(answers(&t));
    assert_true(has_connections(&t, 0));
    poll(NULL, 0, 400);
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_HANDSHAKE]), 1);
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_KEEPALIVE]), 0);
    rpc_server_destroy(t.server);
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_HANDSHAKE]), 1);
}

/* --- single calls --- */

static int tokenize_with_metadata(struct rpc_fixture *fx, size_t n_value, struct error *err)
{
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    char *value = malloc(n_value + 1);
    memset(value, 'v', n_value);
    value[n_value] = '\0';
    const struct rpc_metadata metadata = {"x-test", value};
    struct rpc_call_options options = {
        .timeout_ms = PATIENCE_MS, .metadata = &metadata, .n_metadata = 1};
    request.model = (char *)(uintptr_t) "echo";
    int status = rpc_client_unary(fx->client, &sluice__v1__inference__descriptor, "Tokenize",
                                  &request.base, &options, &response, err);
    rpc_message_free(response);
    free(value);
    return status;
}

static void test_metadata_over_the_limit_is_refused_by_name(void **state)
{
    enum { LIMIT = 2048 };
    struct rpc_server_config config;
    struct rpc_fixture fx;
    struct error err;
    (void)state;
    rpc_server_config_init(&config);
    config.max_metadata_bytes = LIMIT;
    config.on_limit = count;
    atomic_store(&n_limits[RPC_LIMIT_METADATA], 0);
    rpc_fixture_start(&fx, &config);
    assert_int_equal(tokenize_with_metadata(&fx, LIMIT - 512, &err), 0);
    assert_int_equal(tokenize_with_metadata(&fx, LIMIT, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_METADATA_TOO_LARGE);
    assert_non_null(strstr(err.message, "2048"));
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_METADATA]), 1);
    assert_int_equal(tokenize_with_metadata(&fx, 15 * LIMIT, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(tokenize_with_metadata(&fx, 0, &err), 0);
    rpc_fixture_stop(&fx);
}

static int tokenize_of_size(struct rpc_fixture *fx, size_t n_message, struct error *err)
{
    char *version = NULL, *text = malloc(n_message);
    size_t n_text = n_message - 6 - 4; /* model "echo"; key and length of the text */
    memset(text, 'x', n_text);
    text[n_text] = '\0';
    int status = rpc_fixture_tokenize(fx->client, "echo", text, PATIENCE_MS, &version, err);
    free(version);
    free(text);
    return status;
}

static void test_a_message_over_the_limit_is_refused_and_counted(void **state)
{
    enum { LIMIT = 100000 };
    struct rpc_server_config config;
    struct rpc_fixture fx;
    struct error err;
    (void)state;
    rpc_server_config_init(&config);
    config.max_message_bytes = LIMIT;
    config.on_limit = count;
    atomic_store(&n_limits[RPC_LIMIT_MESSAGE], 0);
    rpc_fixture_start(&fx, &config);
    assert_int_equal(tokenize_of_size(&fx, LIMIT, &err), 0);
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_MESSAGE]), 0);
    assert_int_equal(tokenize_of_size(&fx, LIMIT + 1, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_true(names_all(err.message, "100001|100000"));
    assert_true(counted(RPC_LIMIT_MESSAGE, 1));
    assert_int_equal(tokenize_of_size(&fx, 15 << 20, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_true(names_all(err.message, "15728641|100000"));
    assert_true(counted(RPC_LIMIT_MESSAGE, 2));
    struct rpc_server_stats stats;
    int64_t until_ns = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
    do {
        rpc_server_stats(fx.server, &stats);
    } while (stats.n_live > 0 && clock_now_ns() < until_ns);
    assert_int_equal(stats.n_ended[8], 2); /* as the client saw it, not as cancelled */
    assert_int_equal(rpc_fixture_tokenize(fx.client, "never", "x", 50, NULL, &err),
                     STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(tokenize_of_size(&fx, 1000, &err), 0);
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_MESSAGE]), 2);
    rpc_fixture_stop(&fx);
}

/* Sends the first bytes of a raw client, up to the prefix of stream 1's message. */
static void begin_message(int fd, uint32_t n_message)
{
    static const char path[] = "/sluice.v1.Inference/Tokenize";
    /* :authority, content-type, te */
    static const char rest[] = "\x01\x01x\x0f\x10\x10"
                               "application/grpc\0\2te\x08trailers";
    static const uint8_t data[10] = {0, 0, 5, 0, 0, 0, 0, 0, 1, 0}; /* a frame of 5 bytes */
    uint8_t bytes[256] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    size_t n = 24 + 9, head;
    head = n;
    n += 9;
    bytes[n++] = 0x83; /* indexed: POST, http */
    bytes[n++] = 0x86;
    bytes[n++] = 0x04; /* :path */
    bytes[n++] = sizeof(path) - 1;
    memcpy(bytes + n, path, sizeof(path) - 1);
    n += sizeof(path) - 1;
    memcpy(bytes + n, rest, sizeof(rest) - 1);
    n += sizeof(rest) - 1;
    bytes[head + 2] = (uint8_t)(n - head - 9);
    bytes[head + 3] = 1; /* HEADERS, END_HEADERS, stream 1 */
    bytes[head + 4] = 4;
    bytes[head + 8] = 1;
    memcpy(bytes + n, data, sizeof(data));
    n += sizeof(data);
    for (int shift = 24; shift >= 0; shift -= 8)
        bytes[n++] = (uint8_t)(n_message >> shift);
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

/* gRPC 1.51 stores a message's bytes before it checks the length. */
static void test_a_message_far_over_the_limit_ends_its_connection_and_is_counted(void **state)
{
    enum { LIMIT = 100000, SLACK = 16 << 20 };
    struct rpc_server_config config;
    struct tcp t;
    (void)state;
    rpc_server_config_init(&config);
    config.max_message_bytes = LIMIT;
    start(&t, &config);
    int near = dial(&t), far = dial(&t);
    begin_message(near, LIMIT + SLACK);
    begin_message(far, LIMIT + SLACK + 1);
    assert_true(is_closed(far, PATIENCE_MS));
    assert_true(counted(RPC_LIMIT_MESSAGE, 1));
    assert_false(is_closed(near, 100));
    assert_int_equal(atomic_load(&n_limits[RPC_LIMIT_MESSAGE]), 1);
    close(near);
    close(far);
    assert_true(answers(&t));
    rpc_server_destroy(t.server);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections_over_the_limit_are_closed_at_once_and_room_comes_back),
        cmocka_unit_test(test_without_a_descriptor_connections_are_dropped_and_the_port_stays_open),
        cmocka_unit_test(test_a_connection_that_stays_silent_is_closed_after_the_handshake_timeout),
        cmocka_unit_test(test_metadata_over_the_limit_is_refused_by_name),
        cmocka_unit_test(test_a_message_over_the_limit_is_refused_and_counted),
        cmocka_unit_test(test_a_message_far_over_the_limit_ends_its_connection_and_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
