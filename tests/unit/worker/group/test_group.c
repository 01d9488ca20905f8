/* test_group.c: leader and followers of a group over real sockets. The group forms, refuses peers
 * that differ, and ends for all with the first loss. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/access.h"
#include "server/worker/group/group_book.h"
#include "server/worker/group/group_follower.h"
#include "server/worker/group/group_leader.h"
#include "sluice/worker/v1/worker.pb-c.h"
#include "tests/support/names.h"
#include "tests/unit/worker/group/support_group.h"

/* LONG_MS: what only the test's own fault could exceed. */
enum { LONG_MS = 60000, SHORT_MS = 400 };

static char folder[] = "/tmp/sluice-group-XXXXXX";
static char listen_at[96]; /* "unix:FOLDER/leader" */

/* --- ends --- */

struct ending {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n;
    int64_t at_ns;
    struct error why;
};

#define ENDING_INIT                                                                                \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                     \
    }

static void note_end(void *arg, const struct error *why)
{
    struct ending *ending = arg;
    pthread_mutex_lock(&ending->lock);
    ending->n++;
    ending->at_ns = clock_now_ns();
    ending->why = *why;
    pthread_cond_broadcast(&ending->changed);
    pthread_mutex_unlock(&ending->lock);
}

static void wait_end(struct ending *ending)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LONG_MS / 1000;
    pthread_mutex_lock(&ending->lock);
    while (ending->n == 0)
        assert_int_equal(pthread_cond_timedwait(&ending->changed, &ending->lock, &until), 0);
    assert_int_equal(ending->n, 1);
    pthread_mutex_unlock(&ending->lock);
}

/* --- followers --- */

struct joiner {
    pthread_t thread;
    Sluice__Worker__V1__GroupMember self;
    struct rpc_client_config client;
    uint32_t silence_ms;
    struct group_follower *follower;
    struct ending ending;
    int rc; /* result of join, or of start */
    struct error err;
};

static void *run_joiner(void *arg)
{
    struct joiner *j = arg;
    struct group_follower_config cfg = {.client = &j->client,
                                        .self = &j->self,
                                        .silence_ms = j->silence_ms,
                                        .on_end = note_end,
                                        .arg = &j->ending};
    j->rc = group_follower_join(&cfg, LONG_MS, &j->follower, &j->err);
    if (j->rc == 0)
        j->rc = group_follower_start(j->follower, LONG_MS, &j->err);
    return NULL;
}

static void joiner_init(struct joiner *j, const char *machine, uint32_t first_rank)
{
    *j = (struct joiner){.ending = ENDING_INIT, .silence_ms = LONG_MS};
    j->self = group_test_member(machine, 1, 3, first_rank);
    rpc_client_config_init(&j->client);
    j->client.target = listen_at;
}

static void joiner_run(struct joiner *j)
{
    assert_int_equal(pthread_create(&j->thread, NULL, run_joiner, j), 0);
}

static void joiner_wait(struct joiner *j)
{
    pthread_join(j->thread, NULL);
}

static struct group_leader *lead(uint32_t silence_ms, struct ending *ending)
{
    struct group_leader *leader = NULL;
    struct error err;
    Sluice__Worker__V1__GroupMember self = group_test_member("a", 1, 3, 0);
    struct group_leader_config cfg = {.listen = listen_at,
                                      .self = &self,
                                      .silence_ms = silence_ms,
                                      .member_ms = silence_ms,
                                      .on_end = note_end,
                                      .arg = ending};
    assert_int_equal(group_leader_open(&cfg, &leader, &err), 0);
    return leader;
}

/* The two followers join, and all three are started. */
static void form(struct group_leader *leader, struct joiner *b, struct joiner *c)
{
    const Sluice__Worker__V1__GroupRoster *roster;
    struct error err = {0};
    joiner_init(b, "b", 1);
    joiner_init(c, "c", 2);
    joiner_run(c);
    joiner_run(b);
    assert_int_equal(group_leader_gather(leader, LONG_MS, &roster, &err), 0);
    assert_int_equal(roster->n_members, 3);
    assert_int_equal(group_leader_start(leader, LONG_MS, &err), 0);
    joiner_wait(b);
    joiner_wait(c);
    assert_int_equal(b->rc, 0);
    assert_int_equal(c->rc, 0);
}

