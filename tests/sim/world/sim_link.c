/* sim_link.c: connections to workers (manager/host/worker_link.h), and the reports of workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/host/worker_link.h"
#include "tests/sim/sim.h"

enum { MAX_DEVICES = 4 };

struct worker_link {
    char replica_id[SIM_ID_BYTES];
    const struct worker_link_events *events;
    void *arg;
    uint32_t calm_ms;
    int64_t next_ns;
    bool asked, wakes, keeps; /* an unanswered Shutdown, Wake, KeepWeights */
    uint64_t wakes_epoch;
    struct sim_process
        *process; /* process at the link's socket when n_process_changes was n_changes */
    uint64_t n_changes;
};

void sim_link_push(const char *replica_id)
{
    for (size_t i = 0; i < sim.n_links; i++)
        if (strcmp(sim.links[i]->replica_id, replica_id) == 0)
            sim.links[i]->next_ns = sim.now_ns;
}

void sim_link_answer_shutdown(const struct sim_process *process)
{
    Sluice__Worker__V1__ShutdownResponse response = SLUICE__WORKER__V1__SHUTDOWN_RESPONSE__INIT;
    response.n_finished = 3;
    for (size_t i = 0; i < sim.n_links; i++) {
        struct worker_link *link = sim.links[i];
        if (!link->asked || strcmp(link->replica_id, process->replica_id) != 0)
            continue;
        link->asked = false;
        struct error err;
        error_clear(&err);
        if (sim.links_lossy && sim_chance(50)) {
            error_set(&err, STATUS_UNAVAILABLE, "the connection was lost");
            link->events->on_shutdown(link->arg, NULL, &err);
        } else {
            link->events->on_shutdown(link->arg, &response, &err);
        }
        return;
    }
}

int worker_link_open(struct ev_loop *loop, struct loop_queue *queue, const char *socket_path,
                     uint32_t interval_ms, const struct worker_link_events *events, void *arg,
                     struct worker_link **out_link, struct error *err)
{
    const char *at = strstr(socket_path, "/replica-");
    struct worker_link *link = calloc(1, sizeof(*link));
    (void)loop;
    (void)queue;
    if (!at || !link || sim.n_links == SIM_MAX_LINKS) {
        free(link);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "the world is full");
    }
    at += strlen("/replica-");
    snprintf(link->replica_id, sizeof(link->replica_id), "%.*s", (int)strcspn(at, "/"), at);
    link->events = events;
    link->arg = arg;
    link->calm_ms = interval_ms;
    link->next_ns = sim_soon(0, 20);
    sim.links[sim.n_links++] = link;
    *out_link = link;
    return 0;
}

void worker_link_close(struct worker_link *link)
{
    for (size_t i = 0; link && i < sim.n_links; i++)
        if (sim.links[i] == link) {
            sim.links[i] = sim.links[--sim.n_links];
            free(link);
            return;
        }
}

/* The process that bound the socket last. */
static struct sim_process *look_at_socket(const struct worker_link *link)
{
    for (size_t i = sim.n_processes; i-- > 0;) {
        struct sim_process *process = &sim.processes[i];
        if (process->alive && process->state != WORKER_UNKNOWN &&
            strcmp(process->replica_id, link->replica_id) == 0)
            return process;
    }
    return NULL;
}

/* Returns the process at the socket. Searches only if a process has started, ended or changed. */
static struct sim_process *at_socket(struct worker_link *link)
{
    if (link->n_changes != sim.n_process_changes) {
        link->process = look_at_socket(link);
        link->n_changes = sim.n_process_changes;
    }
    return link->process;
}

int worker_link_shutdown(struct worker_link *link, uint32_t grace_ms, struct error *err)
{
    struct sim_process *process = at_socket(link);
    if (!process)
        return error_set(err, STATUS_UNAVAILABLE, "the worker has not opened its socket");
    if (sim.dead)
        return 0;
    sim_trace("shutdown of %s pid %d, grace %u ms", process->replica_id, (int)process->pid,
              grace_ms);
    sim_check_shutdown(process);
    link->asked = true;
    process->asked = true;
    if (!process->stopped && !process->killed)
        sim_process_drain(process, grace_ms);
    return 0;
}

