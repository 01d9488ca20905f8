#include "server/worker/serve/serve.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/system/cpu.h"
#include "engine/engine.h"
#include "engine/engine_facts.h"
#include "kernels/ops.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/base/template_file.h"
#include "server/worker/base/work_pool.h"
#include "server/worker/park/park_copy.h"
#include "server/worker/park/parked.h"
#include "server/worker/park/unpark.h"
#include "server/worker/place/kv_size.h"
#include "server/worker/place/model_reader.h"
#include "server/worker/place/place.h"
#include "server/worker/serve/device_end.h"
#include "server/worker/serve/drain.h"
#include "server/worker/serve/events.h"
#include "server/worker/serve/exit_report.h"
#include "server/worker/serve/heartbeat.h"
#include "server/worker/serve/meter.h"
#include "server/worker/serve/session.h"
#include "server/worker/serve/status.h"
#include "server/worker/serve/text_rpc.h"
#include "server/worker/state/worker.h"

/* A parked worker has no clients. Only its manager calls it, and the manager has had its answer,
 * so the worker drains without grace. */
enum { PARKED_GRACE_MS = 0 };
/* How long parking waits for the model file's header: a disk that hangs must not stop the park. */
enum { READER_MS = 2000 };
enum { MAX_QUEUED_WORK = 4096, MAX_PENDING_BYTES = 64 << 20, END_GRACE_MS = 2000, WARM_TOKENS = 4 };

static const struct rpc_method methods[] = {
    {"Serve", RPC_SHAPE_BIDI, session_handle_serve},
    {"WatchStatus", RPC_SHAPE_SERVER_STREAM, status_handle_watch},
    {"Drain", RPC_SHAPE_UNARY, drain_handle_drain},
    {"Shutdown", RPC_SHAPE_UNARY, drain_handle_shutdown},
    {"Wake", RPC_SHAPE_UNARY, unpark_handle_wake},
    {"KeepWeights", RPC_SHAPE_UNARY, park_copy_handle_keep},
    {"Tokenize", RPC_SHAPE_UNARY, text_rpc_tokenize},
    {"Detokenize", RPC_SHAPE_UNARY, text_rpc_detokenize},
    {"ApplyChatTemplate", RPC_SHAPE_UNARY, text_rpc_apply_chat_template},
};

/* --- signals --- */

/* Handles signals; all other threads block them. SIGUSR1 ends the thread. */
static void *run_signals(void *arg)
{
    struct worker *worker = arg;
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    while (sigwait(&set, &number) == 0 && number != SIGUSR1) {
        log_info(LOG_EVENT("signal"), LOG_I64("number", number));
        drain_on_signal(worker);
    }
    return NULL;
}

/* A closed pipe, a file size limit and a lost terminal become errors of calls. They must not end
 * a replica. */
static void set_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

/* --- loading --- */

static void on_notify(void *ctx)
{
    wake_signal(ctx);
}

/* A template of the settings replaces all of the model's. */
static int open_templates(struct worker *worker, struct error *err)
{
    const char *path = worker->settings->chat_template_file;
    const char *text = worker->settings->config.chat_template;
    struct chat_template *own = NULL;
    worker->template_limits = settings_template_limits(worker->settings);
    worker->templates = engine_chat_templates(worker->engine);
    if (!path[0] && !text[0])
        return 0;
    int rc = text[0] ? chat_template_compile(text, strlen(text), &own, err)
                     : template_file_load(path, &own, err);
    if (rc)
        return text[0] ? error_prefix(err, "config.chat_template") : rc;
    rc = chat_templates_create(&worker->own_templates, err);
    if (!rc)
        rc = chat_templates_add_compiled(worker->own_templates, CHAT_TEMPLATES_DEFAULT, own, err);
    if (rc)
        chat_template_destroy(own);
    worker->templates = worker->own_templates;
    return rc;
}

/* Checks the file's header before the long load. Wrong sizes are reported before faults of the
 * tokenizer. */
