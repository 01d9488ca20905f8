/* Tests of the system calls that a worker may not make, each in its own child. The call runs once
 * without the sandbox, where its result must differ from the expected one, and once with. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/worker/place/sandbox.h"

enum { FILTERED = 2 }; /* Seccomp: in /proc/self/status */

/* Result of a call: 0, or errno. */
typedef int probe_fn(void);

static int result(long rc)
{
    return rc < 0 ? errno : 0;
}

static int try_inet(void)
{
    return result(socket(AF_INET, SOCK_STREAM, 0));
}

static int try_inet6(void)
{
    return result(socket(AF_INET6, SOCK_DGRAM, 0));
}

static int try_netlink(void)
{
    return result(socket(AF_NETLINK, SOCK_RAW, 0));
}

/* A hand-written call with bits above 32 in the register. The kernel ignores these bits, so the
 * filter must, too. */
static int try_inet_in_disguise(void)
{
    return result(syscall(SYS_socket, 0x100000000 | AF_INET, SOCK_STREAM, 0));
}

static int try_unix(void)
{
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socket(AF_UNIX, SOCK_STREAM, 0) >= 0
               ? 0
               : errno;
}

static int try_connect(void)
{
    struct sockaddr_un nowhere = {.sun_family = AF_UNIX, .sun_path = "/nowhere"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return result(connect(fd, (struct sockaddr *)&nowhere, sizeof(nowhere)));
}

static int try_exec(void)
{
    char *const none[] = {NULL};
    return result(execve("/nowhere", none, none)); /* ENOENT where the call is allowed */
}

static int try_execveat(void)
{
    return result(syscall(SYS_execveat, -1, "/nowhere", NULL, NULL, 0));
}

static int try_ptrace(void)
{
    return result(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
}

static int try_signal_the_parent(void)
{
    return result(kill(getppid(), 0));
}

static int try_signal_itself(void)
{
    signal(SIGUSR1, SIG_IGN);
    return raise(SIGUSR1) == 0 && pthread_kill(pthread_self(), SIGUSR1) == 0 ? 0 : errno;
}

static int try_limit_the_parent(void)
{
    struct rlimit now;
    return result(prlimit(getppid(), RLIMIT_CORE, NULL, &now));
}

static int try_own_limits(void)
{
    struct rlimit now;
    return result(getrlimit(RLIMIT_CORE, &now));
}

static int try_read_the_parent(void)
{
    char byte;
    struct iovec to = {&byte, 1}, from = {&byte, 1};
    return result(syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0));
}

static int try_io_uring(void)
{
    return result(syscall(SYS_io_uring_setup, 1, NULL)); /* EFAULT where the call is allowed */
}

static int try_bpf(void)
{
    return result(syscall(SYS_bpf, 99, NULL, 0)); /* EINVAL or E2BIG where the call is allowed */
}

static int try_namespace(void)
{
    return result(syscall(SYS_unshare, 0x7fffffff)); /* EINVAL where the call is allowed */
}

static int try_mount(void)
{
    return result(syscall(SYS_fsopen, "nothing-like-this", 0x7fffffff));
}

static int try_clock(void)
{
    return result(syscall(SYS_clock_settime, 9999, NULL)); /* EINVAL where the call is allowed */
}

static void *nothing(void *arg)
{
    return arg;
}

static int try_a_thread(void)
{
    pthread_t thread;
    int err_no = pthread_create(&thread, NULL, nothing, NULL);
    return err_no ? err_no : pthread_join(thread, NULL);
}

static int try_memory_and_files(void)
{
    int fd = (int)syscall(SYS_memfd_create, "x", 0u);
    void *code =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return fd >= 0 && code != MAP_FAILED && open("/proc/self/status", O_RDONLY) >= 0 ? 0 : errno;
}

/* Enters the sandbox in a child and runs the probe there. Returns -1 if the child could not enter.
 */
static int in_child(probe_fn *probe, const struct sandbox_wishes *wishes)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct error err;
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (wishes && sandbox_enter(wishes, &err) != 0)
            _exit(255);
        _exit(probe());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

/* Resources that sanitizers need. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KEPT = 0 };
#else
enum { KEPT = EPERM };
#endif

static const struct {
    const char *what;
    probe_fn *probe;
    int alone, network, gpu; /* errno inside the sandbox; 0: the call succeeds */
} cases[] = {
    {"an Internet socket", try_inet, EAFNOSUPPORT, 0, EAFNOSUPPORT},
    {"one of IPv6", try_inet6, EAFNOSUPPORT, 0, EAFNOSUPPORT},
    {"a netlink socket", try_netlink, EAFNOSUPPORT, 0, EAFNOSUPPORT},
    {"an Internet socket in disguise", try_inet_in_disguise, EAFNOSUPPORT, 0, EAFNOSUPPORT},
    {"connect", try_connect, EPERM, ENOENT, ENOENT},
    {"exec", try_exec, EPERM, EPERM, EPERM},
    {"execveat", try_execveat, EPERM, EPERM, EPERM},
    {"another's limits", try_limit_the_parent, EPERM, EPERM, EPERM},
    {"another's memory", try_read_the_parent, EPERM, EPERM, EPERM},
    {"io_uring", try_io_uring, ENOSYS, ENOSYS, ENOSYS},
    {"bpf", try_bpf, EPERM, EPERM, EPERM},
    {"a namespace", try_namespace, EPERM, EPERM, EPERM},
    {"a mount", try_mount, EPERM, EPERM, EPERM},
    {"the clock", try_clock, EPERM, EPERM, EPERM},
    {"ptrace", try_ptrace, KEPT, KEPT, KEPT},
    {"a signal to another", try_signal_the_parent, KEPT, KEPT, KEPT},
    /* Resources that the worker needs. */
    {"unix sockets", try_unix, 0, 0, 0},
    {"own signals", try_signal_itself, 0, 0, 0},
    {"own limits", try_own_limits, 0, 0, 0},
    {"threads", try_a_thread, 0, 0, 0},
    {"memory and files", try_memory_and_files, 0, 0, 0},
};

static void test_what_is_refused_and_what_is_not(void **state)
{
    static const struct sandbox_wishes alone = {0}, network = {.network = true},
                                       gpu = {.connect = true};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int without = in_child(cases[i].probe, NULL);
        int within[] = {in_child(cases[i].probe, &alone), in_child(cases[i].probe, &network),
                        in_child(cases[i].probe, &gpu)};
        const int wanted[] = {cases[i].alone, cases[i].network, cases[i].gpu};
        if (cases[i].alone && without == cases[i].alone)
            print_message("%s: refused here without a sandbox too\n", cases[i].what);
        for (size_t k = 0; k < 3; k++)
            if (within[k] != wanted[k])
                fail_msg("%s (%zu): %d, wanted %d; without %d", cases[i].what, k, within[k],
                         wanted[k], without);
    }
}

static int filter_of_the_process(void)
{
    char line[256];
    int mode = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, "Seccomp:", 8) == 0)
            mode = (int)strtol(line + 8, NULL, 10);
    return mode;
}

static void test_the_kernel_says_so(void **state)
{
    static const struct sandbox_wishes alone = {0};
    (void)state;
    assert_int_equal(in_child(filter_of_the_process, &alone), FILTERED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_refused_and_what_is_not),
        cmocka_unit_test(test_the_kernel_says_so),
    };
    return cmocka_run_group_tests_name("sandbox", tests, NULL, NULL);
}
