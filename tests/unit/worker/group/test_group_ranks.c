/* test_group_ranks.c: two machines of a group with a rank each, as processes: rendezvous over gRPC,
 * sums over UCX. They are neighbours, or have a network namespace each with a cable between. A
 * machine that stops, and a cable that is cut, end the sums on both sides. Skipped without UCX. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/comm/comm_ucx.h"
#include "kernels/tensor.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/server/access.h"
#include "server/worker/group/group_follower.h"
#include "server/worker/group/group_leader.h"
#include "tests/support/names.h"
#include "tests/unit/worker/group/support_group.h"

/* LONG_MS: what only the test's own fault could exceed. */
enum { LONG_MS = 60000, GIVE_UP_S = 150, N_VALUES = 1000, MAX_ARGS = 16 };

extern char **environ;

static char folder[] = "/tmp/sluice-ranks-XXXXXX";
static struct group_files files;
static const char *const names[2] = {"left", "right"};

struct report {
    int rc;
    int64_t ended_ns;
    uint32_t n_right, n_wrong; /* sums */
    struct error failure;
};

/* Commands of the test, and answers of a machine. */
enum word {
    WORD_PEER = 'p',    /* then the process of the other machine: lay the cable to it */
    WORD_ADDRESS = 'a', /* take the other end of the cable */
    WORD_GO = 'g',      /* form the group */
    WORD_CUT = 'c',     /* cut the cable */
    WORD_DONE = 'd',
    WORD_ALONE = 'u', /* no network namespace can be had */
    WORD_RUNNING = 'r',
};

struct machine {
    pid_t pid;
    int fd; /* the test's side */
};

/* --- a machine's process: asserts nothing --- */

static uint32_t own; /* 0: the leader */
static int test_fd;
static struct comm *comm;

static void say(char word)
{
    (void)!write(test_fd, &word, 1);
}

static bool hear(void *bytes, size_t n_bytes)
{
    return recv(test_fd, bytes, n_bytes, MSG_WAITALL) == (ssize_t)n_bytes;
}

