/* Tables, listeners, limits and the end of a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/health.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "tests/support/names.h"
#include "tests/unit/rpc/support_rpc.h"

#define INFERENCE (&sluice__v1__inference__descriptor)

/* --- tables --- */

static const struct rpc_method no_rows[] = {{NULL, RPC_SHAPE_UNARY, NULL}};
static const struct rpc_method wrong_shape[] = {
    {"WatchRoutes", RPC_SHAPE_UNARY, rpc_unimplemented}};
static const struct rpc_method unknown_row[] = {
    {"WatchRoutes", RPC_SHAPE_SERVER_STREAM, rpc_unimplemented},
    {"Fly", RPC_SHAPE_UNARY, rpc_unimplemented}};
static const struct rpc_method twice[] = {
    {"WatchRoutes", RPC_SHAPE_SERVER_STREAM, rpc_unimplemented},
    {"WatchRoutes", RPC_SHAPE_SERVER_STREAM, rpc_unimplemented}};
static const struct rpc_method no_handler[] = {{"WatchRoutes", RPC_SHAPE_SERVER_STREAM, NULL}};

static void test_create_when_table_is_wrong_then_method_is_named(void **state)
{
    static const struct {
        const struct rpc_method *rows;
        size_t n_rows;
        const char *text;
    } cases[] = {
        {no_rows, 0, "Routing.WatchRoutes"},    {wrong_shape, 1, "Routing.WatchRoutes"},
        {unknown_row, 2, "Routing.Fly"},        {twice, 2, ""},
        {no_handler, 1, "Routing.WatchRoutes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rpc_server_config config;
        struct rpc_server *server = NULL;
        struct error err;
        struct rpc_service service = {&sluice__manager__v1__routing__descriptor, cases[i].rows,
                                      cases[i].n_rows, NULL};
        rpc_server_config_init(&config);
        config.services = &service;
        config.n_services = 1;
        assert_int_equal(rpc_server_create(&config, &server, &err), STATUS_FAILED_PRECONDITION);
        assert_null(server);
        if (!names_all(err.message, cases[i].text))
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].text);
    }
}

/* --- listeners --- */

static int bare_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void test_unix_when_socket_is_stale_then_it_is_replaced_with_mode_0600(void **state)
{
    struct rpc_fixture fx = {.n_done = 0};
    struct rpc_server *server = NULL;
    struct error err;
    struct stat info;
    char path[96];
    (void)state;
    rpc_fixture_dir(fx.dir);
    snprintf(path, sizeof(path), "%s/s", fx.dir);
    close(bare_socket(path)); /* the file stays, no server listens */
    assert_int_equal(rpc_fixture_server(&fx, NULL, &server, &err), 0);
    assert_int_equal(rpc_server_listen_unix(server, path, &err), 0);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISSOCK(info.st_mode));
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(rpc_server_start(server, &err), 0);
    rpc_server_destroy(server);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(fx.dir), 0);
}

