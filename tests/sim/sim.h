/* sim.h: a simulated world for the manager's core. The objects of sluice-manager run in the
 * simulation unchanged. The layers below are replaced, symbol by symbol, under the headers that are
 * the seams. The seams are base/clock.h, base/rng.h, libev (timers, asyncs, the watches of pidfds),
 * manager/host/process.h, run_folder.h, worker_link.h, weights.h, tool.h, device_watch.h,
 * failpoint.h, proto/rpc/server/call.h, and SQLite's file layer. Single-threaded. All random
 * choices come from one seed. A history leaves no state for the next history (replay.sh checks
 * that).
 *
 * A killed manager cannot be torn out of its stack. Instead, its actions have no effect from that
 * moment on (`dead`) and its disk ignores it. The manager is destroyed at the next start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/status.h"
#include "manager/base/pb.h"
#include "manager/manager.h"
#include "manager/service/service.h"

enum {
    SIM_MAX_PROCESSES = 256,
    SIM_MAX_TIMERS = 256,
    SIM_MAX_LINKS = 128,
    SIM_MAX_FOLDERS = 256,
    SIM_MAX_CALLS = 256,
    SIM_MAX_TOOLS = 64,
    SIM_FIRST_FD = 1000,
    SIM_ID_BYTES = 24,
    SIM_HOLDER = 77, /* the pid of one that has packed weights open and lets go of nothing */
};

enum worker_fate {
    FATE_HEALTHY,
    FATE_DIES_AT_START,
    FATE_DIES_IN_LOAD,
    FATE_CANNOT_LOAD, /* leaves an exit report with this cause */
    FATE_SAYS_FAILED, /* and stays */
    FATE_NEVER_CONNECTS,
    FATE_LOADS_FOR_EVER,
    FATE_DEVICE_LOST,
    FATE_SPEAKS_ANOTHER, /* protocol */
    N_FATES,
};

struct sim_process {
    bool used, alive, reaped_by_us;
    uint32_t life; /* life of the manager that started the process */
    pid_t pid;
    uint64_t start_ticks;
    char replica_id[SIM_ID_BYTES];
    uint64_t epoch;
    enum worker_fate fate;
    enum worker_state state; /* UNKNOWN: its socket is not bound yet */
    int64_t next_ns;         /* time of the next step; INT64_MAX: none */
    bool stopped, hung;
    bool asked;         /* Shutdown, SIGTERM or SIGKILL has reached it */
    bool killed;        /* SIGKILL; it may take a while to end */
    bool unwell;        /* anything that may rightly cost it its life has befallen it */
    bool answers_later; /* a Shutdown waits for its answer */
    int64_t kill_at_ns;
    uint64_t progress, bytes;
    char devices[32]; /* as it was given them: "cpu:0", "cuda:0,cuda:1" */
    bool gpu;
    bool keeps;          /* weights, and serves nothing */
    bool image;          /* a park copy of GPU weights is in memory */
    bool works;          /* requests come, until turns_ns */
    bool fails_requests; /* all of them */
    int64_t turns_ns;
    int64_t told_ns; /* when it told of requests last */
    uint64_t n_accepted, n_ok, n_failed;
    int64_t ended_ns;
    int exit_status, signal_number;
    ev_io *watch;
    bool seen; /* its end has been told */
};

struct sim_link {
    struct worker_link *link;
};

struct sim_folder {
    char id[SIM_ID_BYTES];
    bool has_report;
    uint64_t epoch;
    int cause;
    int status; /* status code of the worker's error; 0: none */
    int fault;
};

struct sim_timer {
    ev_timer *timer;
    int64_t at_ns;
    uint64_t order;
};

enum sim_request_state { REQUEST_SENT, REQUEST_ANSWERED, REQUEST_REFUSED, REQUEST_LOST };

struct sim_tool {
    bool used;
    char mode[16];
    void (*done)(void *arg, const pb_tool *report, const struct error *status);
    void *arg;
    int64_t at_ns;
    bool fails;
    bool odd; /* reports what is not wished for */
    enum {
        TOOL_SOUND,
        TOOL_REPORTS_ANOTHER, /* than it was asked for */
        TOOL_TELLS_NO_DIGEST,
        TOOL_SEES_OTHER_CONTENTS,
        TOOL_REFUSES_THE_FILE,
        TOOL_MISSES_A_DEVICE,
        TOOL_SEES_ONE_UNUSABLE,
        N_TOOL_FAULTS
    } fault;
};

struct sim_statistics {
    uint64_t n_histories, n_steps, n_faults, n_commits, n_restarts, n_crashes, n_power_cuts;
    uint64_t n_spawns, n_woken, n_deaths, n_requests, n_answered, n_refused, n_lost, n_retried;
    uint64_t n_failpoints, n_io_errors, n_no_memory;
};

