#include "manager/replicas/reconcile.h"

#include "base/clock.h"

void reconcile_config_init(struct reconcile_config *config)
{
    *config = (struct reconcile_config){
        .backoff_initial_ns = 1 * NS_PER_S,
        .backoff_max_ns = 60 * NS_PER_S,
        .crash_window_ns = 60 * NS_PER_S,
        .crash_limit = 5,
        .stable_ns = 60 * NS_PER_S,
        .kill_grace_ns = 5 * NS_PER_S,
        .connect_timeout_ns = 30 * NS_PER_S,
        .load_timeout_ns = 1800 * NS_PER_S,
        .stall_timeout_ns = 10 * NS_PER_S,
        .fault_grace_ns = 2 * NS_PER_S,
    };
}

struct pass {
    const struct reconcile_config *config;
    const struct reconcile_input *input;
    int64_t now_ns;
    int64_t wake_ns;
    struct action *actions;
    size_t n_actions;
};

static void add_action(struct pass *pass, struct action action)
{
    pass->actions[pass->n_actions++] = action;
}

/* True once `at_ns` is reached; else asks to be called again then. */
static bool is_due(struct pass *pass, int64_t at_ns)
{
    if (pass->now_ns >= at_ns)
        return true;
    if (at_ns < pass->wake_ns)
        pass->wake_ns = at_ns;
    return false;
}

void reconcile_note_death(const struct reconcile_config *config, struct reconcile_deaths *deaths,
                          int64_t ready_ns, int64_t now_ns)
{
    if (ready_ns && now_ns - ready_ns >= config->stable_ns)
        deaths->n_in_a_row = 0;
    deaths->n_never_ready = ready_ns ? 0 : deaths->n_never_ready + 1;
    deaths->at_ns[deaths->n_total % DEATHS_MAX] = now_ns;
    deaths->n_total++;
    deaths->n_in_a_row++;
}

/* True after crash_limit deaths within the window, or crash_limit starts that never became
 * READY. */
static bool crash_loop(const struct reconcile_config *config, const struct reconcile_deaths *deaths,
                       int64_t now_ns)
{
    if (deaths->n_never_ready >= config->crash_limit)
        return true;
    if (deaths->n_total < config->crash_limit)
        return false;
    int64_t oldest = deaths->at_ns[(deaths->n_total - config->crash_limit) % DEATHS_MAX];
    return now_ns - oldest <= config->crash_window_ns;
}

static int64_t backoff(const struct reconcile_config *config, uint32_t n_in_a_row)
{
    int64_t wait = config->backoff_initial_ns;
    for (uint32_t i = 1; i < n_in_a_row && wait < config->backoff_max_ns; i++)
        wait *= 2;
    return wait < config->backoff_max_ns ? wait : config->backoff_max_ns;
}

static enum reason retry_reason(const struct reconcile_replica *replica, bool blocked)
{
    if (blocked)
        return REASON_DEVICE_QUARANTINED;
    if (replica->restart || replica->process == PROCESS_NONE ||
        replica->is_parked_worker == replica->parked)
        return REASON_RESTART;
    return replica->parked ? REASON_PARK : REASON_WAKE;
}

/* Retries at once. A blocked replica waits until the operator releases the device. */
static void retry_now(struct pass *pass, size_t i, bool blocked)
{
    add_action(pass, (struct action){.type = ACTION_RETRY,
                                     .index = i,
                                     .at_ns = pass->now_ns,
                                     .reason = retry_reason(&pass->input->replicas[i], blocked)});
}

/* Handles the end of a wanted replica's process. */
static void handle_exit(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    struct reconcile_deaths deaths = replica->deaths;
    /* the process left a quarantined device, or was never started on it */
    if (replica->drain_sent || replica->held_back) {
        retry_now(pass, i, replica->blocked);
        return;
    }
    reconcile_note_death(pass->config, &deaths, replica->ready_ns, pass->now_ns);
    if (replica->permanent)
        add_action(pass,
                   (struct action){.type = ACTION_FAIL, .index = i, .reason = REASON_LOAD_FAILED});
    else if (crash_loop(pass->config, &deaths, pass->now_ns))
        add_action(pass,
                   (struct action){.type = ACTION_FAIL, .index = i, .reason = REASON_CRASH_LOOP});
    else
        add_action(pass, (struct action){.type = ACTION_RETRY,
                                         .index = i,
                                         .at_ns = pass->now_ns +
                                                  backoff(pass->config, deaths.n_in_a_row)});
}

static void kill_once(struct pass *pass, size_t i, const struct reconcile_replica *replica,
                      enum reason reason)
{
    if (!replica->kill_sent)
        add_action(pass, (struct action){.type = ACTION_KILL, .index = i, .reason = reason});
}

