#include "server/worker/place/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <seccomp.h>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* System calls that are refused with any arguments. */
static const struct {
    int number;
    int err_no;
    bool sanitizers; /* sanitizers use the call at the end of the program, so their builds keep
                      * it */
} refused[] = {
    {SCMP_SYS(execve), EPERM, false},
    {SCMP_SYS(execveat), EPERM, false},
    {SCMP_SYS(ptrace), EPERM, true},
    {SCMP_SYS(process_vm_readv), EPERM, false},
    {SCMP_SYS(process_vm_writev), EPERM, false},
    {SCMP_SYS(process_madvise), EPERM, false},
    {SCMP_SYS(kcmp), EPERM, false},
    {SCMP_SYS(pidfd_getfd), EPERM, false},
    {SCMP_SYS(pidfd_send_signal), EPERM, false},
    /* Rings could do what the refused calls do. glibc and gRPC work without io_uring. */
    {SCMP_SYS(io_uring_setup), ENOSYS, false},
    {SCMP_SYS(io_uring_enter), ENOSYS, false},
    {SCMP_SYS(io_uring_register), ENOSYS, false},
    /* clone3's flags lie in memory, which a filter cannot read; glibc falls back to clone(). */
    {SCMP_SYS(clone3), ENOSYS, false},
    {SCMP_SYS(unshare), EPERM, false},
    {SCMP_SYS(setns), EPERM, false},
    {SCMP_SYS(mount), EPERM, false},
    {SCMP_SYS(umount2), EPERM, false},
    {SCMP_SYS(pivot_root), EPERM, false},
    {SCMP_SYS(chroot), EPERM, false},
    {SCMP_SYS(open_tree), EPERM, false},
    {SCMP_SYS(move_mount), EPERM, false},
    {SCMP_SYS(mount_setattr), EPERM, false},
    {SCMP_SYS(fsopen), EPERM, false},
    {SCMP_SYS(fsconfig), EPERM, false},
    {SCMP_SYS(fsmount), EPERM, false},
    {SCMP_SYS(fspick), EPERM, false},
    {SCMP_SYS(name_to_handle_at), EPERM, false},
    {SCMP_SYS(open_by_handle_at), EPERM, false},
    {SCMP_SYS(fanotify_init), EPERM, false},
    {SCMP_SYS(bpf), EPERM, false},
    {SCMP_SYS(perf_event_open), EPERM, false},
    {SCMP_SYS(userfaultfd), EPERM, false},
    {SCMP_SYS(add_key), EPERM, false},
    {SCMP_SYS(request_key), EPERM, false},
    {SCMP_SYS(keyctl), EPERM, false},
    {SCMP_SYS(init_module), EPERM, false},
    {SCMP_SYS(finit_module), EPERM, false},
    {SCMP_SYS(delete_module), EPERM, false},
    {SCMP_SYS(kexec_load), EPERM, false},
    {SCMP_SYS(kexec_file_load), EPERM, false},
    {SCMP_SYS(reboot), EPERM, false},
    {SCMP_SYS(swapon), EPERM, false},
    {SCMP_SYS(swapoff), EPERM, false},
    {SCMP_SYS(acct), EPERM, false},
    {SCMP_SYS(quotactl), EPERM, false},
    {SCMP_SYS(syslog), EPERM, false},
    {SCMP_SYS(personality), EPERM, false},
    {SCMP_SYS(vhangup), EPERM, false},
    {SCMP_SYS(iopl), EPERM, false},
    {SCMP_SYS(ioperm), EPERM, false},
    {SCMP_SYS(sethostname), EPERM, false},
    {SCMP_SYS(setdomainname), EPERM, false},
    {SCMP_SYS(settimeofday), EPERM, false},
    {SCMP_SYS(clock_settime), EPERM, false},
    {SCMP_SYS(clock_adjtime), EPERM, false},
    {SCMP_SYS(adjtimex), EPERM, false},
};

/* Refuses the call if the condition holds. */
static int refuse_if(scmp_filter_ctx filter, int err_no, int number, struct scmp_arg_cmp condition)
{
    return seccomp_rule_add(filter, SCMP_ACT_ERRNO((uint32_t)err_no), number, 1, condition);
}

/* Refuses signals to other processes, and reading or changing their resource limits. Sanitizer
 * builds allow signals: a sanitizer signals a helper that shares this process's memory but has
 * its own pid. */
static int refuse_others(scmp_filter_ctx filter)
{
    scmp_datum_t self = (scmp_datum_t)getpid();
    static const int signals[] = {SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo),
                                  SCMP_SYS(rt_tgsigqueueinfo)};
    int rc = 0;
    for (size_t i = 0; rc == 0 && !SANITIZED && i < sizeof(signals) / sizeof(signals[0]); i++)
        rc = refuse_if(filter, EPERM, signals[i], SCMP_A0(SCMP_CMP_NE, self));
    if (rc == 0 && !SANITIZED) /* tkill names a thread of any process */
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tkill), 0);
    if (rc == 0) /* pid 0 is the calling process */
        rc = refuse_if(filter, EPERM, SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_NE, 0));
    return rc;
}

static int refuse_namespaces(scmp_filter_ctx filter)
{
    static const scmp_datum_t flags[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID,   CLONE_NEWNET,
                                         CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(flags) / sizeof(flags[0]); i++)
        rc = refuse_if(filter, EPERM, SCMP_SYS(clone),
                       SCMP_A0(SCMP_CMP_MASKED_EQ, flags[i], flags[i]));
    return rc;
}

static int add_rules(scmp_filter_ctx filter, const struct sandbox_wishes *wishes)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(refused) / sizeof(refused[0]); i++)
        if (!(SANITIZED && refused[i].sanitizers))
            rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO((uint32_t)refused[i].err_no),
                                  refused[i].number, 0);
    if (rc == 0)
        rc = refuse_others(filter);
    if (rc == 0)
        rc = refuse_namespaces(filter);
    if (rc == 0 && !wishes->network)
        rc = refuse_if(filter, EAFNOSUPPORT, SCMP_SYS(socket), SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    if (rc == 0 && !wishes->network && !wishes->connect)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(connect), 0);
    return rc;
}

int sandbox_enter(const struct sandbox_wishes *wishes, struct error *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (!filter)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "no memory for the filter of system calls");
    /* System calls of other architectures (32 bits, x32) would bypass every rule above. */
    int rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    if (rc == 0)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); /* a sanitizer has a thread
                                                                  * already */
    if (rc == 0)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (rc == 0)
        rc = add_rules(filter, wishes);
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    if (rc == 0)
        return 0;
    if (rc == -ENOMEM)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "no memory for the filter of system calls");
    return error_set(err, STATUS_UNIMPLEMENTED,
                     "the kernel does not accept a system call filter: %s", strerror(-rc));
}
