/* doctor.h: the findings of `sluice doctor`. Each check adds findings and changes nothing. A check
 * needs no running program; a missing program or file is a finding. Single-threaded. */
#pragma once

#include <stddef.h>

#include "base/system/memory_limit.h"

struct cli;

enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_N_LEVELS };

struct doctor_finding {
    enum doctor_level level;
    const char *check; /* "kernels": a literal */
    char *message;     /* owned */
    char *remedy;      /* owned; empty: nothing to do */
};

struct doctor {
    struct cli *cli;
    struct doctor_finding *findings; /* owned */
    size_t n_findings, n_of[DOCTOR_N_LEVELS];
    long manager_pid; /* pid of the manager that answers; 0: none */
    /* Pids of running servers, as the manager reported them; 0: none. */
    long server_pids[8];
    size_t n_servers;
    bool has_http;     /* a running server has reported addresses of HTTP */
    long lock_pids[2]; /* manager and server that hold the locks of the state directory; 0: none */
    struct memory_limit memory; /* the figures of doctor_check_memory; zeroed: not readable */
};

/* Adds a finding with a message of `format`. `remedy` NULL: nothing to do. A remedy is a command to
 * paste if possible, with remarks behind a '#'. */
void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check,
                const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));
void doctor_fini(struct doctor *doctor);
/* Formats a remedy. Each %s is an argument of the command line and quoted if needed. Each %F is
 * replaced by the flags that select the same state directory. Cuts a long remedy. Returns out. */
enum { DOCTOR_REMEDY_BYTES = 4096 };
const char *doctor_remedy(const struct doctor *doctor, char out[DOCTOR_REMEDY_BYTES],
                          const char *format, ...);

/* In doctor_machine.c: processor and kernels, CUDA, huge pages, limits, kernel facilities, clock.
 */
void doctor_check_machine(struct doctor *doctor);
/* In doctor_machine.c: the memory that the manager and its workers may use; without a manager, the
 * memory for programs started from here. Call after doctor_check_programs, which finds the manager.
 */
void doctor_check_memory(struct doctor *doctor);
/* In doctor_state.c: the state directory and its locks; a model file. */
void doctor_check_state(struct doctor *doctor);
void doctor_check_model(struct doctor *doctor, const char *path);
/* In doctor_programs.c: manager and servers with their versions; then the ports, which must be free
 * or used by Sluice. */
void doctor_check_programs(struct doctor *doctor);
void doctor_check_ports(struct doctor *doctor);