int worker_link_wake(struct worker_link *link, const pb_launch *record, struct error *err)
{
    const struct sim_process *process = at_socket(link);
    if (!process)
        return error_set(err, STATUS_UNAVAILABLE, "the worker has not opened its socket");
    if (sim.dead)
        return 0;
    link->wakes_epoch = record->epoch;
    if (record->parked)
        sim_broken("I2: %s is told to serve, parked", link->replica_id);
    link->wakes = true;
    link->next_ns = sim_soon(0, 20);
    return 0;
}

/* Answers a Wake call. In one of six calls the program is older than the call; on a bad line some
 * answers are lost. */
static void answer_wake(struct worker_link *link, struct sim_process *process)
{
    struct error status;
    error_clear(&status);
    link->wakes = false;
    if (process->epoch != link->wakes_epoch)
        sim_broken("I6: epoch %llu of %s is told to serve, and pid %d of epoch %llu hears it",
                   (unsigned long long)link->wakes_epoch, link->replica_id, (int)process->pid,
                   (unsigned long long)process->epoch);
    if (process->pid % 6 == 0)
        error_set(&status, STATUS_UNIMPLEMENTED, "no such method");
    else if (process->hung)
        error_set(&status, STATUS_DEADLINE_EXCEEDED, "no answer");
    else if (process->state != WORKER_PARKED)
        error_set(&status, STATUS_FAILED_PRECONDITION, "the worker is not parked");
    else
        sim_process_wake(process);
    if (!status.status && sim.links_lossy && sim_chance(50))
        error_set(&status, STATUS_UNAVAILABLE, "the connection was lost");
    link->events->on_wake(link->arg, &status);
}

int worker_link_keep(struct worker_link *link, uint64_t promised_bytes, uint64_t limit_bytes,
                     struct error *err)
{
    const struct sim_process *process = at_socket(link);
    (void)promised_bytes;
    (void)limit_bytes;
    if (!process)
        return error_set(err, STATUS_UNAVAILABLE, "the worker has not opened its socket");
    if (sim.dead)
        return 0;
    sim_trace("pid %d of %s is to keep its weights", (int)process->pid, link->replica_id);
    if (!process->gpu || process->keeps)
        sim_broken("I2: %s has no weights on a GPU, and is to keep them", link->replica_id);
    link->keeps = true;
    link->next_ns = sim_soon(0, 3000);
    return 0;
}

/* Answers a KeepWeights call. In one of nine calls the program is older than the call; some calls
 * lack memory. */
static void answer_keep(struct worker_link *link, struct sim_process *process)
{
    struct error status;
    error_clear(&status);
    link->keeps = false;
    if (!sim.quiet_phase && process->pid % 9 == 0)
        error_set(&status, STATUS_UNIMPLEMENTED, "no such method");
    else if (process->hung)
        error_set(&status, STATUS_DEADLINE_EXCEEDED, "no answer");
    else if (process->state != WORKER_READY && process->state != WORKER_DRAINING)
        error_set(&status, STATUS_UNAVAILABLE, "the model is being loaded");
    else if (!sim.quiet_phase && sim_chance(10))
        error_set(&status, STATUS_RESOURCE_EXHAUSTED, "no memory to keep weights");
    else
        process->image = true;
    if (!status.status && sim.links_lossy && sim_chance(50))
        error_set(&status, STATUS_UNAVAILABLE, "the connection was lost");
    link->events->on_keep(link->arg, &status);
}

int64_t sim_link_next_ns(struct worker_link *link)
{
    const struct sim_process *process = at_socket(link);
    return process && !process->stopped && !process->killed ? link->next_ns : INT64_MAX;
}