static void
test_group_when_all_join_then_it_starts_and_ends_with_the_first_that_leaves(void **state)
{
    struct ending ending = ENDING_INIT;
    struct joiner b, c;
    (void)state;
    struct group_leader *leader = lead(LONG_MS, &ending);
    form(leader, &b, &c);
    const Sluice__Worker__V1__GroupRoster *roster = group_follower_roster(c.follower);
    assert_int_equal(roster->n_members, 3);
    assert_string_equal(roster->members[0]->machine, "a");
    assert_string_equal(roster->members[1]->machine, "b");
    assert_int_equal(ending.n, 0);
    group_follower_close(b.follower);
    wait_end(&ending);
    wait_end(&c.ending);
    assert_int_equal(ending.why.status, STATUS_UNAVAILABLE);
    assert_true(names_all(ending.why.message, "b"));
    assert_true(names_all(c.ending.why.message, "b")); /* the others learn whose end it was */
    assert_int_equal(b.ending.n, 0);
    group_follower_close(c.follower);
    group_leader_close(leader);
}

static void test_group_when_the_leader_leaves_then_the_followers_know(void **state)
{
    struct ending ending = ENDING_INIT;
    struct joiner b, c;
    (void)state;
    struct group_leader *leader = lead(LONG_MS, &ending);
    form(leader, &b, &c);
    group_leader_close(leader);
    wait_end(&b.ending);
    wait_end(&c.ending);
    assert_int_equal(ending.n, 0);
    assert_int_equal(b.ending.why.status, STATUS_UNAVAILABLE);
    group_follower_close(b.follower);
    group_follower_close(c.follower);
}

/* --- refusals --- */

static void set_version(struct joiner *j)
{
    j->self.software_version = group_text("9.9");
}
static void set_digest(struct joiner *j)
{
    j->self.weights_digest = group_text("sha256:9");
}
static void set_split(struct joiner *j)
{
    j->self.pp = 2;
}
static void set_rank_of_b(struct joiner *j)
{
    j->self.first_rank = 1;
}

static void
test_follower_when_it_differs_then_refused_with_both_values_and_the_group_forms(void **state)
{
    static const struct {
        void (*set)(struct joiner *j);
        int status;
        const char *field, *values;
    } faults[] = {
        {set_version, STATUS_FAILED_PRECONDITION, "software_version", "9.9|" SLUICE_VERSION},
        {set_digest, STATUS_FAILED_PRECONDITION, "weights_digest", "sha256:9|sha256:12"},
        {set_split, STATUS_FAILED_PRECONDITION, "pp", "2|3"},
        {set_rank_of_b, STATUS_ALREADY_EXISTS, "first_rank", "1|b"},
    };
    struct ending ending = ENDING_INIT;
    struct joiner b, c;
    const Sluice__Worker__V1__GroupRoster *roster;
    struct error err;
    (void)state;
    struct group_leader *leader = lead(LONG_MS, &ending);
    joiner_init(&b, "b", 1);
    joiner_run(&b);
    while (group_leader_gather(leader, 1, &roster, &err) == STATUS_DEADLINE_EXCEEDED)
        if (names_all(err.message, "1 ranks")) /* b has joined */
            break;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        joiner_init(&c, "c", 2);
        faults[i].set(&c);
        joiner_run(&c);
        joiner_wait(&c);
        assert_int_equal(c.rc, faults[i].status);
        assert_string_equal(c.err.field, faults[i].field);
        assert_true(names_all(c.err.message, faults[i].values));
        assert_int_equal(c.ending.n, 0);
    }
    joiner_init(&c, "c", 2);
    joiner_run(&c);
    assert_int_equal(group_leader_gather(leader, LONG_MS, &roster, &err), 0);
    assert_int_equal(group_leader_start(leader, LONG_MS, &err), 0);
    joiner_wait(&b);
    joiner_wait(&c);
    assert_int_equal(b.rc | c.rc, 0);
    group_follower_close(b.follower);
    group_follower_close(c.follower);
    group_leader_close(leader);
}

/* A peer that speaks gRPC, but keeps no rule of the rendezvous. */
struct raw {
    struct rpc_client *client;
    struct rpc_reader *reader;
};

static void raw_open(struct raw *raw)
{
    struct rpc_client_config config;
    struct error err;
    rpc_client_config_init(&config);
    config.target = listen_at;
    assert_int_equal(rpc_client_create(&config, &raw->client, &err), 0);
    assert_int_equal(rpc_reader_open(raw->client, &sluice__worker__v1__group__descriptor, "Join",
                                     NULL, NULL, &raw->reader, &err),
                     0);
}