static int check_file(struct worker *worker, struct engine_config *cfg, struct model_reader *reader,
                      struct error *err)
{
    struct executor_plan plan;
    int rc = model_reader_wait(reader, err);
    if (!rc)
        rc = kv_size_resolve(reader->ckpt, worker->settings, cfg, err);
    if (!rc)
        rc = kv_size_check(reader->ckpt, worker->settings, cfg, &plan, err);
    if (rc)
        return rc;
    worker_set_planned(worker, &plan);
    if (reader->tokenizer_rc)
        *err = reader->tokenizer_error;
    return reader->tokenizer_rc;
}

static void log_notes(const struct tokenizer_info *info)
{
    for (uint32_t i = 0; i < info->n_notes; i++)
        log_warn(LOG_EVENT("model file has a fault"), LOG_STR("note", info->notes[i]));
}

static void log_sampling_notes(const struct checkpoint *ckpt)
{
    struct default_sampling sampling;
    struct default_sampling_notes notes;
    default_sampling_read(ckpt, &sampling, &notes);
    for (uint32_t i = 0; i < notes.n; i++)
        log_warn(LOG_EVENT("model file has a fault"), LOG_STR("note", notes.texts[i]));
}

/* A line for all keys, tensors and rows that the model's table leaves out. `sluice inspect` lists
 * them with their rules. */
static void log_ignored(const struct checkpoint *ckpt)
{
    struct engine_facts facts;
    struct error unread; /* the engine has read the same files */
    uint64_t n_keys = 0, n_tensors = 0, n_rows = 0, n_bytes = 0;
    const char *first = NULL;
    if (engine_facts_read(ckpt, &facts, &unread) != 0)
        return;
    for (uint32_t i = 0; i < facts.n_ignored; i++) {
        const struct engine_ignored *part = &facts.ignored[i];
        n_keys += part->kind == ENGINE_IGNORED_KEY ? part->n : 0;
        n_tensors += part->kind == ENGINE_IGNORED_TENSOR ? part->n : 0;
        n_rows += part->kind == ENGINE_IGNORED_ROW ? part->n : 0;
        n_bytes += part->n_bytes;
        if (part->kind != ENGINE_IGNORED_KEY && !first)
            first = part->first;
    }
    if (n_tensors || n_rows)
        log_info(LOG_EVENT("model parts are not used"), LOG_U64("tensors", n_tensors),
                 LOG_U64("rows", n_rows), LOG_U64("keys", n_keys), LOG_U64("bytes", n_bytes),
                 LOG_STR("first", first));
    else if (n_keys)
        log_info(LOG_EVENT("model parts are not used"), LOG_U64("keys", n_keys));
    engine_facts_fini(&facts);
}

static int publish_facts(struct worker *worker, const struct checkpoint *ckpt,
                         const struct engine_config *cfg, struct engine *engine, struct error *err)
{
    struct facts_limits limits = {.context_tokens = engine_context_tokens(engine),
                                  .max_concurrent = cfg->max_concurrent,
                                  .max_queued = cfg->max_queued,
                                  .max_input_tokens = cfg->max_input_tokens,
                                  .max_total_tokens = cfg->max_total_tokens,
                                  .chat = chat_templates_can_chat(worker->templates),
                                  .no_sampling = settings_ignore_sampling(worker->settings)};
    Sluice__V1__ModelInfo *info;
    int rc = facts_model_info(&worker->facts, ckpt, engine_tokenizer(engine),
                              engine_model_info(engine), &limits, &info, err);
    if (rc)
        return rc;
    log_notes(tokenizer_info(engine_tokenizer(engine)));
    if (!limits.no_sampling)
        log_sampling_notes(ckpt);
    log_ignored(ckpt);
    pthread_mutex_lock(&worker->lock);
    worker->info = info;
    pthread_mutex_unlock(&worker->lock);
    return 0;
}

