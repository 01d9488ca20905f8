/* Tests of readers that take too little. Bytes of a message that trickle do not save the reader. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

/* The reader gets a byte per DRIP_MS; a real one would get a byte a second. The test moves the
 * gateway's clock past the limit, in place of waiting 30 s. */
enum { DRIP_MS = 25, POURED_BYTES = 2048, WAIT_MS = 20000 };

static struct fixture f;

/* Stands between a client and the gateway. The gateway's first bytes pass at once, later ones one
 * by one until the test opens the flow. */
struct drip {
    char socket[108];
    int listener, client, gateway;
    _Atomic bool pours, ends;
    _Atomic unsigned n_drips;
    pthread_t thread;
};

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    return address;
}

/* Passes at most n bytes on. Returns their number; 0: one side has closed. */
static size_t pass(int from, int to, size_t n)
{
    char data[4096];
    ssize_t got = recv(from, data, n < sizeof(data) ? n : sizeof(data), 0);
    if (got <= 0 || send(to, data, (size_t)got, MSG_NOSIGNAL) != got)
        return 0;
    return (size_t)got;
}

static void *run_drip(void *arg)
{
    struct drip *drip = arg;
    size_t n_left = POURED_BYTES;
    int64_t next_ns = 0;
    drip->client = accept(drip->listener, NULL, NULL);
    while (drip->client >= 0 && !drip->ends) {
        bool flows = n_left || drip->pours || clock_now_ns() >= next_ns;
        struct pollfd fds[] = {{drip->client, POLLIN, 0}, {flows ? drip->gateway : -1, POLLIN, 0}};
        if (poll(fds, 2, DRIP_MS / 5) < 0)
            break;
        if (fds[0].revents && !pass(drip->client, drip->gateway, SIZE_MAX))
            break;
        if (!fds[1].revents)
            continue;
        size_t n = pass(drip->gateway, drip->client, drip->pours ? SIZE_MAX : n_left ? n_left : 1);
        if (!n)
            break;
        if (!n_left && !drip->pours) {
            drip->n_drips++;
            next_ns = clock_now_ns() + DRIP_MS * NS_PER_MS;
        }
        n_left -= n < n_left ? n : n_left;
    }
    shutdown(drip->client, SHUT_RDWR);
    shutdown(drip->gateway, SHUT_RDWR);
    return NULL;
}

static void drip_start(struct drip *drip)
{
    int n_kept = 4096; /* the kernel keeps little of the gateway's bytes */
    *drip = (struct drip){.client = -1};
    snprintf(drip->socket, sizeof(drip->socket), "%s/drip.sock", f.dir);
    struct sockaddr_un here = address_of(drip->socket), there = address_of(f.socket);
    drip->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    drip->gateway = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(drip->gateway, SOL_SOCKET, SO_RCVBUF, &n_kept, sizeof(n_kept));
    assert_int_equal(bind(drip->listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(drip->listener, 1), 0);
    assert_int_equal(connect(drip->gateway, (struct sockaddr *)&there, sizeof(there)), 0);
    assert_int_equal(pthread_create(&drip->thread, NULL, run_drip, drip), 0);
}

static void drip_end(struct drip *drip)
{
    drip->ends = true;
    pthread_join(drip->thread, NULL);
    close(drip->listener);
    close(drip->client);
    close(drip->gateway);
    unlink(drip->socket);
}

/* Waits for n further bytes, each of which reaches the client on its own. */
static void drip_wait(struct drip *drip, unsigned n)
{
    unsigned n_until = drip->n_drips + n;
    for (int i = 0; i < WAIT_MS / 5 && drip->n_drips < n_until; i++)
        fixture_pause_ms(5);
    assert_true(drip->n_drips >= n_until);
}

/* Moves the clock until the gateway has ended n slow readers. A tick at the same moment may undo
 * a move. */
static void pass_the_limit(uint64_t n)
{
    struct gateway_counters c = {0};
    for (int i = 0; i < WAIT_MS / 50 && c.slow_readers < n; i++) {
        atomic_fetch_add(&f.gateway->clock.awake_ns,
                         2 * (int64_t)f.config.limits.slow_reader_ms * NS_PER_MS);
        fixture_pause_ms(50);
        gateway_get_counters(f.gateway, &c);
    }
    assert_int_equal(c.slow_readers, n);
}

/* F18, a slow reader: the reader takes a byte a second and never completes a message. */
static void test_reader_when_it_takes_a_byte_at_a_time_then_it_ends_and_holds_nobody(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000, .text_bytes = 2000};
    struct client_request other = {.max_tokens = 300, .seed = 9, .text_bytes = 2000};
    struct client_stream slow, running;
    struct rpc_client *direct, *dripping;
    struct rpc_client_config config;
    struct drip drip;
    struct error err;
    char target[128];
    fixture_init(&f);
    f.workers[0].text_bytes = 2000;
    fixture_start(&f, 1);

    drip_start(&drip);
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "unix:%s", drip.socket);
    config.target = target;
    assert_int_equal(rpc_client_create(&config, &dripping, &err), 0);
    direct = f.client;
    f.client = dripping;
    client_open(&f, &endless, &slow);
    f.client = direct;
    client_open(&f, &other, &running);

    /* The slow sequence pauses. The others get every token, though the slow one is not ended. */
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, 1));
    drip_wait(&drip, 3);
    client_expect_whole(&running, &other);
    client_close(&running);
    client_run(&f, &other);
    struct gateway_counters c;
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    do { /* a client may see the end before the server has counted it */
        gateway_get_counters(f.gateway, &c);
    } while (c.ok < 2 && clock_now_ns() < end_ns && poll(NULL, 0, 1) == 0);
    assert_int_equal(c.ok, 2);
    assert_int_equal(c.slow_readers, 0);

    /* The bytes that came do not count: no message was whole. */
    drip_wait(&drip, 3);
    pass_the_limit(1);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    client_run(&f, &other);
    drip.pours = true;
    assert_int_equal(client_wait_end(&slow), STATUS_RESOURCE_EXHAUSTED);
    client_close(&slow);
    rpc_client_destroy(dripping);
    drip_end(&drip);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_when_it_takes_a_byte_at_a_time_then_it_ends_and_holds_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