/* Records the state that the worker reports. */
static void follow_state(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    enum replica_state state = replica->state;
    switch (replica->worker) {
    case WORKER_LOADING:
        state = REPLICA_LOADING;
        break;
    case WORKER_WARMING:
        state = REPLICA_WARMING;
        break;
    case WORKER_READY:
        state = REPLICA_READY;
        break;
    case WORKER_PARKED:
        state = REPLICA_PARKED;
        break;
    case WORKER_DRAINING:
    case WORKER_STOPPED:
        state = REPLICA_DRAINING; /* another program asked for the drain; the exit is handled
                                   * later */
        break;
    default:
        break;
    }
    if (state != replica->state)
        add_action(pass, (struct action){.type = ACTION_STATE, .index = i, .state = state});
}

static bool counts_as_live(const struct reconcile_replica *replica, size_t deployment)
{
    return replica->deployment == deployment && replica->state != REPLICA_STOPPED &&
           !replica->retiring;
}

/* True where fewer than n_wanted older replicas of the deployment live: the youngest replicas
 * are surplus. */
static bool is_wanted(const struct reconcile_input *input, size_t i)
{
    size_t deployment = input->replicas[i].deployment;
    if (deployment >= input->n_deployments || input->replicas[i].retiring)
        return false;
    uint32_t n_before = 0;
    for (size_t j = 0; j < i; j++)
        n_before += counts_as_live(&input->replicas[j], deployment);
    return n_before < input->n_wanted[deployment];
}

/* True where one more process keeps the deployment within n_wanted. Draining processes count
 * until they have ended. Older replicas come first. */
static bool has_place(const struct reconcile_input *input, size_t i)
{
    size_t deployment = input->replicas[i].deployment;
    uint32_t n_taken = 0;
    for (size_t j = 0; j < input->n_replicas; j++) {
        const struct reconcile_replica *other = &input->replicas[j];
        if (other->deployment == deployment &&
            (other->process == PROCESS_RUNNING || (j < i && counts_as_live(other, deployment))))
            n_taken++;
    }
    return n_taken < input->n_wanted[deployment];
}

/* Poll interval for a killed process that still exists: its end causes no event. */
static const int64_t ghost_poll_ns = NS_PER_S / 10;

static void start_when_due(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->blocked) {
        if (!replica->blocked_recorded)
            retry_now(pass, i, true);
        return;
    }
    if (replica->ghost) {
        (void)is_due(pass, pass->now_ns + ghost_poll_ns);
        return;
    }
    if (!has_place(pass->input, i))
        return;
    if (replica->restart || is_due(pass, replica->next_start_ns))
        add_action(pass, (struct action){.type = ACTION_START, .index = i});
}

static void end_process(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->fenced)
        kill_once(pass, i, replica, REASON_STALE_EPOCH);
    else if (replica->refused)
        kill_once(pass, i, replica, REASON_PROTOCOL_MISMATCH);
    else if (replica->progress_ns &&
             is_due(pass, replica->progress_ns + 2 * pass->config->stall_timeout_ns))
        kill_once(pass, i, replica, REASON_STALLED);
    else if (replica->fault_ns && is_due(pass, replica->fault_ns + pass->config->fault_grace_ns))
        kill_once(pass, i, replica, REASON_DEVICE_FAULT);
    else if (!replica->drain_sent)
        add_action(pass, (struct action){.type = ACTION_DRAIN, .index = i});
    else if (is_due(pass, replica->drain_deadline_ns + pass->config->kill_grace_ns))
        kill_once(pass, i, replica, REASON_DRAIN_TIMEOUT);
}

/* True where an action for a stall was given in this pass. */
static bool watch_stall(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    int64_t timeout_ns = pass->config->stall_timeout_ns;
    bool stalled = replica->progress_ns && is_due(pass, replica->progress_ns + timeout_ns);
    if (stalled && is_due(pass, replica->progress_ns + 2 * timeout_ns)) {
        kill_once(pass, i, replica, REASON_STALLED);
        return true;
    }
    if (stalled == replica->stalled)
        return false;
    add_action(pass, (struct action){.type = ACTION_STALL, .index = i, .state = stalled});
    return true;
}

/* True where a parked worker is to serve, or a serving worker is to be parked. A worker that
 * still loads finishes first, since it may be packing the weights to keep. */
static bool has_wrong_kind(const struct reconcile_replica *replica)
{
    return replica->parked ? replica->worker == WORKER_READY : replica->worker == WORKER_PARKED;
}