/* Mapped weights need no warm-up steps. Another process on this machine has run steps with the
 * same weights and kernels. A wake, or a further replica, should start without delay. Most of
 * the time would go into zeroing KV pages, which the first request does anyway. On a GPU, most
 * would go into the driver's lazy loading of kernels and into captured steps. */
static bool needs_warm_up(const struct worker *worker)
{
    struct executor_packed packed;
    uint32_t n_draft_tokens;
    engine_get_packed(worker->engine, &packed);
    return !packed.mapped || engine_draft_name(worker->engine, &n_draft_tokens);
}

/* Runs a few tokens through prefill and decode: pages are touched, and faults show before the
 * first request. */
static int warm(struct worker *worker, struct error *err)
{
    struct engine_event_buffer *buffer = NULL;
    struct engine_request request;
    uint32_t ids[WARM_TOKENS] = {0};
    uint64_t id;
    bool over = false;
    engine_request_init(&request);
    request.prompt_ids = ids;
    request.n_prompt_ids =
        engine_context_tokens(worker->engine) > 2 * WARM_TOKENS ? WARM_TOKENS : 1;
    request.stopping.max_tokens = 2;
    request.stopping.ignore_eos = true;
    int rc = engine_event_buffer_create(&buffer, err);
    if (!rc)
        rc = engine_submit(worker->engine, &request, &id, err);
    while (!rc && !over) {
        const struct engine_event *events;
        size_t n = engine_read_events(worker->engine, buffer, &events);
        if (!n)
            wake_wait(&worker->events, -1);
        for (size_t i = 0; i < n; i++) {
            if (events[i].type != ENGINE_EVENT_FINISHED)
                continue;
            over = true;
            if (events[i].reason == FINISH_ERROR)
                rc = error_set(err, events[i].status, "%s", events[i].message);
        }
    }
    engine_event_buffer_destroy(buffer);
    struct error health;
    if (rc && engine_health(worker->engine, &health) != 0)
        *err = health; /* with its reason, which events do not carry */
    return rc ? err->status : 0;
}

static uint64_t ms_since(int64_t start_ns)
{
    return (uint64_t)((clock_now_ns() - start_ns) / NS_PER_MS);
}

static void take_packed_fds(struct worker *worker)
{
    for (uint32_t r = 0; r < worker->settings->packed_fds; r++) {
        worker->packed_fds[r] = worker->settings->packed_fd[r];
        fcntl(worker->packed_fds[r], F_SETFD, FD_CLOEXEC);
    }
}

/* Closes the inherited descriptors: the engine has its own. Memory that the engine does not use
 * must be freed. */
static void drop_packed_fds(struct worker *worker)
{
    struct executor_packed packed;
    engine_get_packed(worker->engine, &packed);
    for (uint32_t r = 0; r < worker->settings->packed_fds; r++)
        close(worker->packed_fds[r]);
    if (*packed.why)
        log_warn(LOG_EVENT("weights not shared"), LOG_STR("why", packed.why));
    else if (worker->settings->packed_fds)
        log_info(packed.mapped ? LOG_EVENT("weights mapped") : LOG_EVENT("weights packed to share"),
                 LOG_U64("bytes", engine_memory(worker->engine)->weights_bytes -
                                      engine_memory(worker->engine)->draft_bytes));
}

static int open_engine(struct worker *worker, struct engine_config *cfg,
                       struct model_reader *reader, struct error *err)
{
    struct engine *engine = NULL;
    int rc = check_file(worker, cfg, reader, err);
    if (!rc) {
        cfg->checkpoint = reader->ckpt;
        cfg->tokenizer = reader->tokenizer;
        reader->tokenizer = NULL; /* owned by the engine now */
        rc = engine_open(cfg, &engine, err);
    }
    if (rc)
        return rc;
    pthread_mutex_lock(&worker->lock);
    worker->kv_block_tokens = cfg->executor.kv_block_size; /* read by threads that have got the
                                                            * engine under the lock */
    worker->engine = engine;                               /* worker_fini closes it */
    worker->load_ms = ms_since(reader->start_ns);
    pthread_mutex_unlock(&worker->lock);
    parked_let_go(&worker->kept); /* the engine has mapped the weights itself */
    drop_packed_fds(worker);
    rc = open_templates(worker, err);
    if (!rc)
        rc = publish_facts(worker, reader->ckpt, cfg, engine, err);
    return rc;
}

