/* Ranks in processes of their own, over UCX. Results have the bits of comm_shm. If a rank ends,
 * stops or disagrees, the calls of the others end with its name. Skipped without UCX. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/comm/comm_ucx.h"
#include "tests/unit/kernels/support/support_kernels.h"

/* LONG_MS: a wait that only the test's own fault could exceed. */
enum { MAX_PROCESSES = 4, N_OPS = 60, SHORT_MS = 1000, LONG_MS = 60000, GIVE_UP_S = 200 };

/* A rank's side of a test, in its own process: asserts nothing, and reports. */
struct child {
    struct comm *comm;
    int fd; /* to the test */
    uint64_t seed;
};

struct report {
    int rc, later_rc; /* results of the call, and of a call after it */
    int64_t ended_ns;
    uint64_t hash;
    struct error failure;
};

typedef void child_fn(struct child *child, struct report *report);

struct processes {
    uint32_t size;
    struct comm_ucx_config config;
    pid_t pids[MAX_PROCESSES];
    int fds[MAX_PROCESSES];
};

/* --- both sides --- */

static bool write_all(int fd, const void *bytes, size_t n_bytes)
{
    const char *at = bytes;
    while (n_bytes > 0) {
        ssize_t n = send(fd, at, n_bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t n_bytes)
{
    char *at = bytes;
    while (n_bytes > 0) {
        ssize_t n = read(fd, at, n_bytes);
        if (n <= 0)
            return false;
        at += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

struct address {
    size_t n_bytes;
    uint8_t bytes[COMM_UCX_MAX_ADDRESS_BYTES];
};

/* --- a rank's process --- */

static int connect_child(struct child *child, const struct comm_ucx_config *config,
                         struct error *err)
{
    static struct address addresses[MAX_PROCESSES];
    struct comm_ucx_peer peers[MAX_PROCESSES];
    char names[MAX_PROCESSES][24];
    const void *bytes;
    struct address own = {0};
    comm_ucx_address(child->comm, &bytes, &own.n_bytes);
    memcpy(own.bytes, bytes, own.n_bytes);
    if (!write_all(child->fd, &own, sizeof(own)) ||
        !read_all(child->fd, addresses, config->size * sizeof(own)))
        return error_set(err, STATUS_INTERNAL, "no addresses");
    for (uint32_t r = 0; r < config->size; r++) {
        snprintf(names[r], sizeof(names[r]), "machine-%u", r);
        peers[r] = (struct comm_ucx_peer){names[r], addresses[r].bytes, addresses[r].n_bytes};
    }
    return comm_ucx_connect(child->comm, peers, err);
}

static void run_child(struct processes *p, uint32_t r, int fd, child_fn *fn)
{
    struct report report = {0};
    struct child child = {.fd = fd, .seed = 17 * p->size};
    struct comm_ucx_config config = p->config;
    config.index = r;
    alarm(GIVE_UP_S);
    report.rc = comm_ucx_create(&config, &child.comm, &report.failure);
    if (report.rc == 0)
        report.rc = connect_child(&child, &config, &report.failure);
    char ready = 'r';
    if (report.rc == 0 && write_all(fd, &ready, 1)) {
        fn(&child, &report);
        report.ended_ns = clock_now_ns();
        comm_ucx_failure(child.comm, &report.failure);
    } else {
        ready = 'f';
        (void)write_all(fd, &ready, 1);
    }
    (void)write_all(fd, &report, sizeof(report));
    comm_destroy(child.comm);
    _exit(0);
}

static char hear(struct child *child)
{
    char heard = 0;
    return read_all(child->fd, &heard, 1) ? heard : 0;
}

/* --- the test's process --- */

static void start(struct processes *p, uint32_t size, const char *transports, uint32_t timeout_ms,
                  child_fn *const fns[])
{
    static struct address addresses[MAX_PROCESSES];
    *p = (struct processes){.size = size};
    p->config = (struct comm_ucx_config){
        .size = size, .max_bytes = 1000, .timeout_ms = timeout_ms, .transports = transports};
    for (uint32_t r = 0; r < size; r++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        fflush(stdout);
        p->pids[r] = fork();
        assert_true(p->pids[r] >= 0);
        if (p->pids[r] == 0) {
            for (uint32_t i = 0; i < r; i++)
                close(p->fds[i]);
            close(pair[0]);
            run_child(p, r, pair[1], fns[r]);
        }
        close(pair[1]);
        p->fds[r] = pair[0];
    }
    for (uint32_t r = 0; r < size; r++)
        assert_true(read_all(p->fds[r], &addresses[r], sizeof(addresses[r])));
    for (uint32_t r = 0; r < size; r++)
        assert_true(write_all(p->fds[r], addresses, size * sizeof(addresses[0])));
}

/* Waits until all ranks are connected. */
static void wait_ready(struct processes *p)
{
    for (uint32_t r = 0; r < p->size; r++) {
        char ready = 0;
        assert_true(read_all(p->fds[r], &ready, 1));
        assert_int_equal(ready, 'r');
    }
}

static void read_report(struct processes *p, uint32_t r, struct report *out_report)
{
    assert_true(read_all(p->fds[r], out_report, sizeof(*out_report)));
}

static void end(struct processes *p)
{
    for (uint32_t r = 0; r < p->size; r++) {
        close(p->fds[r]);
        int status;
        assert_int_equal(waitpid(p->pids[r], &status, 0), p->pids[r]);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    }
}

/* --- bits --- */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}

enum { MAX_ROWS = 3, MAX_COLS = 900 };

/* Random sizes, values and reductions, the same plan on all ranks. Returns the first error. */
static int random_ops(struct comm *c, uint64_t seed, uint64_t *out_hash)
{
    static _Thread_local float data[MAX_ROWS * MAX_COLS];
    static _Thread_local uint8_t gathered[8 * sizeof(data)], message[sizeof(data)];
    struct random plan = {seed}, values = {seed * 31 + c->index};
    uint64_t hash = 0xCBF29CE484222325u;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < N_OPS; i++) {
        uint32_t n_rows = random_u32(&plan) % MAX_ROWS + 1, n_cols = random_u32(&plan) % 800 + 1;
        uint32_t stride = n_cols + random_u32(&plan) % 2 * 7, how = random_u32(&plan) % 5;
        for (size_t k = 0; k < MAX_ROWS * MAX_COLS; k++)
            data[k] = random_uniform(&values, -1e6f, 1e6f) * random_uniform(&values, 0.0f, 1.0f);
        struct tensor t = {data, how == COMM_SUM_I32 ? DTYPE_I32 : DTYPE_F32, n_rows, n_cols,
                           stride};
        size_t n_bytes = (size_t)n_rows * n_cols;
        if (how <= COMM_MAX_F32) {
            rc = comm_all_reduce(c, NULL, &t, (enum comm_reduce)how);
            hash = hash_bytes(hash, data, sizeof(data));
        } else if (how == 3) {
            rc = comm_all_gather(c, NULL, gathered, data, n_bytes);
            hash = hash_bytes(hash, gathered, c->size * n_bytes);
        } else {
            uint32_t next = (c->index + 1) % c->size, last = (c->index + c->size - 1) % c->size;
            if (c->index % 2 == 0)
                rc = c->ops->send(c, NULL, next, data, n_bytes);
            if (!rc)
                rc = c->ops->recv(c, NULL, last, message, n_bytes);
            if (!rc && c->index % 2 == 1)
                rc = c->ops->send(c, NULL, next, data, n_bytes);
            hash = hash_bytes(hash, message, n_bytes);
        }
    }
    *out_hash = hash;
    return rc;
}

static void run_random_ops(struct child *child, struct report *report)
{
    report->rc = random_ops(child->comm, child->seed, &report->hash);
}

struct thread_rank {
    struct comm *comm;
    uint64_t seed, hash;
    int rc;
};

static void *run_thread(void *arg)
{
    struct thread_rank *rank = arg;
    rank->rc = random_ops(rank->comm, rank->seed, &rank->hash);
    return NULL;
}

/* The same operations by threads of this process. */
static void expected_hashes(uint32_t size, uint64_t out_hashes[])
{
    struct comm *comms[MAX_PROCESSES];
    struct thread_rank ranks[MAX_PROCESSES];
    pthread_t threads[MAX_PROCESSES];
    struct error err;
    assert_int_equal(comm_shm_create(size, 1 << 20, comms, &err), 0);
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.comm = comms[r], .seed = 17 * size};
        assert_int_equal(pthread_create(&threads[r], NULL, run_thread, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < size; r++) {
        assert_int_equal(ranks[r].rc, 0);
        out_hashes[r] = ranks[r].hash;
        comm_destroy(comms[r]);
    }
}

static void test_processes_when_they_reduce_then_bits_are_those_of_threads(void **state)
{
    static const char *const transports[] = {"tcp", NULL};
    static child_fn *const fns[] = {run_random_ops, run_random_ops, run_random_ops, run_random_ops};
    (void)state;
    for (uint32_t size = 2; size <= MAX_PROCESSES; size *= 2) {
        uint64_t hashes[MAX_PROCESSES];
        expected_hashes(size, hashes);
        for (size_t t = 0; t < 2; t++) {
            struct processes p;
            struct report report;
            start(&p, size, transports[t], LONG_MS, fns);
            wait_ready(&p);
            for (uint32_t r = 0; r < size; r++) {
                read_report(&p, r, &report);
                if (report.rc)
                    print_message("rank %u: %s\n", r, report.failure.message);
                assert_int_equal(report.rc, 0);
                assert_true(report.hash == hashes[r]);
            }
            end(&p);
        }
    }
}

/* --- failures --- */

static int reduce_once(struct comm *comm)
{
    float data[10] = {1.0f};
    struct tensor t = tensor_view(data, DTYPE_F32, 1, 10);
    return comm_all_reduce(comm, NULL, &t, COMM_SUM_TREE_F32);
}

static void run_reduce(struct child *child, struct report *report)
{
    report->rc = reduce_once(child->comm);
    report->later_rc = reduce_once(child->comm);
}

static void run_until_killed(struct child *child, struct report *report)
{
    (void)report;
    while (hear(child) != 0) {
    }
}

/* Rank 1 gets the signal while the others wait for it. They name it, and are dead then. */
static void lose_rank_1(const char *transports, uint32_t timeout_ms, int signal, int status)
{
    static child_fn *const fns[] = {run_reduce, run_until_killed, run_reduce, run_reduce};
    struct processes p;
    struct report report;
    start(&p, 4, transports, timeout_ms, fns);
    wait_ready(&p);
    int64_t begin_ns = clock_now_ns(), worst_ns = 0;
    kill(p.pids[1], signal);
    for (uint32_t r = 0; r < p.size; r++) {
        if (r == 1)
            continue;
        read_report(&p, r, &report);
        assert_int_equal(report.rc, report.failure.status);
        assert_int_equal(report.later_rc, report.rc);
        /* The first to notice names rank 1; its own end may be what the next one sees. */
        if (strstr(report.failure.message, "rank 1, machine-1"))
            assert_int_equal(report.rc, status);
        else
            assert_int_equal(report.rc, STATUS_UNAVAILABLE);
        assert_non_null(strstr(report.failure.message, "a sum of f32, 40 bytes"));
        worst_ns = report.ended_ns - begin_ns > worst_ns ? report.ended_ns - begin_ns : worst_ns;
    }
    print_message("%s: signal %d ended the calls after %.0f ms\n", transports ? transports : "any",
                  signal, (double)worst_ns / 1e6);
    assert_true(worst_ns < LONG_MS / 2 * NS_PER_MS);
    kill(p.pids[1], SIGKILL);
    end(&p);
}

static void test_calls_when_a_peer_is_killed_then_they_end_with_its_name(void **state)
{
    (void)state;
    lose_rank_1("tcp", LONG_MS, SIGKILL, STATUS_UNAVAILABLE);
    lose_rank_1(NULL, LONG_MS, SIGKILL, STATUS_UNAVAILABLE);
}

static void test_calls_when_a_peer_stops_then_the_deadline_ends_them(void **state)
{
    (void)state;
    lose_rank_1("tcp", SHORT_MS, SIGSTOP, STATUS_DEADLINE_EXCEEDED);
    lose_rank_1(NULL, SHORT_MS, SIGSTOP, STATUS_DEADLINE_EXCEEDED);
}

static void *cancel_when_told(void *arg)
{
    struct child *child = arg;
    struct error why;
    if (hear(child) == 'c') {
        error_set(&why, STATUS_ABORTED, "the group ended");
        comm_ucx_cancel(child->comm, &why);
    }
    return NULL;
}

static void run_cancelled(struct child *child, struct report *report)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, cancel_when_told, child) != 0)
        return;
    run_reduce(child, report);
    pthread_join(thread, NULL);
}