/* Requests come in bursts, with pauses long enough for a version to be idle. */
static void serve(struct sim_process *process, Sluice__Worker__V1__Load *load,
                  Sluice__Worker__V1__WorkerCounters *counters)
{
    if (process->state != WORKER_READY)
        return;
    if (sim.now_ns >= process->turns_ns) {
        process->works = !sim.quiet_phase && sim_chance(60);
        process->turns_ns = sim_soon(1000, 15000);
    }
    if (process->works) {
        uint64_t n = 1 + sim_below(40);
        process->n_accepted += n;
        process->n_failed += process->fails_requests ? n : 0;
        process->n_ok += process->fails_requests ? 0 : n;
        process->told_ns = sim.now_ns;
    }
    load->n_running = process->works && sim_chance(50) ? 3 : 0;
    counters->n_accepted_requests = process->n_accepted;
    counters->n_ok_requests = process->n_ok;
    counters->n_failed_requests = process->n_failed;
}

/* Fills in the memory of the process on each of its devices; `names` is storage for their names.
 * Returns the number of devices. */
static size_t tell_memory(const struct sim_process *process, char names[sizeof(process->devices)],
                          pb_memory out[MAX_DEVICES])
{
    size_t n = 0;
    bool of_machine = !*process->devices || (process->gpu && process->keeps);
    snprintf(names, sizeof(process->devices), "%s", of_machine ? "cpu:0" : process->devices);
    for (char *name = names, *rest; name && n < MAX_DEVICES; name = rest) {
        if ((rest = strchr(name, ',')))
            *rest++ = '\0';
        sluice__v1__device_memory__init(&out[n]);
        out[n++].device = name;
    }
    for (size_t i = 0; i < n; i++) {
        out[i].expected_bytes = (process->keeps ? sim_kept_bytes : sim_all_bytes) / n;
        out[i].after_bytes = process->bytes / n;
    }
    return n;
}

enum { N_BOUNDS = 3 };

struct told_times {
    Sluice__Worker__V1__Histogram histograms[3], *all[3];
    uint64_t n_prefilled, n_first[N_BOUNDS + 1];
};

/* Reports first-token times. A fifth of the processes is slow. A seventh runs an older program,
 * which reports no times or uses other bounds. */
static void tell_times(const struct sim_process *process, struct told_times *out,
                       Sluice__Worker__V1__WorkerCounters *counters)
{
    static double bounds[N_BOUNDS] = {0.05, 0.15, 0.5}, others[N_BOUNDS] = {0.02, 0.2, 2};
    static const Sluice__Worker__V1__HistogramKind kinds[] = {
        SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_QUEUE_SECONDS,
        SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_PREFILL_SECONDS,
        SLUICE__WORKER__V1__HISTOGRAM_KIND__HISTOGRAM_KIND_FIRST_TOKEN_SECONDS};
    bool slow = process->pid % 5 == 0;
    out->n_prefilled = process->n_ok;
    for (size_t i = 0; i < 3; i++) {
        Sluice__Worker__V1__Histogram *histogram = out->all[i] = &out->histograms[i];
        sluice__worker__v1__histogram__init(histogram);
        histogram->kind = kinds[i];
        histogram->counts = i < 2 ? &out->n_prefilled : out->n_first;
        histogram->n_counts = i < 2 ? 1 : N_BOUNDS + 1;
        histogram->sum = (double)process->n_ok * (slow ? 0.2 : 0.01);
    }
    memset(out->n_first, 0, sizeof(out->n_first));
    out->n_first[N_BOUNDS] = process->pid % 10 == 0 ? process->n_ok / 3 : 0;
    out->n_first[slow ? 2 : 0] = process->n_ok - out->n_first[N_BOUNDS];
    out->histograms[2].bounds = process->pid % 14 == 1 ? others : bounds;
    out->histograms[2].n_bounds = N_BOUNDS;
    counters->histograms = out->all;
    counters->n_histograms = process->pid % 14 == 8 ? 2 : 3;
}