static void log_draft_model(const struct engine *engine)
{
    uint32_t context_tokens;
    const char *name = engine_draft_name(engine, &context_tokens);
    if (name)
        log_info(LOG_EVENT("draft model"), LOG_STR("file", name),
                 LOG_U64("context_tokens", context_tokens),
                 LOG_U64("weight_bytes", engine_memory(engine)->draft_bytes));
}

static void log_states(const struct engine *engine)
{
    const struct executor_plan *plan = engine_memory(engine);
    if (plan->n_state_slots)
        log_info(LOG_EVENT("state slots"), LOG_U64("slots", plan->n_state_slots),
                 LOG_U64("slot_bytes", plan->state_slot_bytes),
                 LOG_U64("sequences", plan->n_running_states));
}

static int load(struct worker *worker, struct model_reader *reader, struct error *err)
{
    struct engine_config cfg;
    int rc = place_engine_config(worker->settings, &cfg, err);
    if (rc)
        return rc;
    cfg.notify = on_notify;
    cfg.notify_ctx = &worker->events;
    cfg.progress = status_on_progress;
    cfg.progress_ctx = worker;
    cfg.cancel_load = &worker->cancel_load;
    if (!worker->orders) /* a woken worker still has the descriptors */
        take_packed_fds(worker);
    cfg.executor.packed_fds = worker->settings->packed_fds ? worker->packed_fds : NULL;
    cfg.executor.n_packed_fds = (uint32_t)worker->settings->packed_fds;
    rc = open_engine(worker, &cfg, reader, err);
    if (rc)
        return rc;
    log_draft_model(worker->engine);
    log_states(worker->engine);
    if (!needs_warm_up(worker))
        return 0;
    int64_t start_ns = clock_now_ns();
    worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_WARMING);
    rc = warm(worker, err);
    pthread_mutex_lock(&worker->lock);
    worker->warm_ms = ms_since(start_ns);
    pthread_mutex_unlock(&worker->lock);
    return rc;
}

/* --- the process --- */

static int start_server(struct worker *worker, const struct rpc_service *service, struct error *err)
{
    const struct settings *s = worker->settings;
    struct rpc_server_config config;
    rpc_server_config_init(&config);
    config.services = service;
    config.n_services = 1;
    config.max_message_bytes = s->max_message_bytes;
    config.max_pending_bytes = MAX_PENDING_BYTES;
    int rc = work_pool_create((uint32_t)s->request_threads, MAX_QUEUED_WORK, &worker->pool, err);
    if (!rc)
        rc = rpc_server_create(&config, &worker->server, err);
    if (!rc)
        rc = rpc_server_listen_unix(worker->server, s->socket, err);
    if (!rc)
        rc = rpc_server_start(worker->server, err);
    return rc;
}

static int start_thread(pthread_t *out_thread, void *(*run)(void *), struct worker *worker,
                        struct error *err)
{
    int rc = pthread_create(out_thread, NULL, run, worker);
    return rc ? error_errno(err, rc, "worker thread") : 0;
}