/* True for a parked worker that is to serve and can receive Wake. */
static bool wakes_in_place(const struct reconcile_replica *replica)
{
    return has_wrong_kind(replica) && !replica->parked && replica->can_wake && !replica->blocked &&
           !replica->fenced && !replica->refused && !replica->fault_ns;
}

static void wake_worker(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (!replica->wake_sent)
        add_action(pass, (struct action){.type = ACTION_WAKE, .index = i});
    else if (is_due(pass, replica->started_ns + pass->config->connect_timeout_ns))
        kill_once(pass, i, replica, REASON_CONNECT_TIMEOUT);
    else
        (void)watch_stall(pass, i, replica);
}

/* True where the manager must get the weights before the process ends, from a GPU as a copy. The
 * worker serves meanwhile. */
static bool copies_first(const struct reconcile_replica *replica)
{
    return has_wrong_kind(replica) && replica->parked && replica->must_copy;
}

/* True while a copy is requested. Also true when the worker has reported success and its status
 * with the copy is still to come. */
static bool is_copying(const struct pass *pass, const struct reconcile_replica *replica)
{
    return replica->process == PROCESS_RUNNING &&
           (replica->copy_sent ||
            (replica->must_copy && !replica->copy_failed && replica->copy_at_ns > pass->now_ns));
}

/* Only one copy runs at a time. A deployment needs one copy, and two would count the same free
 * memory. */
static bool another_copies(const struct pass *pass, size_t i)
{
    const struct reconcile_input *input = pass->input;
    for (size_t j = 0; j < input->n_replicas; j++)
        if (j != i && is_copying(pass, &input->replicas[j]))
            return true;
    for (size_t j = 0; j < pass->n_actions; j++)
        if (pass->actions[j].type == ACTION_PARK_COPY)
            return true;
    return false;
}

/* True where a copy is requested in this pass. */
static bool start_copy(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    /* results after a fault may be wrong */
    if (replica->state != REPLICA_READY || replica->fault_ns || replica->copy_sent ||
        another_copies(pass, i) || !is_due(pass, replica->copy_at_ns))
        return false;
    add_action(pass, (struct action){.type = ACTION_PARK_COPY, .index = i});
    return true;
}

static void supervise(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    const struct reconcile_config *config = pass->config;
    bool keeps = copies_first(replica);
    bool loads = replica->worker == WORKER_LOADING || replica->worker == WORKER_WARMING;
    if (replica->evacuate || (replica->restart && replica->worker != WORKER_FAILED) ||
        (has_wrong_kind(replica) && !wakes_in_place(replica) && !keeps) || replica->drain_sent)
        end_process(pass, i, replica);
    else if (wakes_in_place(replica))
        wake_worker(pass, i, replica);
    else if (replica->fenced)
        kill_once(pass, i, replica, REASON_STALE_EPOCH);
    else if (replica->refused)
        kill_once(pass, i, replica, REASON_PROTOCOL_MISMATCH);
    else if (replica->worker == WORKER_UNKNOWN &&
             is_due(pass, replica->started_ns + config->connect_timeout_ns))
        kill_once(pass, i, replica, REASON_CONNECT_TIMEOUT);
    else if (loads && is_due(pass, replica->started_ns + config->load_timeout_ns))
        kill_once(pass, i, replica, REASON_LOAD_TIMEOUT);
    else if (replica->failed_ns && is_due(pass, replica->failed_ns + config->kill_grace_ns))
        kill_once(pass, i, replica, REASON_LOAD_FAILED);
    else if (replica->leaving_ns &&
             is_due(pass, replica->leaving_ns + replica->grace_ns + config->kill_grace_ns))
        kill_once(pass, i, replica, REASON_DRAIN_TIMEOUT);
    else if (replica->fault_ns && is_due(pass, replica->fault_ns + config->fault_grace_ns))
        kill_once(pass, i, replica, REASON_DEVICE_FAULT);
    else if (!watch_stall(pass, i, replica) && !(keeps && start_copy(pass, i, replica)))
        follow_state(pass, i, replica);
}

static void reconcile_wanted(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->state == REPLICA_FAILED && replica->process == PROCESS_RUNNING)
        kill_once(pass, i, replica, REASON_REPLICA_FAILED);
    else if (replica->process == PROCESS_RUNNING)
        supervise(pass, i, replica);
    else if (replica->restart &&
             (replica->state != REPLICA_PENDING || replica->process == PROCESS_EXITED))
        retry_now(pass, i, false);
    else if (replica->state == REPLICA_FAILED)
        return;
    else if (replica->process == PROCESS_EXITED)
        handle_exit(pass, i, replica);
    else if (replica->state == REPLICA_PENDING)
        start_when_due(pass, i, replica);
    else /* recorded as running, but the process ended unobserved or was never started */
        add_action(pass, (struct action){.type = ACTION_RETRY, .index = i, .at_ns = pass->now_ns});
}