/* Runs ip or tc with the words of a line. */
static bool run(const char *line)
{
    char copy[200], *args[MAX_ARGS + 1] = {NULL}, *rest = copy;
    pid_t pid;
    int status;
    snprintf(copy, sizeof(copy), "%s", line);
    for (int n = 0; n < MAX_ARGS && (args[n] = strsep(&rest, " ")); n++) {
    }
    return posix_spawnp(&pid, args[0], NULL, NULL, args, environ) == 0 &&
           waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A network of its own, with a /sys that shows its devices: UCX looks for them there. */
static bool enter_network(void)
{
    return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           umount2("/sys", MNT_DETACH) == 0 && mount("sysfs", "/sys", "sysfs", 0, NULL) == 0 &&
           run("ip link set lo up");
}

/* The cable loses and delays packets, if the kernel can do that. */
static bool lay_cable(int32_t peer)
{
    char line[120];
    snprintf(line, sizeof(line), "ip link add end0 type veth peer name end1 netns %d", peer);
    bool laid = run(line) && run("ip addr add 10.77.0.1/24 dev end0") && run("ip link set end0 up");
    if (laid && !run("tc qdisc add dev end0 root netem delay 1ms loss 1%"))
        printf("the cable loses nothing: no netem\n");
    return laid;
}

/* The kernel notices the other end with a delay, and UCX leaves out a device without carrier. */
static bool wait_carrier(void)
{
    int64_t deadline_ns = clock_now_ns() + LONG_MS * NS_PER_MS;
    char path[60], state[8] = {0};
    snprintf(path, sizeof(path), "/sys/class/net/end%u/operstate", own);
    while (strncmp(state, "up", 2) != 0 && clock_now_ns() < deadline_ns) {
        FILE *file = fopen(path, "re");
        if (!file || !fgets(state, sizeof(state), file))
            state[0] = '\0';
        if (file)
            fclose(file);
        (void)poll(NULL, 0, 10);
    }
    return strncmp(state, "up", 2) == 0;
}

static void end_sums(void *arg, const struct error *why)
{
    comm_ucx_cancel(arg, why);
}

static int connect_ranks(const Sluice__Worker__V1__GroupRoster *roster, struct error *err)
{
    struct comm_ucx_peer peers[2];
    for (uint32_t r = 0; r < 2; r++) {
        const Sluice__Worker__V1__GroupMember *m = roster->members[r];
        peers[r] =
            (struct comm_ucx_peer){m->machine, m->rank_addresses[0].data, m->rank_addresses[0].len};
    }
    return comm_ucx_connect(comm, peers, err);
}

static int lead(const Sluice__Worker__V1__GroupMember *self, const char *listen, struct error *err)
{
    const Sluice__Worker__V1__GroupRoster *roster;
    struct group_leader *leader = NULL;
    struct group_leader_config cfg = {
        .listen = listen, .self = self, .on_end = end_sums, .arg = comm};
    if (strncmp(listen, "unix:", 5) != 0)
        cfg.access = group_files_access(&files, listen);
    int rc = group_leader_open(&cfg, &leader, err);
    if (!rc)
        rc = group_leader_gather(leader, LONG_MS, &roster, err);
    if (!rc)
        rc = connect_ranks(roster, err);
    return rc ? rc : group_leader_start(leader, LONG_MS, err);
}

static int follow(const Sluice__Worker__V1__GroupMember *self, const char *target,
                  struct error *err)
{
    struct group_follower *follower = NULL;
    struct rpc_client_config client;
    rpc_client_config_init(&client);
    client.target = target;
    if (strncmp(target, "unix:", 5) != 0) {
        client.tls = true;
        client.tls_ca = files.cert;
        client.server_name = "localhost";
        client.api_key = files.operator_key;
    }
    struct group_follower_config cfg = {
        .client = &client, .self = self, .on_end = end_sums, .arg = comm};
    int rc = group_follower_join(&cfg, LONG_MS, &follower, err);
    if (!rc)
        rc = connect_ranks(group_follower_roster(follower), err);
    return rc ? rc : group_follower_start(follower, LONG_MS, err);
}

static int form(const char *at, struct error *err)
{
    static Sluice__Worker__V1__GroupMember self;
    static ProtobufCBinaryData address;
    const void *bytes;
    struct comm_ucx_config config = {
        .index = own, .size = 2, .max_bytes = 4096, .timeout_ms = LONG_MS, .transports = "tcp"};
    int rc = comm_ucx_create(&config, &comm, err);
    if (rc)
        return rc;
    comm_ucx_address(comm, &bytes, &address.len);
    address.data = (uint8_t *)(uintptr_t)bytes;
    self = group_test_member(names[own], 2, 1, own);
    self.rank_addresses = &address;
    return own == 0 ? lead(&self, at, err) : follow(&self, at, err);
}

/* Sums until the group ends. */
static void run_sums(struct report *report)
{
    float values[N_VALUES];
    struct tensor t = tensor_view(values, DTYPE_F32, 1, N_VALUES);
    for (uint32_t round = 0;; round++) {
        for (uint32_t i = 0; i < N_VALUES; i++)
            values[i] = (float)(own + 1) * 0.1f + (float)(round % 100);
        report->rc = comm_all_reduce(comm, NULL, &t, COMM_SUM_TREE_F32);
        if (report->rc)
            break;
        float want = (0.1f + (float)(round % 100)) + (2 * 0.1f + (float)(round % 100));
        if (values[0] == want && values[N_VALUES - 1] == want)
            report->n_right++;
        else
            report->n_wrong++;
    }
    report->ended_ns = clock_now_ns();
    comm_ucx_failure(comm, &report->failure);
}

static void *obey_cut(void *arg)
{
    char word;
    (void)arg;
    if (hear(&word, 1) && word == WORD_CUT)
        (void)run("ip link set end0 down");
    return NULL;
}

static void run_machine(bool has_cable)
{
    struct report report = {0};
    char word, at[120];
    int32_t peer;
    alarm(GIVE_UP_S);
    if (has_cable) {
        if (!enter_network()) {
            say(WORD_ALONE);
            return;
        }
        say(WORD_DONE);
        if (!hear(&word, 1))
            return;
        bool laid = word == WORD_PEER
                        ? hear(&peer, sizeof(peer)) && lay_cable(peer)
                        : run("ip addr add 10.77.0.2/24 dev end1") && run("ip link set end1 up");
        say(laid ? WORD_DONE : WORD_ALONE);
    }
    if (!hear(&word, 1) || word != WORD_GO || (has_cable && !wait_carrier()))
        return;
    if (has_cable)
        snprintf(at, sizeof(at), own == 0 ? "0.0.0.0:7600" : "10.77.0.1:7600");
    else
        snprintf(at, sizeof(at), "unix:%s/leader", folder);
    pthread_t thread;
    report.rc = form(at, &report.failure);
    if (report.rc == 0 && pthread_create(&thread, NULL, obey_cut, NULL) == 0) {
        say(WORD_RUNNING);
        run_sums(&report);
    } else {
        say(WORD_DONE);
    }
    (void)!write(test_fd, &report, sizeof(report));
}

/* --- the test --- */

static void start(struct machine machines[2], bool has_cable)
{
    fflush(stdout);
    for (uint32_t i = 0; i < 2; i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            own = i;
            test_fd = pair[1];
            close(pair[0]);
            run_machine(has_cable);
            _exit(0);
        }
        close(pair[1]);
        machines[i] = (struct machine){pid, pair[0]};
    }
}

