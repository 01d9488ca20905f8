/* sandbox.h: what a worker may no longer ask of the kernel, however its model file or a request has
 * got hold of it. Before the first thread and the first byte of a model; once.
 *
 * A filter of system calls (seccomp, by libseccomp) that names what is refused and lets the rest
 * pass: CUDA's driver, its compiler and the C library ask for whatever their next version likes,
 * so a list of what may pass would break with an update, and what a worker could do harm with is
 * short enough to be named. In force for the whole process and whatever it might start:
 * - socket() of anything but AF_UNIX: EAFNOSUPPORT, as on a machine without a network;
 * - connect(): EPERM, since the manager takes whoever comes to its socket as its own user for an
 *   admin;
 * - execve, ptrace and reading another's memory, signals and limits of other processes, new
 *   namespaces, mounts, modules, bpf, keys, io_uring (which would go round the rest), the clock:
 *   EPERM, or as if the kernel did not have them.
 * Files are not looked at: beneath.h, the units and the account see to those. */
#pragma once

#include <stdbool.h>

struct error;

struct sandbox_wishes {
    bool network; /* ranks on several GPUs or machines: NCCL opens Internet sockets */
    bool connect; /* a GPU: its driver may speak to a daemon (MPS) over a Unix socket */
};

/* UNIMPLEMENTED where the kernel has no such filters, RESOURCE_EXHAUSTED without memory; then
 * nothing is in force. */
int sandbox_enter(const struct sandbox_wishes *wishes, struct error *err);