static void raw_close(struct raw *raw)
{
    rpc_reader_close(raw->reader);
    rpc_client_destroy(raw->client);
}

static void raw_send(struct raw *raw, Sluice__Worker__V1__GroupMember *self)
{
    Sluice__Worker__V1__JoinRequest frame = SLUICE__WORKER__V1__JOIN_REQUEST__INIT;
    Sluice__Worker__V1__GroupConnected connected = SLUICE__WORKER__V1__GROUP_CONNECTED__INIT;
    struct error err;
    frame.frame_case = SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_CONNECTED;
    frame.connected = &connected;
    if (self) {
        frame.frame_case = SLUICE__WORKER__V1__JOIN_REQUEST__FRAME_MEMBER;
        frame.member = self;
    }
    assert_int_equal(rpc_reader_send(raw->reader, &frame.base, &err), 0);
}

/* Reads until the roster has come, or the call has ended with this status. */
static int raw_read(struct raw *raw, struct error *err)
{
    for (;;) {
        ProtobufCMessage *message = NULL;
        int rc = rpc_reader_next(raw->reader, &message, err);
        if (rc || !message)
            return rc;
        bool is_roster = ((Sluice__Worker__V1__JoinResponse *)message)->frame_case ==
                         SLUICE__WORKER__V1__JOIN_RESPONSE__FRAME_ROSTER;
        rpc_message_free(message);
        if (is_roster)
            return 0;
    }
}

static void
test_group_when_a_follower_vanishes_before_the_roster_then_another_takes_its_rank(void **state)
{
    struct ending ending = ENDING_INIT;
    struct joiner b, c;
    struct raw raw;
    struct error err;
    const Sluice__Worker__V1__GroupRoster *roster;
    (void)state;
    struct group_leader *leader = lead(LONG_MS, &ending);
    Sluice__Worker__V1__GroupMember lost = group_test_member("lost", 1, 3, 1);
    raw_open(&raw);
    raw_send(&raw, &lost);
    while (group_leader_gather(leader, 1, &roster, &err) == STATUS_DEADLINE_EXCEEDED)
        if (names_all(err.message, "1 ranks"))
            break;
    raw_close(&raw);
    while (group_leader_gather(leader, 1, &roster, &err) == STATUS_DEADLINE_EXCEEDED)
        if (names_all(err.message, "2 ranks"))
            break;
    form(leader, &b, &c);
    assert_int_equal(ending.n, 0);
    group_follower_close(b.follower);
    group_follower_close(c.follower);
    group_leader_close(leader);
}

static void
test_group_when_a_follower_vanishes_after_the_roster_then_start_fails_for_all(void **state)
{
    struct ending ending = ENDING_INIT;
    struct joiner b;
    struct raw raw;
    struct error err;
    const Sluice__Worker__V1__GroupRoster *roster;
    (void)state;
    struct group_leader *leader = lead(LONG_MS, &ending);
    Sluice__Worker__V1__GroupMember lost = group_test_member("lost", 1, 3, 2);
    joiner_init(&b, "b", 1);
    joiner_run(&b);
    raw_open(&raw);
    raw_send(&raw, &lost);
    assert_int_equal(group_leader_gather(leader, LONG_MS, &roster, &err), 0);
    assert_int_equal(raw_read(&raw, &err), 0);
    raw_close(&raw);
    assert_int_equal(group_leader_start(leader, LONG_MS, &err), STATUS_UNAVAILABLE);
    assert_true(names_all(err.message, "lost"));
    joiner_wait(&b);
    assert_int_equal(b.rc, STATUS_UNAVAILABLE);
    assert_true(names_all(b.err.message, "lost"));
    wait_end(&ending);
    group_follower_close(b.follower);
    group_leader_close(leader);
}