static char read_word(const struct machine *m)
{
    char word = 0;
    assert_int_equal(recv(m->fd, &word, 1, MSG_WAITALL), 1);
    return word;
}

static void write_word(const struct machine *m, char word)
{
    assert_int_equal(send(m->fd, &word, 1, MSG_NOSIGNAL), 1);
}

static void end(struct machine machines[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        kill(machines[i].pid, SIGKILL);
        assert_int_equal(waitpid(machines[i].pid, NULL, 0), machines[i].pid);
        close(machines[i].fd);
    }
}

static void read_report(const struct machine *m, struct report *out_report)
{
    assert_int_equal(recv(m->fd, out_report, sizeof(*out_report), MSG_WAITALL),
                     sizeof(*out_report));
    if (out_report->rc != STATUS_UNAVAILABLE)
        print_message("%s\n", out_report->failure.message);
}

/* Both machines add. Everything that they have added is right. */
static void go(struct machine machines[2])
{
    struct report report;
    for (uint32_t i = 0; i < 2; i++)
        write_word(&machines[i], WORD_GO);
    for (uint32_t i = 0; i < 2; i++)
        if (read_word(&machines[i]) != WORD_RUNNING) {
            read_report(&machines[i], &report);
            fail_msg("%s", report.failure.message);
        }
}

static void check_end(const struct machine *m, int64_t begin_ns, const char *what)
{
    struct report report;
    read_report(m, &report);
    print_message("%s: the sums ended after %.0f ms, %u were right: %s\n", what,
                  (double)(report.ended_ns - begin_ns) / 1e6, report.n_right,
                  report.failure.message);
    assert_int_equal(report.rc, STATUS_UNAVAILABLE);
    assert_int_equal(report.n_wrong, 0);
    assert_true(report.ended_ns - begin_ns < LONG_MS / 2 * NS_PER_MS);
}

static void test_sums_when_a_machine_stops_then_they_end_with_its_name(void **state)
{
    struct machine machines[2];
    (void)state;
    start(machines, false);
    go(machines);
    int64_t begin_ns = clock_now_ns();
    kill(machines[1].pid, SIGSTOP);
    check_end(&machines[0], begin_ns, "stopped follower");
    end(machines);
}

static void test_sums_when_the_cable_is_cut_then_they_end_on_both_sides(void **state)
{
    struct machine machines[2];
    (void)state;
    start(machines, true);
    if (read_word(&machines[0]) == WORD_ALONE || read_word(&machines[1]) == WORD_ALONE) {
        end(machines);
        print_message("no network namespaces here\n");
        skip();
    }
    int32_t peer = machines[1].pid;
    write_word(&machines[0], WORD_PEER);
    assert_int_equal(send(machines[0].fd, &peer, sizeof(peer), 0), sizeof(peer));
    assert_int_equal(read_word(&machines[0]), WORD_DONE);
    write_word(&machines[1], WORD_ADDRESS);
    assert_int_equal(read_word(&machines[1]), WORD_DONE);
    go(machines);
    int64_t begin_ns = clock_now_ns();
    write_word(&machines[0], WORD_CUT);
    check_end(&machines[0], begin_ns, "cut cable, leader");
    check_end(&machines[1], begin_ns, "cut cable, follower");
    end(machines);
}

static int make_files(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    group_files_make(folder, &files);
    return 0;
}

static int remove_files(void **state)
{
    char path[120];
    (void)state;
    group_files_remove(&files);
    snprintf(path, sizeof(path), "%s/leader", folder);
    unlink(path);
    rmdir(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_when_a_machine_stops_then_they_end_with_its_name),
        cmocka_unit_test(test_sums_when_the_cable_is_cut_then_they_end_on_both_sides),
    };
    char version[32];
    struct error err;
    if (comm_ucx_version(version, sizeof(version), &err) != 0) {
        printf("skipped: %s\n", err.message);
        return 0;
    }
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