static void say(struct worker_link *link, struct sim_process *process)
{
    static char numerics[] = "sim", why[] = "it cannot be loaded";
    pb_status status = SLUICE__WORKER__V1__WORKER_STATUS__INIT;
    char names[sizeof(process->devices)];
    pb_memory memory[MAX_DEVICES], *memories[MAX_DEVICES];
    pb_rank rank = SLUICE__V1__RANK_PROGRESS__INIT, *ranks[] = {&rank};
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    Sluice__Worker__V1__WorkerCounters counters = SLUICE__WORKER__V1__WORKER_COUNTERS__INIT;
    struct told_times times;
    Sluice__Worker__V1__PackedMemory packed = SLUICE__WORKER__V1__PACKED_MEMORY__INIT;
    Sluice__Worker__V1__PackedMemory *all_packed[] = {&packed};
    pb_error error = SLUICE__V1__ERROR__INIT;
    status.state = (Sluice__Worker__V1__WorkerState)process->state;
    status.replica_id = process->replica_id;
    status.pid = (uint32_t)process->pid;
    status.start_ticks = process->start_ticks;
    status.epoch = process->epoch;
    status.numerics_id = numerics;
    rank.bytes_total = process->keeps ? 0 : sim_all_bytes;
    rank.bytes_done = process->bytes;
    load.progress = process->progress;
    load.n_ready = process->state == WORKER_READY ? 1 : 0;
    serve(process, &load, &counters);
    tell_times(process, &times, &counters);
    status.counters = &counters;
    packed.inode = 1 + process->start_ticks;
    packed.bytes = sim_kept_bytes;
    packed.sealed = process->state != WORKER_LOADING;
    if (!process->gpu || process->image || process->keeps) {
        status.packed = all_packed;
        status.n_packed = 1;
    }
    pb_info info = SLUICE__V1__MODEL_INFO__INIT;
    Sluice__V1__ModelLimits limits = SLUICE__V1__MODEL_LIMITS__INIT;
    if (process->pid % 3 == 0 && process->state == WORKER_READY) {
        limits.max_concurrent_requests = process->pid % 2 ? 8 : 0;
        info.limits = &limits;
        info.trained_context_length = 4096;
        status.info = &info;
    }
    static char cpus[] = "0-1,3";
    if (process->pid % 5 == 0)
        status.cpus = cpus;
    status.ranks = ranks;
    status.n_ranks = 1;
    status.memory = memories;
    status.n_memory = tell_memory(process, names, memory);
    for (size_t i = 0; i < status.n_memory; i++)
        memories[i] = &memory[i];
    status.load = &load;
    if (process->state == WORKER_FAILED) {
        error.code = 9; /* FAILED_PRECONDITION */
        error.message = why;
        status.error = &error;
    }
    link->events->on_status(link->arg, &status);
}

void sim_link_step(struct worker_link *link)
{
    struct sim_process *process = at_socket(link);
    if (!process)
        return;
    if (link->wakes) {
        answer_wake(link, process);
        return;
    }
    if (link->keeps) {
        answer_keep(link, process);
        return;
    }
    bool calm = process->state == WORKER_READY || process->state == WORKER_FAILED ||
                process->state == WORKER_PARKED;
    link->next_ns = sim.now_ns + (int64_t)(calm ? link->calm_ms : 250) * NS_PER_MS;
    if (sim.links_lossy && sim_chance(60))
        return;
    if (process->fate == FATE_SPEAKS_ANOTHER) {
        struct error err;
        error_set(&err, STATUS_UNIMPLEMENTED, "the worker speaks protocol 0");
        link->next_ns = INT64_MAX;
        link->events->on_refused(link->arg, &err);
        return;
    }
    if (!process->hung)
        process->progress++;
    say(link, process);
}
