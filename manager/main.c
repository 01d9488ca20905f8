/* main.c: sluice-manager, the control plane: one libev loop, the store thread and the gRPC
 * server's threads. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/settings/options.h"
#include "base/settings/reload.h"
#include "base/strbuf.h"
#include "base/system/heap.h"
#include "base/system/lock_file.h"
#include "base/system/notify.h"
#include "base/system/shell_word.h"
#include "manager/base/loop_queue.h"
#include "manager/check_config.h"
#include "manager/devices/device_hold.h"
#include "manager/devices/device_watch.h"
#include "manager/host/process.h"
#include "manager/host/tool.h"
#include "manager/manager.h"
#include "manager/offline.h"
#include "manager/replicas/supervisor.h"
#include "manager/rollout/idle.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/update.h"
#include "manager/service/access.h"
#include "manager/service/service.h"
#include "manager/settings/environment.h"
#include "manager/settings/paths.h"
#include "manager/settings/settings.h"
#include "manager/slots/weights.h"
#include "manager/store/db.h"
#include "manager/store/lock.h"
#include "manager/store/store.h"
#include "manager/watch/events.h"
#include "manager/watch/metrics.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"

enum {
    EXIT_USAGE = 2,
    EXIT_DISK = 74, /* the disk is full; a later start may succeed */
    EXIT_LOCKED = 75,
    EXIT_BAD_SETTINGS = 78, /* a bad address or one in use: a new try would not help */
    SHUTDOWN_GRACE_MS = 2000,
    STOP_POLL_MS = 20,
    STORE_AGAIN_MS = 100,
    MEMORY_MS = 1000
};

struct program {
    struct manager manager; /* first member */
    struct paths paths;
    struct rpc_service tables[SERVICE_COUNT];
    int lock_fd, run_lock_fd; /* locks of the state directory and of the run directory */
    ev_async store_wake;
    ev_timer store_again;
    ev_signal on_term, on_int, on_hup;
    struct reload *reload;
    ev_timer stop_poll;
    ev_timer watchdog, memory;
    struct heap_watch connections;
    bool stopping;
    int64_t stop_deadline_ns;
};

/* --- parts --- */

static void wake_store(void *arg)
{
    struct program *program = arg;
    ev_async_send(program->manager.context.loop, &program->store_wake);
}

static void on_store(struct ev_loop *loop, ev_async *watcher, int events)
{
    struct program *program = watcher->data;
    (void)loop;
    (void)events;
    if (!manager_poll_store(&program->manager)) {
        ev_timer_stop(program->manager.context.loop, &program->store_again);
        ev_timer_set(&program->store_again, STORE_AGAIN_MS / 1e3, 0.);
        ev_timer_start(program->manager.context.loop, &program->store_again);
    }
    access_take_keys(&program->manager.gate);
}

static void on_store_again(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct program *program = timer->data;
    (void)loop;
    (void)events;
    ev_async_send(program->manager.context.loop, &program->store_wake);
}

static int create_server(struct program *program, struct error *err)
{
    struct manager *manager = &program->manager;
    struct rpc_server_config config;
    rpc_server_config_init(&config);
    service_tables(manager->service, program->tables);
    config.services = program->tables;
    config.n_services = SERVICE_COUNT;
    if (access_guard(&manager->gate, &config, err) != 0 ||
        rpc_server_create(&config, &manager->server, err) != 0)
        return err->status;
    manager->gate.server = manager->server;
    if (access_listen(&manager->gate, err) != 0)
        return err->status;
    struct rpc_health *health = rpc_server_health(manager->server);
    rpc_health_set(health, "", true);
    rpc_health_set(health, "sluice.manager.v1.ModelManager", true);
    rpc_health_set(health, "sluice.manager.v1.Routing", true);
    return 0;
}

static void on_device_failed(void *arg, const char *device, uint64_t xid)
{
    supervisor_device_failed(arg, device, xid);
}