static void test_unix_when_socket_is_live_or_no_socket_then_it_is_kept(void **state)
{
    struct rpc_fixture fx;
    struct rpc_server *second = NULL;
    struct error err;
    char path[200];
    (void)state;
    rpc_fixture_start(&fx, NULL);
    assert_int_equal(rpc_fixture_server(&fx, NULL, &second, &err), 0);
    assert_int_equal(rpc_server_listen_unix(second, fx.socket, &err), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(err.message, fx.socket));
    assert_int_equal(err.reason, REASON_ADDRESS_IN_USE);
    /* The first server still answers. */
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", "x", 5000, NULL, &err), 0);

    snprintf(path, sizeof(path), "%s/file", fx.dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(rpc_server_listen_unix(second, path, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(unlink(path), 0);

    memset(path, 'a', 108);
    path[108] = '\0';
    assert_int_equal(rpc_server_listen_unix(second, path, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "107"));
    rpc_server_destroy(second);
    rpc_fixture_stop(&fx);
}

static void test_tcp_when_port_is_in_use_then_address_and_holder_are_named(void **state)
{
    struct rpc_fixture fx;
    struct rpc_server *first = NULL, *second = NULL;
    struct error err;
    uint16_t port = 0;
    char address[64], holder[64];
    (void)state;
    assert_int_equal(rpc_fixture_server(&fx, NULL, &first, &err), 0);
    assert_int_equal(rpc_fixture_server(&fx, NULL, &second, &err), 0);
    assert_int_equal(rpc_server_listen_tcp(first, "127.0.0.1:0", &port, &err), 0);
    assert_int_equal(rpc_server_start(first, &err), 0);
    assert_true(port > 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    snprintf(holder, sizeof(holder), "process %d", (int)getpid());
    assert_int_equal(rpc_server_listen_tcp(second, address, NULL, &err), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(err.message, address));
    assert_non_null(strstr(err.message, holder));
    rpc_server_destroy(second);
    rpc_server_destroy(first);
}

static void test_tcp_when_address_is_bad_then_invalid_argument(void **state)
{
    static const char *const bad[] = {"",       "8001",   ":8001", "127.0.0.1:",  "h:70000",
                                      "h:80 0", "::1:80", "[::1]", "127.0.0.1:-1"};
    struct rpc_fixture fx;
    struct rpc_server *server = NULL;
    struct error err;
    (void)state;
    assert_int_equal(rpc_fixture_server(&fx, NULL, &server, &err), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(rpc_server_listen_tcp(server, bad[i], NULL, &err),
                         STATUS_INVALID_ARGUMENT);
    rpc_server_destroy(server);
}

/* --- limits and refusals --- */

static int refuse_all(void *context, struct rpc_call *call, struct error *err)
{
    const char *key = rpc_call_metadata(call, "x-key", NULL);
    (void)context;
    if (key != NULL && strcmp(key, "sesame") == 0)
        return 0;
    return error_set(err, STATUS_UNAUTHENTICATED, "no key for %s", rpc_call_method(call));
}

static void test_authorize_when_refused_then_handler_never_runs(void **state)
{
    static const struct rpc_metadata good = {"x-key", "sesame"};
    struct rpc_fixture fx;
    struct rpc_server_config config;
    struct error err;
    ProtobufCMessage *response = NULL;
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 5000, .metadata = &good, .n_metadata = 1};
    (void)state;
    rpc_server_config_init(&config);
    config.authorize = refuse_all;
    rpc_fixture_start(&fx, &config);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", "x", 5000, NULL, &err),
                     STATUS_UNAUTHENTICATED);
    assert_int_equal(rpc_client_unary(fx.client, INFERENCE, "Tokenize", &request.base, &options,
                                      &response, &err),
                     0);
    rpc_message_free(response);
    rpc_fixture_stop(&fx);
}

static int check_health(struct rpc_fixture *fx)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct error err;
    int rc = rpc_client_unary(fx->client, &grpc__health__v1__health__descriptor, "Check",
                              &request.base, NULL, &response, &err);
    if (rc == 0)
        rpc_message_free(response);
    return rc;
}

static void test_calls_when_over_max_then_resource_exhausted_with_retry(void **state)
{
    struct rpc_fixture fx;
    struct rpc_server_config config;
    struct rpc_reader *reader = NULL;
    ProtobufCMessage *message = NULL;
    struct error err;
    static char name[] = "hang";
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    (void)state;
    rpc_server_config_init(&config);
    config.max_calls = 1;
    rpc_fixture_start(&fx, &config);
    request.model = name;
    assert_int_equal(
        rpc_reader_open(fx.client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    rpc_message_free(message);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", "x", 5000, NULL, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_TOO_MANY_CALLS);
    assert_int_equal(check_health(&fx), 0); /* a full server still answers health checks */
    assert_int_equal(err.retry_after_ms, 1000);
    rpc_reader_close(reader);
    rpc_fixture_stop(&fx);
}

static void test_metadata_when_over_16_kib_then_call_fails_and_server_lives(void **state)
{
    static char value[17000];
    const struct rpc_metadata big = {"x-big", value};
    struct rpc_fixture fx;
    struct error err;
    ProtobufCMessage *response = NULL;
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 5000, .metadata = &big, .n_metadata = 1};
    (void)state;
    memset(value, 'a', sizeof(value) - 1);
    rpc_fixture_start(&fx, NULL);
    assert_int_equal(rpc_client_unary(fx.client, INFERENCE, "Tokenize", &request.base, &options,
                                      &response, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    /* gRPC core 1.51 sometimes closes the offender's connection too: a new one must work. */
    int status = STATUS_UNAVAILABLE;
    for (int i = 0; i < 50 && status == STATUS_UNAVAILABLE; i++) {
        status = rpc_fixture_tokenize(fx.client, "echo", "x", 5000, NULL, &err);
        rpc_client_wait_connected(fx.client, 100, &err);
    }
    assert_int_equal(status, 0);
    rpc_fixture_stop(&fx);
}

/* --- the end --- */

struct shutdown_job {
    struct rpc_server *server;
    uint32_t grace_ms;
    int64_t took_ns;
};

static void *run_shutdown(void *arg)
{
    struct shutdown_job *job = arg;
    int64_t start_ns = clock_now_ns();
    rpc_server_shutdown(job->server, job->grace_ms);
    job->took_ns = clock_now_ns() - start_ns;
    return NULL;
}

static struct rpc_reader *open_generate(struct rpc_fixture *fx, char *model, uint64_t n)
{
    struct error err;
    struct rpc_reader *reader = NULL;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.model = model;
    request.sampling = &sampling;
    sampling.has_seed = 1;
    sampling.seed = n;
    sampling.has_top_k = 1;
    sampling.top_k = 2000;
    assert_int_equal(
        rpc_reader_open(fx->client, INFERENCE, "Generate", &request.base, NULL, &reader, &err), 0);
    return reader;
}

static void test_shutdown_when_streams_live_then_they_finish_within_grace(void **state)
{
    static char push[] = "push";
    struct rpc_fixture fx;
    struct error err;
    ProtobufCMessage *message = NULL;
    pthread_t thread;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    struct rpc_reader *reader = open_generate(&fx, push, 500);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    rpc_message_free(message);
    struct shutdown_job job = {fx.server, 10000, 0};
    assert_int_equal(pthread_create(&thread, NULL, run_shutdown, &job), 0);
    unsigned n = 1;
    while (rpc_reader_next(reader, &message, &err) == 0 && message != NULL) {
        rpc_message_free(message);
        n++;
    }
    assert_int_equal(n, 500);
    pthread_join(thread, NULL);
    assert_true(job.took_ns < 5 * NS_PER_S);
    rpc_reader_close(reader);
    rpc_fixture_stop(&fx);
}

/* --- requests whose message never comes --- */

static size_t add_frame(uint8_t *out, size_t at, uint8_t type, uint8_t flags, uint8_t stream,
                        const void *payload, uint8_t n)
{
    const uint8_t head[9] = {0, 0, n, type, flags, 0, 0, 0, stream};
    memcpy(out + at, head, sizeof(head));
    if (n)
        memcpy(out + at + sizeof(head), payload, n);
    return at + sizeof(head) + n;
}

/* A connection that opens two calls of Tokenize and sends nothing, and half a message. */
static int open_silent_calls(const char *socket_path)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char *const headers[][2] = {
        {":method", "POST"},
        {":scheme", "http"},
        {":path", "/sluice.v1.Inference/Tokenize"},
        {":authority", "a"},
        {"content-type", "application/grpc"},
        {"te", "trailers"},
    };
    uint8_t block[256], bytes[1024];
    size_t n_block = 0, n = sizeof(preface) - 1;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        block[n_block++] = 0; /* literal, not indexed */
        for (size_t j = 0; j < 2; j++) {
            size_t length = strlen(headers[i][j]);
            block[n_block++] = (uint8_t)length;
            memcpy(block + n_block, headers[i][j], length);
            n_block += length;
        }
    }
    memcpy(bytes, preface, n);
    n = add_frame(bytes, n, 4, 0, 0, NULL, 0);
    n = add_frame(bytes, n, 1, 4, 1, block, (uint8_t)n_block);
    n = add_frame(bytes, n, 1, 4, 3, block, (uint8_t)n_block);
    n = add_frame(bytes, n, 0, 0, 3, "\0\0\0\0\x08\x0a\x06", 7);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    return fd;
}

static uint64_t wait_live(struct rpc_server *server, uint64_t n_live, bool end_overdue)
{
    struct rpc_server_stats stats;
    int64_t until = clock_now_ns() + 5 * NS_PER_S;
    do {
        nanosleep(&(struct timespec){0, 10 * NS_PER_MS}, NULL);
        if (end_overdue)
            rpc_server_end_overdue(server, clock_now_ns(), 50);
        rpc_server_stats(server, &stats);
    } while (stats.n_live != n_live && clock_now_ns() < until);
    assert_int_equal(stats.n_live, n_live);
    return stats.n_ended[4];
}

static void test_calls_when_their_request_does_not_come_then_they_are_ended(void **state)
{
    static char hang[] = "hang";
    struct rpc_fixture fx;
    struct rpc_server_stats stats;
    struct error err;
    ProtobufCMessage *message = NULL;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    struct rpc_reader *reader = open_generate(&fx, hang, 1);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    rpc_message_free(message);
    int fd = open_silent_calls(fx.socket);
    wait_live(fx.server, 3, false);
    for (int i = 0; i < 10; i++) { /* with a stopped clock no call is late */
        rpc_server_end_overdue(fx.server, 1, 50);
        nanosleep(&(struct timespec){0, 10 * NS_PER_MS}, NULL);
    }
    rpc_server_stats(fx.server, &stats);
    assert_int_equal(stats.n_live, 3);
    assert_int_equal(wait_live(fx.server, 1, true),
                     2); /* the connection with a request continues */
    close(fd);
    rpc_reader_close(reader);
    rpc_fixture_stop(&fx);
}

static void test_shutdown_when_streams_hang_then_they_are_ended_after_grace(void **state)
{
    enum { N = 8 };
    static char hang[] = "hang";
    struct rpc_fixture fx;
    struct error err;
    struct rpc_reader *readers[N];
    ProtobufCMessage *message = NULL;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    for (size_t i = 0; i < N; i++) {
        readers[i] = open_generate(&fx, hang, 1);
        assert_int_equal(rpc_reader_next(readers[i], &message, &err), 0);
        rpc_message_free(message);
    }
    struct shutdown_job job = {fx.server, 200, 0};
    run_shutdown(&job);
    assert_in_range(job.took_ns, 190 * NS_PER_MS, 5 * NS_PER_S);
    assert_int_equal(rpc_fixture_read(&fx, &fx.n_cancelled), N);
    assert_int_equal(rpc_fixture_read(&fx, &fx.n_done), N);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(rpc_reader_next(readers[i], &message, &err), STATUS_UNAVAILABLE);
        assert_int_equal(err.reason, REASON_DRAINING);
        rpc_reader_close(readers[i]);
    }
    rpc_fixture_stop(&fx);
}

/* Reads to the end. Returns not NULL if the end came with its reason. */
static void *read_to_end(void *arg)
{
    struct rpc_reader *reader = arg;
    ProtobufCMessage *message = NULL;
    struct error err;
    int rc;
    while ((rc = rpc_reader_next(reader, &message, &err)) == 0 && message != NULL)
        rpc_message_free(message);
    return (void *)(uintptr_t)(rc == STATUS_UNAVAILABLE && err.reason == REASON_DRAINING);
}

/* Symptom: when a message was under way, the end overtook it and lost the reason. */
static void test_shutdown_when_streams_are_read_then_each_is_told_the_reason(void **state)
{
    enum { N = 4, ROUNDS = 5, ENDLESS = 100000000 };
    struct timespec pause = {0, 20 * NS_PER_MS};
    static char pull[] = "pull";
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct rpc_fixture fx;
        struct rpc_reader *readers[N];
        pthread_t threads[N];
        rpc_fixture_start(&fx, NULL);
        for (size_t i = 0; i < N; i++) {
            readers[i] = open_generate(&fx, pull, ENDLESS);
            assert_int_equal(pthread_create(&threads[i], NULL, read_to_end, readers[i]), 0);
        }
        nanosleep(&pause, NULL);
        rpc_server_shutdown(fx.server, 30);
        for (size_t i = 0; i < N; i++) {
            void *told;
            pthread_join(threads[i], &told);
            assert_true(told != NULL);
            rpc_reader_close(readers[i]);
        }
        rpc_fixture_stop(&fx);
    }
}

static void test_drain_when_set_then_new_calls_are_refused_and_live_ones_go_on(void **state)
{
    static char hang[] = "hang";
    struct rpc_fixture fx;
    struct error err;
    ProtobufCMessage *message = NULL;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    struct rpc_reader *reader = open_generate(&fx, hang, 1);
    assert_int_equal(rpc_reader_next(reader, &message, &err), 0);
    rpc_message_free(message);
    rpc_server_drain(fx.server);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "echo", "x", 5000, NULL, &err),
                     STATUS_UNAVAILABLE);
    assert_int_equal(err.reason, REASON_DRAINING);
    assert_int_equal(rpc_fixture_read(&fx, &fx.n_cancelled), 0);
    rpc_reader_close(reader);
    rpc_fixture_stop(&fx);
}