static void report_end(struct worker *worker, const struct error *failure)
{
    Sluice__Worker__V1__ExitReport report;
    struct arena arena;
    struct error err;
    arena_init(&arena, 0, 0);
    exit_report_init(&report, worker->settings, worker->start_ticks);
    report.cause = SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED;
    if (failure) {
        bool changed = failure->reason == REASON_MODEL_FILE_CHANGED;
        report.cause = changed ? SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_MODEL_FILE_CHANGED
                               : SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_LOAD_FAILED;
        report.exit_status = 1;
        report.error = message_error(&arena, failure);
    }
    status_memory(worker, &arena, &report.n_memory, &report.memory);
    report.n_finished = worker->n_finished;
    report.n_ended = worker->n_ended;
    if (exit_report_write(worker->settings, &report, &err) != 0)
        log_error(LOG_EVENT("exit report not written"), LOG_STR("message", err.message));
    arena_fini(&arena);
}

/* Logs which kernels the CPU runs, and why better ones are not used. */
static void log_kernels(const struct settings *settings)
{
    const struct op_table *ops = NULL;
    struct error err;
    if (strncmp(settings->devices, "cpu", 3) != 0 ||
        op_table_cpu(settings->config.kernels[0] ? settings->config.kernels : "auto", &ops, &err) !=
            0)
        return; /* the load will report the error */
    log_info(LOG_EVENT("kernels"), LOG_STR("set", ops->name),
             LOG_STR("processor", cpu_features()->brand), LOG_STR("no_amx", ops_why_no_amx()));
}

static void be_ready(struct worker *worker)
{
    worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY);
    rpc_health_set(rpc_server_health(worker->server), "", true);
    log_info(LOG_EVENT("ready"), LOG_STR("replica", worker->settings->replica),
             LOG_U64("epoch", worker->settings->epoch), LOG_STR("model", worker->settings->name),
             LOG_STR("numerics_id", engine_numerics_id(worker->engine)),
             LOG_U64("load_ms", worker->load_ms), LOG_U64("warm_ms", worker->warm_ms));
}

static void fail(struct worker *worker, const struct error *why)
{
    log_error(LOG_EVENT("load failed"), LOG_STR("status", status_name(why->status)),
              LOG_STR("reason", error_reason_name(why)), LOG_STR("message", why->message));
    pthread_mutex_lock(&worker->lock);
    worker->failure = *why;
    pthread_mutex_unlock(&worker->lock);
    worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_FAILED);
}

/* Holds packed weights until a Wake or the end. Returns true after a Wake. *out_failed: there
 * were no weights to hold. */
static bool run_parked(struct worker *worker, struct model_reader *reader, bool *out_failed,
                       struct error *err)
{
    model_reader_begin(reader, worker->settings);
    take_packed_fds(worker);
    (void)model_reader_wait_ms(reader, READER_MS); /* after this the model file may change or go */
    bool failed = parked_keep(worker, err) != 0;
    if (failed) {
        fail(worker, err);
    } else {
        worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED);
        if (drain_wait_for_end(worker)) {
            unpark_take(worker);
            model_reader_renew(reader, worker->settings);
            return true;
        }
    }
    drain_answer_all(worker);
    if (!failed)
        worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_STOPPED);
    session_finish_all(worker);
    *out_failed = failed;
    return false;
}

/* Loads, serves until a drain, and ends. Returns true if the load failed; *err has the reason. */
static bool run_serving(struct worker *worker, struct model_reader *reader, struct error *err)
{
    pthread_t events_thread, heartbeat_thread;
    bool has_events = false, has_heartbeat = false;
    log_kernels(worker->settings);
    if (worker->settings->place)
        place_log(worker->settings->place);
    int rc = place_failure(worker->settings->place, err); /* a start has checked this before, a
                                                           * Wake has not */
    if (!rc)
        rc = load(worker, reader, err);
    if (!rc && worker->cancel_load) /* mapped weights load faster than the check of cancel_load */
        rc = error_set(err, STATUS_CANCELLED, "the load was cancelled");
    model_reader_end(reader); /* frees the memory of the reader before serving */
    if (rc && device_is_at_its_end(err))
        device_end(worker, err);
    if (!rc)
        rc = start_thread(&events_thread, events_run, worker, err);
    has_events = !rc;
    if (!rc)
        rc = start_thread(&heartbeat_thread, heartbeat_run, worker, err);
    has_heartbeat = !rc;
    bool asked = rc == STATUS_CANCELLED && worker->cancel_load;
    if (rc && !asked)
        fail(worker, err);
    if (!rc) {
        be_ready(worker);
        (void)drain_wait_for_end(worker);
    }
    drain_answer_all(worker);
    if (!rc || asked)
        worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_STOPPED);
    session_finish_all(worker);
    park_copy_stop(worker->copy);
    atomic_store(&worker->ending, true);
    wake_signal(&worker->events);
    wake_signal(&worker->heartbeat);
    if (has_heartbeat)
        pthread_join(heartbeat_thread, NULL);
    if (has_events)
        pthread_join(events_thread, NULL);
    return rc && !asked;
}