static int create_watchers(struct program *program, struct error *err)
{
    struct manager *manager = &program->manager;
    const struct device_watch_config watch_config = {
        .context = &manager->context,
        .holds = manager->fleet.device_holds,
        .on_failed = on_device_failed,
        .arg = manager->supervisor,
    };
    if (device_watch_create(&watch_config, &manager->fleet.device_watch, err) != 0 ||
        create_server(program, err) != 0)
        return err->status;
    const struct manager_metrics_config metrics_config = {
        .fleet = &manager->fleet,
        .idle = manager->idle,
        .routes = manager->routes,
        .server = manager->server,
        .access = manager->gate.access,
        .n_refused = manager->gate.n_refused,
    };
    return manager_metrics_create(&metrics_config, &manager->metrics, err);
}

static int create_parts(struct program *program, struct error *err)
{
    struct manager *manager = &program->manager;
    struct context *context = &manager->context;
    struct fleet *fleet = &manager->fleet;
    struct store_config store_config = {
        .path = program->paths.database,
        .wake = wake_store,
        .wake_arg = program,
        .max_events = manager->settings.event_retention,
        .on_event = events_add,
    };
    struct tool_config tool_config = {
        .loop = context->loop,
        .program = manager->settings.worker,
        .environment = context->environment,
        .timeout_ms = manager->settings.tool_timeout_ms,
    };
    if (events_create(context, &manager->events, err) != 0)
        return err->status;
    store_config.event_arg = manager->events;
    if (loop_queue_create(context->loop, &context->queue, err) != 0 ||
        store_open(&store_config, &manager->catalog, &context->store, err) != 0 ||
        tool_runner_create(&tool_config, &fleet->tools, err) != 0 ||
        operations_create(fleet, &manager->operations, err) != 0)
        return err->status;
    const struct operation_ops operations = operations_ops(manager->operations);
    if (updates_create(fleet, &operations, &manager->updates, err) != 0 ||
        policy_runner_create(fleet, &manager->policies, err) != 0 ||
        idle_create(fleet, &manager->idle, err) != 0 ||
        routes_create(fleet, &manager->routes, err) != 0)
        return err->status;
    operations_show_updates(manager->operations, manager->updates);
    const struct service_config service_config = {
        .fleet = fleet,
        .operations = manager->operations,
        .events = manager->events,
        .routes = manager->routes,
        .gate = &manager->gate,
    };
    if (service_create(&service_config, &manager->service, err) != 0 ||
        weights_create(fleet, &fleet->weights, err) != 0 ||
        device_holds_create(context, &fleet->device_holds, err) != 0 ||
        supervisor_create(fleet, &operations, &manager->supervisor, err) != 0)
        return err->status;
    return create_watchers(program, err);
}

/* Destroys the parts in an order in which nothing calls a destroyed part: first calls end, then
 * results. */
static void destroy_parts(struct program *program)
{
    struct manager *manager = &program->manager;
    struct context *context = &manager->context;
    struct fleet *fleet = &manager->fleet;
    manager_metrics_destroy(manager->metrics);
    device_watch_destroy(fleet->device_watch);
    fleet->device_watch = NULL;
    if (manager->server)
        rpc_server_shutdown(manager->server, 0);
    if (context->queue)
        loop_queue_run(context->queue);
    tool_runner_destroy(fleet->tools);
    store_close(context->store);
    if (context->queue)
        loop_queue_run(context->queue);
    supervisor_destroy(manager->supervisor);
    change_hub_close(&context->changes);
    change_hub_close(&context->progress);
    change_hub_close(&context->ticks);
    if (context->queue)
        loop_queue_run(context->queue);
    rpc_server_destroy(manager->server);
    access_destroy(manager->gate.access);
    loop_queue_destroy(context->queue);
    service_destroy(manager->service);
    weights_destroy(fleet->weights);
    device_holds_destroy(fleet->device_holds);
    routes_destroy(manager->routes);
    idle_destroy(manager->idle);
    policy_runner_destroy(manager->policies);
    updates_destroy(manager->updates);
    operations_destroy(manager->operations);
    events_destroy(manager->events);
    catalog_fini(&manager->catalog);
}

/* --- timers and the end --- */