struct sim {
    uint64_t seed, history_seed;
    uint64_t rng[2];
    bool quiet_phase; /* no more faults: everything must come to rest */
    bool verbose;
    bool broken; /* an invariant does not hold; `why` */
    char why[512];
    int64_t now_ns, wall_offset_ns;
    int64_t began_ns; /* when the step that runs did */
    uint64_t order, ticks;

    bool up, dead; /* a manager is there; it has been killed and does not know */
    /* A disk that failed an operation in this life does not lose its power too. After a failed
     * sync, the kernel decides what is durable, which is not the store's fault. */
    bool io_failed;
    bool cut;     /* with dead: the power went too */
    bool damaged; /* its disk, for good */
    int why_not_started;
    bool frozen;
    int64_t frozen_until_ns, restart_at_ns;
    uint32_t life;
    long failpoint_in; /* passes of the failpoint until the manager is killed; 0: none */
    bool failpoint_cuts;
    struct manager manager;
    bool store_woken;
    ev_async *async;
    bool async_sent;
    bool stopping;      /* the manager received the request to end together with its workers */
    bool workers_ended; /* true once the workers were asked to end */

    struct sim_timer timers[SIM_MAX_TIMERS];
    size_t n_timers;
    struct sim_process processes[SIM_MAX_PROCESSES];
    size_t n_processes;
    uint64_t n_process_changes; /* from 1 */
    uint64_t n_deaths;
    struct sim_folder folders[SIM_MAX_FOLDERS];
    size_t n_folders;
    struct worker_link *links[SIM_MAX_LINKS];
    size_t n_links;
    struct sim_tool tools[SIM_MAX_TOOLS];
    size_t n_tools;
    struct rpc_call *calls[SIM_MAX_CALLS];
    size_t n_calls;

    enum worker_fate next_fate; /* fate of the next n_fated workers */
    uint32_t n_fated;
    bool memory_failed; /* in this life */
    bool in_manager;    /* its code runs, and not the world's */
    uint32_t memory_in; /* its allocations until one fails; 0: none */
    uint32_t n_more_memory;
    enum sim_memory_fault {
        NO_MEMORY_NOWHERE,
        NO_MEMORY_FOR_REQUEST,
        NO_MEMORY_FOR_JOB,
        NO_MEMORY_FOR_POLL,
        NO_MEMORY_FOR_TIMER,
        NO_MEMORY_FOR_LINK,
        NO_MEMORY_FOR_EXIT,
        NO_MEMORY_FOR_TOOL,
        NO_MEMORY_FOR_QUEUE,
        N_MEMORY_FAULTS
    } memory_at; /* the next one of these is short of it */
    bool spawn_fails, folder_fails, links_lossy, tool_fails;
    int64_t spawn_ok_ns, folder_ok_ns, lossy_until_ns;

    struct sim_statistics stats;
};

extern struct sim sim;
extern char sim_path[256]; /* path of the database, and of the only model file */

/* -- sim_world.c: chance, time, timers, failpoints */
uint64_t sim_random(void);
uint64_t sim_below(uint64_t n);
bool sim_chance(unsigned percent);
void sim_seed(uint64_t seed);
/* A moment so long from now. */
int64_t sim_soon(int64_t from_ms, int64_t to_ms);
/* Notes the first invariant that does not hold. */
void sim_broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool sim_timer_due(size_t *out_i);
int64_t sim_timers_next_ns(void);
void sim_timer_fire(size_t i);
void sim_kill_manager(bool cut);

/* -- sim_process.c: processes, folders */
// memory of a worker: its weights, and all its memory
extern const uint64_t sim_kept_bytes, sim_all_bytes;
struct sim_process *sim_process_live(const char *replica_id);
void sim_process_step(struct sim_process *process);
void sim_process_end(struct sim_process *process, int exit_status, int signal_number);
void sim_process_tell_end(struct sim_process *process);
void sim_process_drain(struct sim_process *process, uint32_t grace_ms);
void sim_process_wake(struct sim_process *process);
void sim_processes_cut(void);
struct sim_process *sim_process_plant(const char *replica_id, uint64_t epoch);

/* -- sim_link.c: the lines to them */
int64_t sim_link_next_ns(struct worker_link *link);
void sim_link_step(struct worker_link *link);
/* The link has a status to report now. */
void sim_link_push(const char *replica_id);
void sim_link_answer_shutdown(const struct sim_process *process);

/* -- sim_call.c: calls, and what became of requests */
enum sim_kind {
    KIND_REGISTER,
    KIND_LOAD,
    KIND_UNLOAD,
    KIND_SCALE,
    KIND_DRAIN,
    KIND_RESTART,
    KIND_CANCEL,
    KIND_RELEASE,
    KIND_GROUP,
    KIND_DELETE_GROUP,
    KIND_DELETE,
    KIND_PARK,
    KIND_WAKE,
    KIND_UPDATE,
    KIND_TRAFFIC,
    KIND_POLICY,
    KIND_KEY,
    KIND_REVOKE,
    KIND_READ, /* whatever changes nothing */
    KIND_ROUTES,
    KIND_EVENTS,
    N_KINDS
};
struct sim_request {
    enum sim_kind kind;
    ProtobufCMessage *message; /* owned */
    char request_id[SIM_ID_BYTES];
    char operation_id[SIM_ID_BYTES]; /* as answered */
    enum sim_request_state state;
    bool live; /* a call for it is open */
};
/* NULL: there are enough of them. */
struct sim_request *sim_request_add(enum sim_kind kind,
                                    const ProtobufCMessageDescriptor *descriptor);
