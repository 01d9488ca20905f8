/* Tests which version a session's requests go to. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

/* NEW_MS: a server expects an answer of a new replica for two seconds (link_is_new). */
enum { N_SESSIONS = 16, NEW_MS = 1500, MOST_ROUNDS = 10 };

static struct fixture f;

static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* Opens a stream for each session. `keys` must outlive the streams. */
static void open_sessions(char keys[][16], struct client_stream *streams)
{
    for (unsigned k = 0; k < N_SESSIONS; k++) {
        snprintf(keys[k], sizeof(keys[k]), "session %u", k);
        client_open(&f,
                    &(struct client_request){.seed = k, .max_tokens = 2, .session_key = keys[k]},
                    &streams[k]);
    }
}

/* Waits for the ends of the streams. Bit k of the result: version 2 answered session k. */
static unsigned versions_of(struct client_stream *streams)
{
    unsigned versions = 0;
    for (unsigned k = 0; k < N_SESSIONS; k++) {
        assert_int_equal(client_wait_end(&streams[k]), 0);
        versions |= (unsigned)(strcmp(streams[k].receipt_replica, f.workers[1].replica_id) == 0)
                    << k;
        client_close(&streams[k]);
    }
    return versions;
}

static uint64_t n_accepted(void)
{
    struct gateway_counters counters;
    gateway_get_counters(f.gateway, &counters);
    return counters.accepted;
}

/* Another server starts, whose link to version 2 is not answered at once. Returns false if the
 * machine was so busy that the link was not new any more. */
static bool is_served_by_a_new_server(unsigned before)
{
    char keys[N_SESSIONS][16];
    struct client_stream streams[N_SESSIONS];
    fixture_stop_gateway(&f, 1000);
    fake_worker_stop(&f.workers[1], true);
    int64_t begun_ns = clock_now_ns();
    fixture_start_gateway(&f);
    fixture_wait_usable(&f, 1);
    open_sessions(keys, streams);
    while (n_accepted() < N_SESSIONS)
        fixture_pause_ms(1);
    bool in_time = clock_now_ns() - begun_ns < NEW_MS * NS_PER_MS;
    fake_worker_stop(&f.workers[1], false);
    unsigned now = versions_of(streams);
    if (in_time)
        assert_int_equal(now, before);
    return in_time;
}

/* Before, a new server had no link to a version in its first moments. So the first sessions after
 * a server's death went to another version. */
static void test_sessions_stay_when_another_server_starts(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0}, {"m", "2", true, 2, 0}};
    char keys[N_SESSIONS][16];
    struct client_stream streams[N_SESSIONS];
    fixture_init(&f);
    f.weight = 1;
    for (unsigned i = 0; i < 2; i++)
        fake_worker_start(&f.workers[i]);
    fixture_routes(&f, routes, 2);
    fixture_start_gateway(&f);
    fixture_wait_health(&f, "model/m/1", 1);
    fixture_wait_health(&f, "model/m/2", 1);
    open_sessions(keys, streams);
    unsigned before = versions_of(streams);
    assert_int_not_equal(before, 0);
    assert_int_not_equal(before, (1U << N_SESSIONS) - 1);
    fake_manager_kill(&f.manager);
    int round = 0;
    while (!is_served_by_a_new_server(before))
        assert_true(++round < MOST_ROUNDS);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_sessions_stay_when_another_server_starts, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