/* Sends the watchdog notice from the loop. If the loop hangs, the notice is missing and the
 * service manager starts another manager, which adopts the workers. */
static void on_watchdog(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
    notify_watchdog();
}

static void start_watchdog(struct program *program)
{
    double every_s = (double)notify_watchdog_ms() / 3e3;
    if (every_s <= 0)
        return;
    ev_timer_set(&program->watchdog, 0., every_s);
    ev_timer_start(program->manager.context.loop, &program->watchdog);
    ev_unref(program->manager.context.loop); /* the timer alone must not keep the loop running */
}

/* Returns the memory of many handshakes at the TCP port to the system after their end. */
static void on_memory(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct program *program = timer->data;
    (void)loop;
    (void)events;
    heap_watch(&program->connections, rpc_server_n_connections(program->manager.server), 0,
               clock_now_ns());
}

static void start_memory_timer(struct program *program)
{
    if (!*program->manager.settings.manage_listen)
        return;
    ev_timer_set(&program->memory, 0., MEMORY_MS / 1e3);
    ev_timer_start(program->manager.context.loop, &program->memory);
    ev_unref(program->manager.context.loop); /* the timer alone must not keep the loop running */
}

static void on_stop_poll(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct program *program = timer->data;
    struct rpc_server_stats stats;
    (void)events;
    rpc_server_stats(program->manager.server, &stats);
    if (stats.n_live == 0 || clock_now_ns() >= program->stop_deadline_ns)
        ev_break(loop, EVBREAK_ALL);
}

static void end_calls(void *arg)
{
    struct program *program = arg;
    program->stop_deadline_ns = clock_now_ns() + SHUTDOWN_GRACE_MS * NS_PER_MS;
    ev_timer_init(&program->stop_poll, on_stop_poll, 0., STOP_POLL_MS / 1e3);
    program->stop_poll.data = program;
    ev_timer_start(program->manager.context.loop, &program->stop_poll);
}

static void on_signal(struct ev_loop *loop, ev_signal *watcher, int events)
{
    struct program *program = watcher->data;
    struct manager *manager = &program->manager;
    struct error err;
    (void)events;
    if (program->stopping) {
        ev_break(loop, EVBREAK_ALL); /* the second signal ends at once */
        return;
    }
    program->stopping = true;
    log_info(LOG_EVENT("stopping"), LOG_I64("signal", watcher->signum));
    notify_status("STOPPING=1",
                  manager->settings.stop_workers_on_exit ? "Workers end" : "Workers run on");
    rpc_server_drain(manager->server);
    error_set(&err, STATUS_UNAVAILABLE, "the manager is stopping");
    error_reason(&err, REASON_DRAINING);
    operations_end_watches(manager->operations, &err);
    routes_end_watches(manager->routes, &err);
    events_end_watches(manager->events, &err);
    if (manager->settings.stop_workers_on_exit)
        supervisor_stop_workers(manager->supervisor, end_calls, program);
    else
        end_calls(program);
}

static void on_reload(struct ev_loop *loop, ev_signal *watcher, int events)
{
    struct program *program = watcher->data;
    (void)loop;
    (void)events;
    settings_reload(program->reload, &program->manager.settings);
    change_hub_notify(&program->manager.context.changes, NULL);
}

static void watch_signals(struct program *program)
{
    struct ev_loop *loop = program->manager.context.loop;
    ev_signal_init(&program->on_term, on_signal, SIGTERM);
    ev_signal_init(&program->on_int, on_signal, SIGINT);
    ev_signal_init(&program->on_hup, on_reload, SIGHUP);
    program->on_term.data = program->on_int.data = program->on_hup.data = program;
    ev_signal_start(loop, &program->on_term);
    ev_signal_start(loop, &program->on_int);
    ev_signal_start(loop, &program->on_hup);
    signal(SIGPIPE, SIG_IGN);
}

/* --- life --- */

/* Starts the server once the built-in group `cpu` exists. On the first start of all, the probe of
 * the machine creates the group. If the probe fails, the manager serves anyway and logs the
 * reason. */
