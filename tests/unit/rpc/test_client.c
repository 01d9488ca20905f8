/* How a client connects. Symptom of what was mended here: "Handshake read failed" from `sluice run`
 * against a server with TLS on a slow machine, where one attempt had no more than the second that
 * lies between two. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/rpc_client.h"

/* Says nothing for a while, then its settings; serves the first connection alone. */
struct slow_server {
    int listener;
    uint32_t silent_ms;
    pthread_t thread;
};

static const uint8_t empty_settings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0};

static void *serve_slowly(void *arg)
{
    struct slow_server *server = arg;
    char bytes[256];
    int fd = accept(server->listener, NULL, NULL);
    if (fd < 0)
        return NULL;
    struct timespec pause = {server->silent_ms / 1000, server->silent_ms % 1000 * NS_PER_MS};
    nanosleep(&pause, NULL);
    ssize_t n = send(fd, empty_settings, sizeof(empty_settings), MSG_NOSIGNAL);
    while (n > 0)
        n = recv(fd, bytes, sizeof(bytes), 0);
    close(fd);
    return NULL;
}

static void start_slow_server(struct slow_server *server, uint32_t silent_ms,
                              char target[static 32])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    server->silent_ms = silent_ms;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->listener >= 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(server->listener, 8), 0);
    assert_int_equal(getsockname(server->listener, (struct sockaddr *)&at, &n), 0);
    snprintf(target, 32, "127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&server->thread, NULL, serve_slowly, server), 0);
}

static int connect_to(uint32_t silent_ms, uint32_t connect_timeout_ms)
{
    struct slow_server server;
    struct rpc_client_config config;
    struct rpc_client *client = NULL;
    struct error err;
    char target[32];
    start_slow_server(&server, silent_ms, target);
    rpc_client_config_init(&config);
    config.target = target;
    if (connect_timeout_ms > 0)
        config.connect_timeout_ms = connect_timeout_ms;
    assert_int_equal(rpc_client_create(&config, &client, &err), 0);
    int status = rpc_client_wait_connected(client, silent_ms + 3000, &err);
    rpc_client_destroy(client);
    pthread_join(server.thread, NULL);
    close(server.listener);
    return status;
}

static void test_connect_when_the_server_is_slow_then_the_attempt_outlasts_the_backoff(void **state)
{
    (void)state;
    assert_int_equal(connect_to(1600, 0), 0);
}

static void test_connect_when_an_attempt_takes_too_long_then_it_is_given_up(void **state)
{
    (void)state;
    assert_int_equal(connect_to(600, 200), STATUS_UNAVAILABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_connect_when_the_server_is_slow_then_the_attempt_outlasts_the_backoff),
        cmocka_unit_test(test_connect_when_an_attempt_takes_too_long_then_it_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
