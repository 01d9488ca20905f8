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
    SIM_HOLDER = 77, /* pid of a foreign process that keeps packed weights open */
};

enum worker_fate {
    FATE_HEALTHY,
    FATE_DIES_AT_START,
    FATE_DIES_IN_LOAD,
    FATE_CANNOT_LOAD, /* ends, with the cause "load failed" in the exit report */
    FATE_SAYS_FAILED, /* reports FAILED and does not end */
    FATE_NEVER_CONNECTS,
    FATE_LOADS_FOR_EVER,
    FATE_DEVICE_LOST,
    FATE_SPEAKS_ANOTHER, /* another protocol version */
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
    enum worker_state state; /* UNKNOWN: the worker has not bound its socket */
    int64_t next_ns;         /* time of the next change of state; INT64_MAX: none */
    bool stopped, hung;
    bool asked;         /* the worker received Shutdown, SIGTERM or SIGKILL */
    bool killed;        /* the worker received SIGKILL, and may need time to end */
    bool unwell;        /* a fault hit the worker, so the manager may kill the worker */
    bool answers_later; /* a Shutdown waits for its answer */
    int64_t kill_at_ns;
    uint64_t progress, bytes;
    char devices[32]; /* from the launch record: "cpu:0", "cuda:0,cuda:1" */
    bool gpu;
    bool keeps;          /* a parked worker: keeps weights and serves nothing */
    bool image;          /* a park copy of GPU weights is in memory */
    bool works;          /* has requests; changes at turns_ns */
    bool fails_requests; /* every request fails */
    int64_t turns_ns;
    int64_t told_ns; /* last report with requests */
    uint64_t n_accepted, n_ok, n_failed;
    int64_t ended_ns;
    int exit_status, signal_number;
    ev_io *watch;
    bool seen; /* the manager was notified of the end */
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
    bool odd; /* the report is unexpected: other contents, other sizes, or no fit */
    enum {
        TOOL_SOUND,
        TOOL_REPORTS_ANOTHER, /* the report has no result */
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
    bool broken; /* an invariant does not hold; `why` names it */
    char why[512];
    int64_t now_ns, wall_offset_ns;
    int64_t began_ns; /* start of the current step */
    uint64_t order, ticks;

    bool up;   /* a manager exists */
    bool dead; /* the manager was killed; its code still runs, without effect */
    /* The disk failed an operation in this life. Then no power failure follows in this life: after
     * a failed sync, the kernel alone decides which data is durable. */
    bool io_failed;
    bool cut;     /* with `dead`: the power failed */
    bool damaged; /* the database was damaged and lost answered changes */
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
    bool stopping;      /* the manager was asked to end together with its workers */
    bool workers_ended; /* all workers have ended, as the manager asked */

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
    bool memory_failed; /* an allocation failed in this life */
    bool in_manager;    /* the manager's code runs, not the simulation's */
    uint32_t memory_in; /* the n-th allocation of the manager fails; 0: none fails */
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
    } memory_at; /* the next operation of this kind gets too little memory */
    bool spawn_fails, folder_fails, links_lossy, tool_fails;
    int64_t spawn_ok_ns, folder_ok_ns, lossy_until_ns;

    struct sim_statistics stats;
};

extern struct sim sim;
extern char sim_path[256]; /* path of the database; also the path of every model file */

/* -- sim_world.c: random numbers, time, timers, failpoints */
uint64_t sim_random(void);
uint64_t sim_below(uint64_t n);
bool sim_chance(unsigned percent);
void sim_seed(uint64_t seed);
/* Returns a random time between from_ms and to_ms from now. */
int64_t sim_soon(int64_t from_ms, int64_t to_ms);
/* Records that an invariant does not hold. Only the first call of a history counts. */
void sim_broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool sim_timer_due(size_t *out_i);
int64_t sim_timers_next_ns(void);
void sim_timer_fire(size_t i);
void sim_kill_manager(bool cut);

/* -- sim_process.c: processes, folders */
/* Bytes of a worker: its weights, and all its memory. */
extern const uint64_t sim_kept_bytes, sim_all_bytes;
struct sim_process *sim_process_live(const char *replica_id);
void sim_process_step(struct sim_process *process);
void sim_process_end(struct sim_process *process, int exit_status, int signal_number);
void sim_process_tell_end(struct sim_process *process);
void sim_process_drain(struct sim_process *process, uint32_t grace_ms);
void sim_process_wake(struct sim_process *process);
void sim_processes_cut(void);
struct sim_process *sim_process_plant(const char *replica_id, uint64_t epoch);