void sim_request_send(struct sim_request *request);
void sim_set_text(ProtobufCMessage *message, const char *name, const char *text);
/* `request` NULL: no client waits for an effect. */
struct rpc_call *sim_call_new(enum sim_kind kind, struct sim_request *request,
                              const ProtobufCMessage *message);
void sim_call_begin(struct rpc_call *call, const char *method);
void sim_client_reset(void);
/* The manager is gone: its calls end, what was not answered is lost. */
void sim_client_lose(void);
void sim_client_retry_lost(void);
void sim_client_retry_any(void);
void sim_client_check(void);
bool sim_call_step(void);
bool sim_client_waits(void);

/* -- sim_ask.c: what clients ask for */
void sim_client_act(void);
void sim_client_begin(void); /* with something to be loaded */
void sim_client_create_groups(void);
/* Registers what the histories use. */
void sim_client_register(const char *model, const char *version);
/* Whatever device is put aside is sound again. */
void sim_client_release(void);
/* Cancels the call of a watching client. */
void sim_client_cancel(void);

/* -- sim_read.c: what changes nothing */
void sim_client_watch_routes(bool odd);
void sim_read(void);
void sim_read_operation(bool once);
void sim_read_events(void);
/* Names a version that is parked, the last of several; false where there is none. NULL: only
 * whether. */
bool sim_set_sleeper(ProtobufCMessage *message);

/* -- sim_odd.c: requests that say something wrong */
/* Makes a random field of the message odd, except its id. The message owns the new values. */
void sim_odd(ProtobufCMessage *message);
void sim_odd_config(pb_config *config);
void sim_odd_registration(Sluice__Manager__V1__RegisterModelVersionRequest *registration);
void sim_odd_steps(Sluice__Manager__V1__UpdateModelVersionRequest *update);
/* Names of devices that are not written so, or not there; how many. */
size_t sim_odd_devices(const char *out[2]);

/* -- sim_tool.c */
void sim_tool_step(size_t i);

/* -- sim_disk.c: SQLite's files in memory */
int sim_disk_install(void);
bool sim_disk_keep_templates(const char *path);
void sim_disk_reset(void);
/* Replaces the disk's contents by what is left after a kill of the writer, or (cut) a power
 * failure. */
void sim_disk_crash(bool cut);
/* Spoils the database, or has another process use it; the status with which a start is refused, if
 * it is. */
int sim_disk_damage(void);
void sim_disk_repair(void);
uint64_t sim_disk_hash(void);
struct sim_disk_faults {
    bool locked;
    bool full;
    int64_t full_until_ns;
    uint32_t fail_in;               /* operations until one fails; 0: none */
    uint32_t n_more;                /* that fail after it */
    uint32_t read_fail_in, n_reads; /* reads, and how many in a row */
};
extern struct sim_disk_faults sim_disk_faults;

/* -- sim_pool.c */
int sim_pool_install(void);

/* -- sim_check.c: the invariants */
void sim_check_reset(void);
void sim_check_event(const pb_event *event);
void sim_check_step(void);
/* RevokeApiKey was answered. */
void sim_check_revoked(const char *id, bool in_memory_only);
void sim_check_spawn(const char *replica_id, uint64_t epoch);
void sim_check_shutdown(const struct sim_process *process);
void sim_check_kill(const struct sim_process *process);
void sim_check_routes(const pb_route_table *table);
void sim_check_before_crash(void);
void sim_check_after_start(void);
bool sim_check_is_at_rest(void);
void sim_check_rest(void);

/* -- sim_rules.c: the invariants of traffic, updates, parking and idle versions */
void sim_rules_event(const pb_event *event);
void sim_rules_step(void);
void sim_rules_routes(const pb_route_table *table);
void sim_rules_rest(void);

/* -- sim_fault.c */
void sim_fault_strike(void);
/* A process of an earlier epoch that somebody has forgotten to kill. */
void sim_fault_plant_stranger(void);
void sim_fault_stop_everything(void);
void sim_fault_memory(enum sim_memory_fault place);
/* Whatever was wrong is over. */
void sim_fault_heal(void);

/* -- sim_life.c: a manager's life, and a history */
void sim_life_start(void);
void sim_life_end(void);
/* There is no database yet. */
bool sim_starts_from_nothing(void);
void sim_history(uint64_t seed);
bool sim_prepare(const char *folder);