static void test_group_when_a_follower_is_silent_then_it_ends(void **state)
{
    struct ending ending = ENDING_INIT;
    struct joiner b;
    struct raw raw;
    struct error err;
    const Sluice__Worker__V1__GroupRoster *roster;
    (void)state;
    struct group_leader *leader =
        lead(3 * GROUP_SILENCE_MS, &ending); /* b stays heard under load */
    Sluice__Worker__V1__GroupMember silent = group_test_member("mute", 1, 3, 2);
    joiner_init(&b, "b", 1);
    joiner_run(&b);
    raw_open(&raw);
    raw_send(&raw, &silent);
    assert_int_equal(group_leader_gather(leader, LONG_MS, &roster, &err), 0);
    assert_int_equal(raw_read(&raw, &err), 0);
    int64_t begin_ns = clock_now_ns();
    raw_send(&raw, NULL);
    wait_end(&ending);
    print_message("a silent follower was noticed after %.0f ms\n",
                  (double)(ending.at_ns - begin_ns) / 1e6);
    assert_true(names_all(ending.why.message, "mute"));
    joiner_wait(&b);
    wait_end(&b.ending);
    assert_true(names_all(b.ending.why.message, "mute"));
    raw_close(&raw);
    group_follower_close(b.follower);
    group_leader_close(leader);
}

/* --- peers that are not ours --- */

/* Sends bytes to the leader's socket, and reads until the leader ends the connection. */
static void send_garbage(const char *bytes, size_t n_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[512];
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", listen_at + strlen("unix:"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, bytes, n_bytes, MSG_NOSIGNAL), n_bytes);
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, LONG_MS), 1);
        if (recv(fd, answer, sizeof(answer), 0) <= 0)
            break;
    }
    close(fd);
}