static int start_server(struct program *program, struct error *err)
{
    struct manager *manager = &program->manager;
    service_probe_devices(manager->service);
    while (!catalog_group(&manager->catalog, "cpu") && service_is_probing(manager->service) &&
           !program->stopping)
        ev_run(manager->context.loop, EVRUN_ONCE);
    return program->stopping ? 0 : rpc_server_start(manager->server, err);
}

/* Explains a full disk at a first start, which needs room for a database. Later starts run with
 * a readable database. */
static void explain_full_disk(const struct paths *paths, struct error *err)
{
    struct statvfs disk = {0};
    char room[32];
    if (err->reason != REASON_STATE_STORE_FULL || access(paths->database, F_OK) == 0 ||
        statvfs(paths->state_dir, &disk) != 0)
        return;
    uint64_t n_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    format_bytes(n_free, room);
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "state store: a new database in %.200s needs 1 MiB; its disk has %s "
              "free%s. Make room or give --state-dir on another disk, and start again. Nothing was "
              "changed",
              paths->state_dir, room,
              n_free > 1 << 20 ? ", so a quota or a limit of the file size (ulimit -f) stops it"
                               : "");
    error_reason(err, REASON_STATE_STORE_FULL);
}

/* Replaces the hint about a damaged database by the command to run. Errors for clients have no
 * paths, but an operator needs the path. The check command then lists backups and next steps. */
static void explain_damaged(const struct paths *paths, struct error *err)
{
    char *hint = strstr(err->message, store_db_restore_hint);
    struct strbuf folder = {0};
    if (!hint)
        return;
    shell_word_add(&folder, paths->state_dir);
    snprintf(hint, sizeof(err->message) - (size_t)(hint - err->message),
             "the file is unchanged; for the problems and what to do, run: sluice-manager check "
             "--state-dir %s",
             strbuf_str(&folder));
    strbuf_fini(&folder);
}

