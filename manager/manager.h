/* manager.h: the running manager: its settings and its parts. Everything here belongs to the loop
 * thread; other threads reach it through loop_queue_post and store_submit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/capacity/fit.h"
#include "manager/capacity/memory_budget.h"
#include "manager/store/catalog.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/server.h"

struct device_holds;
struct device_watch;
struct error;
struct ev_loop;
struct events;
struct loop_queue;
struct manager_metrics;
struct operations;
struct policy_runner;
struct routes;
struct rpc_server;
struct service;
struct store;
struct supervisor;
struct tool_runner;
struct updates;
struct weights;

struct settings {
    const char *state_dir;
    const char *run_dir;
    const char *socket;
    const char *manage_group, *manage_listen;
    struct access_config access;
    const char *worker;
    const char *model_root;
    const char *log_level;
    const char *log_format;
    const char *metrics;
    uint64_t drain_grace_ms;
    uint64_t restart_backoff_initial_ms;
    uint64_t restart_backoff_max_ms;
    uint64_t crash_window_ms;
    uint64_t crash_limit;
    uint64_t kill_grace_ms;
    uint64_t connect_timeout_ms;
    uint64_t load_timeout_ms;
    uint64_t tool_timeout_ms;
    uint64_t max_open_operations;
    uint64_t max_replicas;
    const char *memory_budget_text, *placement_text;
    struct memory_budget memory_budget; /* and what they say, by settings_parse() */
    enum fit_policy placement;
    uint64_t event_retention;
    uint64_t stall_timeout_ms;
    uint64_t slow_reader_ms;
    bool stop_workers_on_exit;
    bool json; /* of check, backup and restore */
    bool origin;
    bool help;
    bool man;
    bool version;
};

struct manager {
    struct settings settings;
    char **environment; /* of workers */
    int64_t started_unix_ns;
    struct ev_loop *loop;
    struct loop_queue *queue;
    struct store *store;
    struct catalog catalog;
    uint64_t told_generation; /* the catalog's, as manager_changed() last found it */
    struct tool_runner *tools;
    struct supervisor *supervisor;
    struct weights *weights;
    struct operations *operations;
    struct updates *updates;
    struct policy_runner *policies;
    struct events *events;
    struct device_holds *device_holds;
    struct device_watch *device_watch; /* NULL until there is one */
    struct routes *routes;
    struct service *service;
    struct access *access;        /* who may call */
    uint64_t n_key_changes;       /* of the catalog's keys, as access has them */
    _Atomic int64_t denials_at_s; /* any thread: the second of the last line on a denied call, */
    _Atomic uint32_t n_denials;   /* and how many there were in it */
    _Atomic uint64_t n_refused[N_RPC_LIMITS]; /* any thread */
    struct rpc_server *server;
    struct manager_metrics *metrics; /* NULL: not asked for */
    struct {
        bool busy; /* a change is on its way to the store */
        int64_t hold_until_ns;
        uint64_t n_parked, n_unloaded;
    } idle; /* idle.c */
};

/* To be called after every committed change: supervises, moves operations on, publishes routes. */
void manager_changed(struct manager *manager);

/* store_poll(), and manager_changed() where the catalog is another than it was told of: a commit
 * whose caller had heard that its end is not known comes with some later job, whose own caller need
 * not look. False as store_poll() is. */
bool manager_poll_store(struct manager *manager);