static void test_call_when_cancelled_by_another_thread_then_it_ends_with_the_cause(void **state)
{
    static child_fn *const fns[] = {run_cancelled, run_until_killed};
    struct processes p;
    struct report report;
    (void)state;
    start(&p, 2, "tcp", LONG_MS, fns);
    wait_ready(&p);
    int64_t begin_ns = clock_now_ns();
    assert_true(write_all(p.fds[0], "c", 1));
    read_report(&p, 0, &report);
    assert_int_equal(report.rc, STATUS_ABORTED);
    assert_int_equal(report.later_rc, STATUS_ABORTED);
    assert_string_equal(report.failure.message, "the group ended");
    assert_true(report.ended_ns - begin_ns < LONG_MS / 2 * NS_PER_MS);
    kill(p.pids[1], SIGKILL);
    end(&p);
}

static void run_gather_of_other_size(struct child *child, struct report *report)
{
    uint8_t data[4 * 8] = {0};
    report->rc = comm_all_gather(child->comm, NULL, data, data, child->comm->index == 0 ? 4 : 8);
}

static void test_ranks_when_their_calls_differ_then_both_sizes_are_named(void **state)
{
    static child_fn *const fns[] = {run_gather_of_other_size, run_gather_of_other_size};
    struct processes p;
    struct report reports[2];
    uint32_t n_named = 0;
    (void)state;
    start(&p, 2, "tcp", LONG_MS, fns);
    wait_ready(&p);
    for (uint32_t r = 0; r < 2; r++) {
        read_report(&p, r, &reports[r]);
        assert_true(reports[r].rc < 0);
        n_named += reports[r].rc == STATUS_INTERNAL;
    }
    assert_true(n_named >= 1);
    end(&p);
}