static int exit_of(int rc, const struct error *err)
{
    if (rc == STATUS_INVALID_ARGUMENT || rc == STATUS_ALREADY_EXISTS)
        return EXIT_BAD_SETTINGS;
    if (rc != 0 && err->reason == REASON_STATE_STORE_FULL)
        return EXIT_DISK;
    return rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int run(struct program *program)
{
    struct manager *manager = &program->manager;
    struct error err = {0};
    int rc = create_parts(program, &err);
    if (rc == 0)
        rc = start_server(program, &err);
    if (rc != 0) {
        explain_full_disk(&program->paths, &err);
        explain_damaged(&program->paths, &err);
        log_error(LOG_EVENT("not started"), LOG_STR("why", err.message));
        fprintf(stderr, "sluice-manager: %s\n", err.message);
    } else {
        log_info(LOG_EVENT("manager ready"), LOG_STR("socket", manager->settings.socket),
                 LOG_U64("epoch", manager->catalog.manager_epoch),
                 LOG_U64("models", catalog_count(&manager->catalog, TABLE_MODEL)),
                 LOG_U64("adopted", manager->fleet.n_adopted));
        change_hub_notify(&manager->context.changes, NULL);
        if (!program->stopping)
            notify_status("READY=1", "Managing; %llu workers adopted",
                          (unsigned long long)manager->fleet.n_adopted);
        start_watchdog(program);
        start_memory_timer(program);
        ev_run(manager->context.loop, 0);
        log_info(LOG_EVENT("stopped"));
    }
    destroy_parts(program);
    return exit_of(rc, &err);
}

static int run_locked(struct program *program)
{
    struct manager *manager = &program->manager;
    struct context *context = &manager->context;
    char folder[PATH_MAX];
    char **environment =
        environment_create(environ, getcwd(folder, sizeof(folder)) ? folder : NULL);
    manager_init(manager);
    context->started_unix_ns = clock_wall_ns();
    context->environment = environment;
    /* Not the default loop, which would reap our children by itself. */
    context->loop = ev_loop_new(EVFLAG_NOENV);
    if (!context->loop || !environment) {
        fprintf(stderr, "sluice-manager: no event loop: %s\n", strerror(errno));
        free(environment);
        return EXIT_FAILURE;
    }
    ev_async_init(&program->store_wake, on_store);
    program->store_wake.data = program;
    ev_async_start(context->loop, &program->store_wake);
    ev_timer_init(&program->store_again, on_store_again, 0., 0.);
    ev_timer_init(&program->watchdog, on_watchdog, 0., 0.);
    ev_timer_init(&program->memory, on_memory, 0., 0.);
    program->memory.data = program;
    program->store_again.data = program;
    watch_signals(program);
    int rc = run(program);
    ev_loop_destroy(context->loop);
    free(environment);
    return rc;
}

/* Locks the run directory, as another manager there would kill this one's workers as stray ones.
 * Without a lock file, as on a full disk, the manager runs without this lock. */
static int lock_run_dir(struct program *program, struct error *err)
{
    if (lock_file_take(program->paths.run_lock, &program->run_lock_fd, err) == 0)
        return 0;
    program->run_lock_fd = -1;
    if (err->reason == REASON_LOCKED) {
        error_prefix(err, "--run-dir: in use by another manager");
        return err->status;
    }
    log_warn(LOG_EVENT("run directory not locked"), LOG_STR("why", err->message));
    return 0;
}

static int start(struct program *program)
{
    struct settings *settings = &program->manager.settings;
    struct error err;
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    (void)log_level_parse(settings->log_level, &level); /* the option table has checked the words */
    (void)log_format_parse(settings->log_format, &format);
    log_init("sluice-manager", level, format);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond a limit then fails with an error */
    if (paths_prepare(settings, &program->paths, &err) != 0) {
        fprintf(stderr, "sluice-manager: %s\n", err.message);
        if (err.reason == REASON_NO_OPENAT2)
            return EXIT_BAD_SETTINGS;
        if (err.status == STATUS_RESOURCE_EXHAUSTED) /* no room for the manager's folders */
            return EXIT_DISK;
        return err.status == STATUS_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_FAILURE;
    }
    if (access_check_listeners(settings, &err) != 0) {
        fprintf(stderr, "sluice-manager: %s\n", err.message);
        return EXIT_BAD_SETTINGS;
    }
    if (store_lock(program->paths.lock, program->paths.database, &program->lock_fd, &err) != 0) {
        fprintf(stderr, "sluice-manager: %s\n", err.message);
        return err.reason == REASON_LOCKED ? EXIT_LOCKED : EXIT_FAILURE;
    }
    int rc = EXIT_LOCKED;
    if (lock_run_dir(program, &err) == 0)
        rc = run_locked(program);
    else
        fprintf(stderr, "sluice-manager: %s\n", err.message);
    if (program->run_lock_fd >= 0)
        close(program->run_lock_fd);
    close(program->lock_fd);
    return rc;
}

int main(int argc, char *argv[])
{
    if (argc > 1 && offline_is_command(argv[1]))
        return offline_main(argc - 1, argv + 1);
    struct program *program = calloc(1, sizeof(*program));
    struct options *options = NULL;
    struct error err;
    int rc = EXIT_SUCCESS;
    if (!program)
        return EXIT_FAILURE;
    if (settings_parse(argc, argv, &program->manager.settings, &options, &err) != 0) {
        fprintf(stderr, "sluice-manager: %s\n", err.message);
        rc = EXIT_USAGE;
    } else if (program->manager.settings.help || program->manager.settings.man) {
        struct strbuf text;
        strbuf_init(&text, 0);
        settings_manual(program->manager.settings.man, &text);
        fputs(strbuf_str(&text), stdout);
        strbuf_fini(&text);
    } else if (program->manager.settings.version) {
        printf("sluice-manager %s\n", SLUICE_VERSION);
    } else if (!check_config_word(options, &program->manager.settings, &rc)) {
        program->reload = settings_watch(argc, argv, &program->manager.settings);
        rc = program->reload ? start(program) : EXIT_FAILURE;
        reload_destroy(program->reload);
    }
    options_destroy(options);
    free(program);
    return rc;
}