static void reconcile_surplus(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->process == PROCESS_RUNNING)
        end_process(pass, i, replica);
    else
        add_action(pass, (struct action){.type = ACTION_STOP, .index = i});
}

static void finish(struct pass *pass, size_t i, enum operation_state state, enum reason reason)
{
    add_action(pass, (struct action){
                         .type = ACTION_FINISH, .index = i, .state = (int)state, .reason = reason});
}

/* Progress of the replicas of an operation. */
struct tally {
    size_t n_on_their_way; /* neither in the desired state nor failed */
    size_t n_failed;
    size_t n_live;     /* not STOPPED, of all replicas */
    bool not_kept;     /* a replica that was to be parked serves on, as its park copy failed */
    bool nothing_kept; /* a replica that is to be parked has no kept weights and cannot load them */
    bool not_wanted;   /* a replica that was to become READY is no longer wanted */
    bool still_leaves; /* a replica that is to end has not ended */
};

static struct tally count_members(const struct pass *pass,
                                  const struct reconcile_operation *operation)
{
    struct tally tally = {0};
    for (size_t j = 0; j < operation->n_replicas; j++) {
        size_t r = operation->replicas[j];
        const struct reconcile_replica *replica =
            r < pass->input->n_replicas ? &pass->input->replicas[r] : NULL;
        /* Rows of stopped replicas are deleted after a while. */
        bool stopped = !replica || replica->state == REPLICA_STOPPED;
        bool leaves = replica ? replica->retiring : operation->kind != OPERATION_LOAD;
        tally.n_live += !stopped;
        tally.still_leaves |= leaves && !stopped;
        if (leaves)
            tally.n_on_their_way += !stopped;
        else if (stopped || !is_wanted(pass->input, r))
            tally.not_wanted = true;
        else if ((replica->state == REPLICA_FAILED && !replica->restart) ||
                 (replica->blocked && replica->process == PROCESS_NONE))
            tally.n_failed++;
        else if (replica->copy_failed)
            tally.not_kept = true;
        else if (replica->lacks_room && replica->process == PROCESS_NONE && replica->parked)
            tally.nothing_kept = true;
        else
            tally.n_on_their_way +=
                replica->state != (replica->parked ? REPLICA_PARKED : REPLICA_READY) ||
                replica->restart;
    }
    return tally;
}

static void finish_operation(struct pass *pass, size_t i,
                             const struct reconcile_operation *operation)
{
    if (operation->kind == OPERATION_UPDATE) /* update.c advances and ends it */
        return;
    struct tally tally = count_members(pass, operation);
    if (operation->kind == OPERATION_UNLOAD) {
        if (tally.n_live == 0)
            finish(pass, i, OPERATION_DONE, REASON_NONE);
    } else if (operation->cancelling) {
        if (!tally.still_leaves)
            finish(pass, i, OPERATION_CANCELLED, REASON_CANCELLED);
    } else if (tally.not_wanted) {
        finish(pass, i, OPERATION_CANCELLED, REASON_UNLOADED);
    } else if (tally.n_on_their_way == 0) {
        bool failed = tally.n_failed || tally.not_kept || tally.nothing_kept;
        finish(pass, i, failed ? OPERATION_FAILED : OPERATION_DONE,
               tally.n_failed       ? REASON_REPLICA_FAILED
               : tally.not_kept     ? REASON_WEIGHTS_NOT_KEPT
               : tally.nothing_kept ? REASON_NOTHING_KEPT
                                    : REASON_NONE);
    }
}

size_t reconcile(const struct reconcile_config *config, const struct reconcile_input *input,
                 int64_t now_ns, struct action *actions, int64_t *out_wake_ns)
{
    struct pass pass = {
        .config = config,
        .input = input,
        .now_ns = now_ns,
        .wake_ns = INT64_MAX,
        .actions = actions,
    };
    for (size_t i = 0; i < input->n_replicas; i++) {
        const struct reconcile_replica *replica = &input->replicas[i];
        if (replica->busy ||
            (replica->state == REPLICA_STOPPED && replica->process != PROCESS_RUNNING))
            continue;
        if (replica->state != REPLICA_STOPPED && is_wanted(input, i))
            reconcile_wanted(&pass, i, replica);
        else
            reconcile_surplus(&pass, i, replica);
    }
    for (size_t i = 0; i < input->n_operations; i++) {
        const struct reconcile_operation *operation = &input->operations[i];
        if (!operation->busy)
            finish_operation(&pass, i, operation);
    }
    *out_wake_ns = pass.wake_ns;
    return pass.n_actions;
}