/* A replica serves even if /metrics cannot be served. */
static void listen_metrics(struct worker *worker)
{
    struct error err;
    const char *address = worker->settings->metrics;
    if (address && *address && worker_meter_listen(worker, address, &err) != 0)
        log_warn(LOG_EVENT("metrics not served"), LOG_STR("message", err.message));
}

/* A failed copy may be a device fault that no later step would find. */
static void end_failed_device(struct worker *worker, const struct error *why)
{
    if (device_is_at_its_end(why))
        device_end(worker, why);
}

int serve_run(const struct settings *settings)
{
    struct worker worker;
    struct model_reader reader = {0};
    struct error err = {0};
    pthread_t signal_thread, status_thread;
    set_signals();
    worker_init(&worker, settings);
    exit_report_arm(settings, worker.start_ticks);
    const struct rpc_service service = {.descriptor = &sluice__worker__v1__worker__descriptor,
                                        .methods = methods,
                                        .n_methods = sizeof(methods) / sizeof(methods[0]),
                                        .context = &worker};
    bool failed = true, has_signals = false, has_status = false;
    int rc = place_failure(settings->place, &err);
    if (!rc && !settings->parked)
        model_reader_begin(&reader, settings);
    if (!rc)
        rc = park_copy_create(&worker, end_failed_device, &worker.copy, &err);
    if (!rc)
        rc = worker_meter_create(&worker.meter, &err);
    if (!rc)
        rc = start_server(&worker, &service, &err);
    if (!rc)
        listen_metrics(&worker);
    if (!rc)
        rc = start_thread(&signal_thread, run_signals, &worker, &err);
    has_signals = !rc;
    if (!rc)
        rc = start_thread(&status_thread, status_run, &worker, &err);
    has_status = !rc;
    if (!rc)
        failed = settings->parked && !run_parked(&worker, &reader, &failed, &err)
                     ? failed
                     : run_serving(&worker, &reader, &err);
    else
        log_error(LOG_EVENT("cannot serve"), LOG_STR("message", err.message));
    model_reader_end(&reader);
    report_end(&worker, failed ? &err : NULL);
    bool parked = worker.settings->parked;
    if (has_status) {
        atomic_store(&worker.ending, true);
        wake_signal(&worker.status);
        pthread_join(status_thread, NULL);
    }
    if (worker.server)
        rpc_server_shutdown(worker.server, parked ? PARKED_GRACE_MS : END_GRACE_MS);
    work_pool_destroy(worker.pool);
    rpc_server_destroy(worker.server);
    status_sweep(&worker);
    worker_meter_close(worker.meter);
    if (has_signals) {
        pthread_kill(signal_thread, SIGUSR1);
        pthread_join(signal_thread, NULL);
    }
    log_info(LOG_EVENT("ended"), LOG_I64("status", failed ? 1 : 0));
    park_copy_destroy(worker.copy);
    worker_fini(&worker);
    parked_let_go(&worker.kept);
    unpark_orders_destroy(worker.orders);
    worker_meter_destroy(worker.meter);
    return failed ? 1 : 0;
}