/* A call retained past the server's end stays a valid object. */
static void test_destroy_when_call_is_retained_then_sends_are_refused(void **state)
{
    struct rpc_fixture fx;
    struct error err;
    (void)state;
    rpc_fixture_start(&fx, NULL);
    assert_int_equal(rpc_fixture_tokenize(fx.client, "late", "x", 1, NULL, &err),
                     STATUS_DEADLINE_EXCEEDED);
    rpc_server_shutdown(fx.server, 0);
    struct timespec pause = {0, 50 * NS_PER_MS};
    nanosleep(&pause, NULL);
    rpc_fixture_stop(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_when_table_is_wrong_then_method_is_named),
        cmocka_unit_test(test_unix_when_socket_is_stale_then_it_is_replaced_with_mode_0600),
        cmocka_unit_test(test_unix_when_socket_is_live_or_no_socket_then_it_is_kept),
        cmocka_unit_test(test_tcp_when_port_is_in_use_then_address_and_holder_are_named),
        cmocka_unit_test(test_tcp_when_address_is_bad_then_invalid_argument),
        cmocka_unit_test(test_authorize_when_refused_then_handler_never_runs),
        cmocka_unit_test(test_calls_when_over_max_then_resource_exhausted_with_retry),
        cmocka_unit_test(test_metadata_when_over_16_kib_then_call_fails_and_server_lives),
        cmocka_unit_test(test_shutdown_when_streams_live_then_they_finish_within_grace),
        cmocka_unit_test(test_calls_when_their_request_does_not_come_then_they_are_ended),
        cmocka_unit_test(test_shutdown_when_streams_hang_then_they_are_ended_after_grace),
        cmocka_unit_test(test_shutdown_when_streams_are_read_then_each_is_told_the_reason),
        cmocka_unit_test(test_drain_when_set_then_new_calls_are_refused_and_live_ones_go_on),
        cmocka_unit_test(test_destroy_when_call_is_retained_then_sends_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
