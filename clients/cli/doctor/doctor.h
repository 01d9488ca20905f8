/* doctor.h: what `sluice doctor` finds. Each check adds findings, changes nothing and needs nothing
 * to run: what is not there is a finding. One thread. */
#pragma once

#include <stddef.h>

struct cli;

enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_N_LEVELS };

struct doctor_finding {
    enum doctor_level level;
    const char *check; /* "kernels": a literal */
    char *message;     /* owned */
    char *remedy;      /* owned; empty where there is nothing to do */
};

struct doctor {
    struct cli *cli;
    struct doctor_finding *findings; /* owned */
    size_t n_findings, n_of[DOCTOR_N_LEVELS];
    long manager_pid; /* of the one that answers; 0: none */
    /* A program of ours that is known to run, as its manager told; 0: none. */
    long server_pids[8];
    size_t n_servers;
};

/* `remedy` NULL: nothing to do; a command that can be pasted where there is one, and what more is
 * to be said behind a '#'. The message is of `format`. */
void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check,
                const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));
void doctor_fini(struct doctor *doctor);
/* A remedy of `format`, in which each %s is a word of the command line and quoted where it has to
 * be, and each %F stands for the flags that mean the same state directory. Cut where it is too
 * long; returns out. */
enum { DOCTOR_REMEDY_BYTES = 4096 };
const char *doctor_remedy(const struct doctor *doctor, char out[DOCTOR_REMEDY_BYTES],
                          const char *format, ...);

/* doctor_machine.c: processor and kernels, CUDA, huge pages, limits, the kernel's facilities, the
 * clock. */
void doctor_check_machine(struct doctor *doctor);
/* doctor_machine.c: the memory that the manager and its workers may take, or, without a manager,
 * what is started from here. After doctor_check_programs, which finds the manager. */
void doctor_check_memory(struct doctor *doctor);
/* doctor_state.c: the state directory and who holds it; the model file, where one is given. */
void doctor_check_state(struct doctor *doctor);
void doctor_check_model(struct doctor *doctor, const char *path);
/* doctor_programs.c: manager and servers, whether they answer and of which version; then the ports,
 * which are free or theirs. */
void doctor_check_programs(struct doctor *doctor);
void doctor_check_ports(struct doctor *doctor);
