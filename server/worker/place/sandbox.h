/* sandbox.h: limits the system calls of a worker, in case a model file or a request takes control
 * of it. Enter once, before the first thread and the first byte of a model.
 *
 * The filter (seccomp, by libseccomp) names the refused calls and allows the rest. CUDA's driver,
 * its compiler and the C library use other calls in each version. A list of allowed calls would
 * break with an update, and the list of harmful calls is short. The filter holds for the whole
 * process and its children.
 *
 * Sockets other than AF_UNIX: EAFNOSUPPORT, as on a machine without a network.
 *
 * connect(): EPERM, because the manager treats local clients of its own user as admins.
 *
 * EPERM or ENOSYS: execve, ptrace, access to other processes' memory, signals and limits. The
 * same for new namespaces, mounts, modules, bpf, keys and the clock. Also io_uring, which would
 * bypass the filter.
 *
 * Files are not filtered: beneath.h, the systemd units and the account protect them. */
#pragma once

#include <stdbool.h>

struct error;

struct sandbox_wishes {
    bool network; /* ranks on several GPUs or machines: NCCL opens Internet sockets */
    bool connect; /* a GPU: its driver may connect to a daemon (MPS) over a unix socket */
};

/* UNIMPLEMENTED if the kernel has no such filters, RESOURCE_EXHAUSTED without memory. On failure
 * no filter is installed. */
int sandbox_enter(const struct sandbox_wishes *wishes, struct error *err);
