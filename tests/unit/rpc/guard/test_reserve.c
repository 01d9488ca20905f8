/* Tests that gRPC receives a waiting thread when the system refuses a new one. Before, the work of
 * the refused thread was lost. A manager at its limit of processes then read no socket any more,
 * and a call to unload a model never returned.
 *
 * Each test runs in a process of its own, because a filter of system calls stays for ever. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/rpc/guard/guard.h"
#include "proto/rpc/guard/reserve.h"

enum { MOST = 256, LEAST = 4, SMALL_STACK = 128 << 10 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* From now on, this thread and its children start no thread. */
static void refuse_threads(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static atomic_int detach_state; /* the last thread's own */

static void *count(void *n)
{
    pthread_attr_t attr;
    int detached;
    CHECK(pthread_getattr_np(pthread_self(), &attr) == 0);
    CHECK(pthread_attr_getdetachstate(&attr, &detached) == 0);
    pthread_attr_destroy(&attr);
    atomic_store(&detach_state, detached);
    atomic_fetch_add((atomic_int *)n, 1);
    return n;
}

/* Starts a thread as gRPC does. */
static int start(pthread_t *thread, int detached, size_t stack_bytes, atomic_int *n)
{
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0);
    CHECK(pthread_attr_setdetachstate(&attr, detached) == 0);
    CHECK(stack_bytes == 0 || pthread_attr_setstacksize(&attr, stack_bytes) == 0);
    int rc = rpc_guard_pthread_create(thread, &attr, count, n);
    pthread_attr_destroy(&attr);
    return rc;
}

static void lends_until_none_waits(void)
{
    static atomic_int n;
    pthread_t threads[MOST];
    rpc_reserve_start();
    uint32_t n_lent = 0, n_waiting = rpc_reserve_n_waiting();
    CHECK(n_waiting >= LEAST && n_waiting < MOST);
    refuse_threads();
    while (n_lent < MOST && start(&threads[n_lent], PTHREAD_CREATE_JOINABLE, 0, &n) == 0)
        n_lent++;
    CHECK(n_lent == n_waiting);
    CHECK(rpc_reserve_n_waiting() == 0);
    for (uint32_t i = 0; i < n_lent; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0);
        CHECK(result == &n);
    }
    CHECK(atomic_load(&n) == (int)n_lent);
}

static void tells_others_the_truth(void)
{
    static atomic_int n;
    pthread_t thread;
    rpc_reserve_start();
    uint32_t n_waiting = rpc_reserve_n_waiting();
    refuse_threads();
    CHECK(rpc_guard_pthread_create(&thread, NULL, count, &n) == EAGAIN);
    CHECK(start(&thread, PTHREAD_CREATE_JOINABLE, SMALL_STACK, &n) == EAGAIN);
    CHECK(rpc_reserve_n_waiting() == n_waiting);
    CHECK(atomic_load(&n) == 0);
}

static void lends_to_a_detached_one(void)
{
    static atomic_int n;
    pthread_t thread;
    rpc_reserve_start();
    refuse_threads();
    CHECK(start(&thread, PTHREAD_CREATE_DETACHED, 0, &n) == 0);
    while (atomic_load(&n) == 0)
        sched_yield();
    CHECK(atomic_load(&detach_state) == PTHREAD_CREATE_DETACHED);
}

/* A thread that may start no thread asks for some; then the process may start threads again. */
static void *takes_two(void *n)
{
    pthread_t threads[2];
    refuse_threads();
    for (int i = 0; i < 2; i++)
        CHECK(start(&threads[i], PTHREAD_CREATE_JOINABLE, 0, n) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return NULL;
}

static void fills_up_again(void)
{
    static atomic_int n;
    pthread_t thread;
    rpc_reserve_start();
    uint32_t n_waiting = rpc_reserve_n_waiting();
    CHECK(pthread_create(&thread, NULL, takes_two, &n) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(rpc_reserve_n_waiting() == n_waiting - 2);
    for (int i = 0; i < 2; i++) {
        CHECK(start(&thread, PTHREAD_CREATE_JOINABLE, 0, &n) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(rpc_reserve_n_waiting() == n_waiting);
    CHECK(atomic_load(&n) == 4);
}

static void in_a_process(void (*body)(void))
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_each_waiting_thread_is_lent(void **state)
{
    (void)state;
    in_a_process(lends_until_none_waits);
}

static void test_threads_of_sluice_are_refused(void **state)
{
    (void)state;
    in_a_process(tells_others_the_truth);
}

static void test_detached_threads_are_lent(void **state)
{
    (void)state;
    in_a_process(lends_to_a_detached_one);
}

static void test_reserve_fills_up_again(void **state)
{
    (void)state;
    in_a_process(fills_up_again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_waiting_thread_is_lent),
        cmocka_unit_test(test_threads_of_sluice_are_refused),
        cmocka_unit_test(test_detached_threads_are_lent),
        cmocka_unit_test(test_reserve_fills_up_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