/* -- sim_link.c: connections to workers */
int64_t sim_link_next_ns(struct worker_link *link);
void sim_link_step(struct worker_link *link);
/* The link has a status to report now. */
void sim_link_push(const char *replica_id);
void sim_link_answer_shutdown(const struct sim_process *process);

/* -- sim_call.c: calls, and the outcomes of requests */
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
    KIND_READ, /* any call that changes nothing */
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
    bool live; /* a call with this request is open */
};
/* Makes a request with an empty message. Returns NULL if there is no free place. */
struct sim_request *sim_request_add(enum sim_kind kind,
                                    const ProtobufCMessageDescriptor *descriptor);
void sim_request_send(struct sim_request *request);
void sim_set_text(ProtobufCMessage *message, const char *name, const char *text);
/* `request` NULL: a call that changes nothing. */
struct rpc_call *sim_call_new(enum sim_kind kind, struct sim_request *request,
                              const ProtobufCMessage *message);
void sim_call_begin(struct rpc_call *call, const char *method);
void sim_client_reset(void);
/* The manager was killed: all its calls end, and unanswered requests are lost. */
void sim_client_lose(void);
void sim_client_retry_lost(void);
void sim_client_retry_any(void);
void sim_client_check(void);
bool sim_call_step(void);
bool sim_client_waits(void);

/* -- sim_ask.c: requests of clients */
void sim_client_act(void);
/* Sends the first requests of a history. They register and load versions. */
void sim_client_begin(void);
void sim_client_create_groups(void);
/* Registers a version that histories load. */
void sim_client_register(const char *model, const char *version);
/* Releases every held device. */
void sim_client_release(void);
/* Cancels the call of a watching client. */
void sim_client_cancel(void);

/* -- sim_read.c: calls that change nothing */
void sim_client_watch_routes(bool odd);
void sim_read(void);
void sim_read_operation(bool once);
void sim_read_events(void);
/* Writes the last parked version's names to the message (NULL: writes nothing). Returns false if no
 * version is parked. */
bool sim_set_sleeper(ProtobufCMessage *message);

/* -- sim_odd.c: requests with wrong fields */
/* Makes a random field of the message odd, except its id. The message owns the new values. */
void sim_odd(ProtobufCMessage *message);
void sim_odd_config(pb_config *config);
void sim_odd_registration(Sluice__Manager__V1__RegisterModelVersionRequest *registration);
void sim_odd_steps(Sluice__Manager__V1__UpdateModelVersionRequest *update);
/* Fills in names of devices that are misspelt or do not exist. Returns their number. */
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
/* Damages the database, or locks it as another process would. Returns the status with which the
 * next start fails; 0 if it may succeed. */
int sim_disk_damage(void);
void sim_disk_repair(void);
uint64_t sim_disk_hash(void);
struct sim_disk_faults {
    bool locked;
    bool full;
    int64_t full_until_ns;
    uint32_t fail_in;               /* operations until one fails; 0: none */
    uint32_t n_more;                /* further operations that fail soon after */
    uint32_t read_fail_in, n_reads; /* the same for reads; n_reads fail in a row */
};
extern struct sim_disk_faults sim_disk_faults;

/* -- sim_pool.c */
int sim_pool_install(void);

/* -- sim_check.c: the invariants */
void sim_check_reset(void);
void sim_check_event(const pb_event *event);
void sim_check_step(void);
/* Call when RevokeApiKey was answered. */
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
/* Adds a live worker process of an earlier epoch, as if a manager had not killed it. */
void sim_fault_plant_stranger(void);
void sim_fault_stop_everything(void);
void sim_fault_memory(enum sim_memory_fault place);
/* Ends all faults. */
void sim_fault_heal(void);

/* -- sim_life.c: a manager's life, and a history */
void sim_life_start(void);
void sim_life_end(void);
/* True if the history begins without a database. */
bool sim_starts_from_nothing(void);
void sim_history(uint64_t seed);
bool sim_prepare(const char *folder);