static void
test_leader_when_peers_are_not_its_own_then_each_is_refused_and_the_group_forms(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    struct ending ending = ENDING_INIT;
    struct joiner b, c;
    struct raw raw;
    struct error err;
    (void)state;
    struct group_leader *leader = lead(SHORT_MS, &ending);
    char noise[4096];
    memset(noise, 0xA5, sizeof(noise));
    send_garbage(http, sizeof(http) - 1);
    send_garbage(noise, sizeof(noise));
    /* another service */
    raw_open(&raw);
    Sluice__Worker__V1__ShutdownRequest shutdown = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    assert_int_equal(rpc_client_unary(raw.client, &sluice__worker__v1__worker__descriptor,
                                      "Shutdown", &shutdown.base, NULL, &answer, &err),
                     STATUS_UNIMPLEMENTED);
    /* no member at all */
    assert_int_equal(raw_read(&raw, &err), STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(err.reason, REASON_REQUEST_TIMEOUT);
    raw_close(&raw);
    /* another frame first, and a member twice */
    raw_open(&raw);
    raw_send(&raw, NULL);
    assert_int_equal(raw_read(&raw, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "member");
    raw_close(&raw);
    Sluice__Worker__V1__GroupMember twice = group_test_member("twice", 1, 3, 1);
    raw_open(&raw);
    raw_send(&raw, &twice);
    raw_send(&raw, &twice);
    assert_int_equal(raw_read(&raw, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "member");
    raw_close(&raw);
    group_leader_close(leader);
    leader = lead(LONG_MS, &ending);
    form(leader, &b, &c);
    group_follower_close(b.follower);
    group_follower_close(c.follower);
    group_leader_close(leader);
}

/* --- identity --- */

static void test_leader_when_it_listens_on_tcp_then_a_key_of_an_operator_opens_it(void **state)
{
    /* without a key, an unknown one, a viewer's, an operator's */
    static const int statuses[] = {STATUS_UNAUTHENTICATED, STATUS_UNAUTHENTICATED,
                                   STATUS_PERMISSION_DENIED};
    enum { N_REFUSED = sizeof(statuses) / sizeof(statuses[0]) };
    struct group_files files;
    char unknown[API_KEY_BYTES], target[32];
    struct access *access = NULL;
    struct group_leader *leader = NULL;
    struct ending ending = ENDING_INIT;
    struct joiner b;
    struct error err;
    Sluice__Worker__V1__GroupMember self = group_test_member("a", 1, 3, 0);
    struct group_leader_config cfg = {.listen = "127.0.0.1:0",
                                      .self = &self,
                                      .silence_ms = LONG_MS,
                                      .on_end = note_end,
                                      .arg = &ending};
    (void)state;
    assert_int_equal(group_leader_open(&cfg, &leader, &err), STATUS_INVALID_ARGUMENT);
    group_files_make(folder, &files);
    assert_int_equal(api_key_create(unknown, &err), 0);
    const char *const keys[] = {"", unknown, files.viewer, files.operator_key};
    cfg.access = access = group_files_access(&files, cfg.listen);
    self.pp = 2;
    assert_int_equal(group_leader_open(&cfg, &leader, &err), 0);
    snprintf(target, sizeof(target), "127.0.0.1:%u", group_leader_port(leader));
    for (size_t i = 0; i <= N_REFUSED; i++) {
        joiner_init(&b, "b", 1);
        b.self.pp = 2;
        b.client.target = target;
        b.client.tls = true;
        b.client.tls_ca = files.cert;
        b.client.server_name = "localhost";
        b.client.api_key = keys[i];
        joiner_run(&b);
        if (i == N_REFUSED)
            break;
        joiner_wait(&b);
        assert_int_equal(b.rc, statuses[i]);
    }
    const Sluice__Worker__V1__GroupRoster *roster;
    assert_int_equal(group_leader_gather(leader, LONG_MS, &roster, &err), 0);
    assert_int_equal(group_leader_start(leader, LONG_MS, &err), 0);
    joiner_wait(&b);
    assert_int_equal(b.rc, 0);
    group_follower_close(b.follower);
    group_leader_close(leader);
    access_destroy(access);
    group_files_remove(&files);
}

/* --- a leader that stops --- */

static pid_t leader_pid;
static int leader_go; /* closes at the end of the test */
static char leader_at[96];

/* In a process of its own, started before this one uses gRPC. */
static void run_leader(int go)
{
    struct group_leader *leader = NULL;
    const Sluice__Worker__V1__GroupRoster *roster;
    struct error err;
    char byte;
    Sluice__Worker__V1__GroupMember self = group_test_member("a", 1, 3, 0);
    struct group_leader_config cfg = {
        .listen = leader_at, .self = &self, .silence_ms = LONG_MS, .on_end = NULL};
    self.pp = 2;
    if (group_leader_open(&cfg, &leader, &err) == 0 &&
        group_leader_gather(leader, LONG_MS, &roster, &err) == 0 &&
        group_leader_start(leader, LONG_MS, &err) == 0)
        (void)!read(go, &byte, 1);
    _exit(0);
}

static void start_leader(void)
{
    int pair[2];
    if (!mkdtemp(folder) || pipe2(pair, O_CLOEXEC) != 0)
        abort();
    snprintf(listen_at, sizeof(listen_at), "unix:%s/leader", folder);
    snprintf(leader_at, sizeof(leader_at), "unix:%s/other", folder);
    leader_pid = fork();
    if (leader_pid == 0) {
        close(pair[1]);
        run_leader(pair[0]);
    }
    close(pair[0]);
    leader_go = pair[1];
}

static void test_follower_when_the_leader_stops_then_it_notices(void **state)
{
    struct joiner b;
    (void)state;
    joiner_init(&b, "b", 1);
    b.self.pp = 2;
    b.client.target = leader_at;
    b.silence_ms = 0;
    joiner_run(&b);
    joiner_wait(&b);
    assert_int_equal(b.rc, 0);
    int64_t begin_ns = clock_now_ns();
    kill(leader_pid, SIGSTOP);
    wait_end(&b.ending);
    print_message("a stopped leader was noticed after %.0f ms\n",
                  (double)(b.ending.at_ns - begin_ns) / 1e6);
    assert_int_equal(b.ending.why.status, STATUS_UNAVAILABLE);
    assert_true(b.ending.at_ns - begin_ns < LONG_MS / 2 * NS_PER_MS);
    kill(leader_pid, SIGKILL);
    waitpid(leader_pid, NULL, 0);
    close(leader_go);
    group_follower_close(b.follower);
}

static int clean_up(void **state)
{
    (void)state;
    unlink(leader_at + strlen("unix:"));
    rmdir(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follower_when_the_leader_stops_then_it_notices),
        cmocka_unit_test(
            test_group_when_all_join_then_it_starts_and_ends_with_the_first_that_leaves),
        cmocka_unit_test(test_group_when_the_leader_leaves_then_the_followers_know),
        cmocka_unit_test(
            test_follower_when_it_differs_then_refused_with_both_values_and_the_group_forms),
        cmocka_unit_test(
            test_group_when_a_follower_vanishes_before_the_roster_then_another_takes_its_rank),
        cmocka_unit_test(
            test_group_when_a_follower_vanishes_after_the_roster_then_start_fails_for_all),
        cmocka_unit_test(test_group_when_a_follower_is_silent_then_it_ends),
        cmocka_unit_test(
            test_leader_when_peers_are_not_its_own_then_each_is_refused_and_the_group_forms),
        cmocka_unit_test(test_leader_when_it_listens_on_tcp_then_a_key_of_an_operator_opens_it),
    };
    start_leader();
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