/* --- refusals --- */

static void test_bad_groups_are_refused(void **state)
{
    static const struct {
        struct comm_ucx_config config;
        int status;
    } cases[] = {
        {{.index = 0, .size = 3, .max_bytes = 64}, STATUS_INVALID_ARGUMENT},
        {{.index = 0, .size = 1, .max_bytes = 64}, STATUS_INVALID_ARGUMENT},
        {{.index = 2, .size = 2, .max_bytes = 64}, STATUS_INVALID_ARGUMENT},
        {{.index = 0, .size = 2, .max_bytes = 0}, STATUS_INVALID_ARGUMENT},
        {{.index = 0, .size = 2, .max_bytes = 64, .transports = "pigeon"}, STATUS_INVALID_ARGUMENT},
    };
    (void)state;
    struct comm *comm = NULL;
    struct error err;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(comm_ucx_create(&cases[i].config, &comm, &err), cases[i].status);
        assert_null(comm);
    }
    struct comm_ucx_config config = {.size = 2, .max_bytes = 64};
    assert_int_equal(comm_ucx_create(&config, &comm, &err), 0);
    assert_int_equal(reduce_once(comm), STATUS_FAILED_PRECONDITION);
    comm_destroy(comm);
    assert_int_equal(comm_ucx_create(&config, &comm, &err), 0);
    struct comm_ucx_peer peers[2] = {{"a", NULL, 0}, {"b", NULL, 0}};
    assert_int_equal(comm_ucx_connect(comm, peers, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "rank 1, b"));
    comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_when_they_reduce_then_bits_are_those_of_threads),
        cmocka_unit_test(test_calls_when_a_peer_is_killed_then_they_end_with_its_name),
        cmocka_unit_test(test_calls_when_a_peer_stops_then_the_deadline_ends_them),
        cmocka_unit_test(test_call_when_cancelled_by_another_thread_then_it_ends_with_the_cause),
        cmocka_unit_test(test_ranks_when_their_calls_differ_then_both_sizes_are_named),
        cmocka_unit_test(test_bad_groups_are_refused), /* last: it opens UCX, then no fork */
    };
    char version[32];
    struct error err;
    if (comm_ucx_version(version, sizeof(version), &err) != 0) {
        printf("skipped: %s\n", err.message);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
