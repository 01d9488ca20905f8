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

static void act(struct pass *pass, struct action action)
{
    pass->actions[pass->n_actions++] = action;
}

/* True once `at_ns` is reached; else asks to be called again then. */
static bool due(struct pass *pass, int64_t at_ns)
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

/* The limit's worth of deaths within the window, or that many starts that never became ready. */
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

static const char *why_anew(const struct reconcile_replica *replica, bool blocked)
{
    if (blocked)
        return REASON_QUARANTINED;
    if (replica->restart || replica->process == PROCESS_NONE || replica->keeps == replica->parked)
        return REASON_RESTART;
    return replica->parked ? REASON_PARK : REASON_WAKE;
}

/* At once; or, where it is blocked, when an operator lets it. */
static void start_anew(struct pass *pass, size_t i, bool blocked)
{
    act(pass, (struct action){.type = ACTION_RETRY,
                              .index = i,
                              .at_ns = pass->now_ns,
                              .reason = why_anew(&pass->input->replicas[i], blocked)});
}

/* A wanted replica's process has ended. */
static void bury(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    struct reconcile_deaths deaths = replica->deaths;
    if (replica->drain_sent || replica->held_back) { /* it left its device, or never came to it */
        start_anew(pass, i, replica->blocked);
        return;
    }
    reconcile_note_death(pass->config, &deaths, replica->ready_ns, pass->now_ns);
    if (replica->permanent)
        act(pass, (struct action){.type = ACTION_FAIL, .index = i, .reason = "LOAD_FAILED"});
    else if (crash_loop(pass->config, &deaths, pass->now_ns))
        act(pass, (struct action){.type = ACTION_FAIL, .index = i, .reason = REASON_CRASH_LOOP});
    else
        act(pass,
            (struct action){.type = ACTION_RETRY,
                            .index = i,
                            .at_ns = pass->now_ns + backoff(pass->config, deaths.n_in_a_row)});
}

static void kill_once(struct pass *pass, size_t i, const struct reconcile_replica *replica,
                      const char *reason)
{
    if (!replica->kill_sent)
        act(pass, (struct action){.type = ACTION_KILL, .index = i, .reason = reason});
}

/* Follows the worker's own word about itself. */
static void follow(struct pass *pass, size_t i, const struct reconcile_replica *replica)
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
        state = REPLICA_DRAINING; /* somebody else asked it to; its exit will be dealt with */
        break;
    default:
        break;
    }
    if (state != replica->state)
        act(pass, (struct action){.type = ACTION_STATE, .index = i, .state = state});
}

static bool counts(const struct reconcile_replica *replica, size_t deployment)
{
    return replica->deployment == deployment && replica->state != REPLICA_STOPPED &&
           !replica->retiring;
}

/* Ranks of the live replicas within their deployment decide who is too many: the youngest. */
static bool is_wanted(const struct reconcile_input *input, size_t i)
{
    size_t deployment = input->replicas[i].deployment;
    if (deployment >= input->n_deployments || input->replicas[i].retiring)
        return false;
    uint32_t n_before = 0;
    for (size_t j = 0; j < i; j++)
        n_before += counts(&input->replicas[j], deployment);
    return n_before < input->n_wanted[deployment];
}

/* Whether one more process of its deployment leaves it with no more than are wanted: processes that
 * drain keep their places until they have ended, and older replicas come first. */
static bool has_place(const struct reconcile_input *input, size_t i)
{
    size_t deployment = input->replicas[i].deployment;
    uint32_t n_taken = 0;
    for (size_t j = 0; j < input->n_replicas; j++) {
        const struct reconcile_replica *other = &input->replicas[j];
        if (other->deployment == deployment &&
            (other->process == PROCESS_RUNNING || (j < i && counts(other, deployment))))
            n_taken++;
    }
    return n_taken < input->n_wanted[deployment];
}

/* Between two looks at a killed process that is still there: nobody else tells of its end. */
static const int64_t ghost_look_ns = NS_PER_S / 10;

static void start_when_due(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->blocked) {
        if (!replica->blocked_told)
            start_anew(pass, i, true);
        return;
    }
    if (replica->ghost) {
        (void)due(pass, pass->now_ns + ghost_look_ns);
        return;
    }
    if (!has_place(pass->input, i))
        return;
    if (replica->restart || due(pass, replica->next_start_ns))
        act(pass, (struct action){.type = ACTION_START, .index = i});
}

static void end_process(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->fenced)
        kill_once(pass, i, replica, "STALE_EPOCH");
    else if (replica->refused)
        kill_once(pass, i, replica, "PROTOCOL_MISMATCH");
    else if (replica->still_ns && due(pass, replica->still_ns + 2 * pass->config->stall_timeout_ns))
        kill_once(pass, i, replica, "STALLED");
    else if (replica->fault_ns && due(pass, replica->fault_ns + pass->config->fault_grace_ns))
        kill_once(pass, i, replica, "DEVICE_FAULT");
    else if (!replica->drain_sent)
        act(pass, (struct action){.type = ACTION_DRAIN, .index = i});
    else if (due(pass, replica->drain_deadline_ns + pass->config->kill_grace_ns))
        kill_once(pass, i, replica, "DRAIN_TIMEOUT");
}

/* True where its standing still has been dealt with in this pass. */
static bool watch_stall(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    int64_t timeout_ns = pass->config->stall_timeout_ns;
    bool stalled = replica->still_ns && due(pass, replica->still_ns + timeout_ns);
    if (stalled && due(pass, replica->still_ns + 2 * timeout_ns)) {
        kill_once(pass, i, replica, "STALLED");
        return true;
    }
    if (stalled == replica->stalled)
        return false;
    act(pass, (struct action){.type = ACTION_STALL, .index = i, .state = stalled});
    return true;
}

/* Its process keeps weights and is to serve, or the other way about. One that still loads is let
 * finish: it may be packing what is to be kept. */
static bool is_of_other_kind(const struct reconcile_replica *replica)
{
    return replica->parked ? replica->worker == WORKER_READY : replica->worker == WORKER_PARKED;
}

/* Of those, one that keeps weights and can be told to serve. */
static bool wakes_in_place(const struct reconcile_replica *replica)
{
    return is_of_other_kind(replica) && !replica->parked && replica->can_wake &&
           !replica->blocked && !replica->fenced && !replica->refused && !replica->fault_ns;
}

static void wake(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (!replica->wake_sent)
        act(pass, (struct action){.type = ACTION_WAKE, .index = i});
    else if (due(pass, replica->started_ns + pass->config->connect_timeout_ns))
        kill_once(pass, i, replica, "CONNECT_TIMEOUT");
    else
        (void)watch_stall(pass, i, replica);
}

/* Its weights lie on a GPU: they are copied before its process ends, while it serves on. */
static bool keeps_first(const struct reconcile_replica *replica)
{
    return is_of_other_kind(replica) && replica->parked && replica->must_keep;
}

/* It was asked, or has answered that it did and its status is still to be heard. */
static bool is_keeping(const struct pass *pass, const struct reconcile_replica *replica)
{
    return replica->process == PROCESS_RUNNING &&
           (replica->keep_sent ||
            (replica->must_keep && !replica->keep_failed && replica->keep_at_ns > pass->now_ns));
}

/* One of a deployment does it for all; and two at once would each take memory that both think is
 * free. */
static bool another_keeps(const struct pass *pass, size_t i)
{
    const struct reconcile_input *input = pass->input;
    for (size_t j = 0; j < input->n_replicas; j++)
        if (j != i && is_keeping(pass, &input->replicas[j]))
            return true;
    for (size_t j = 0; j < pass->n_actions; j++)
        if (pass->actions[j].type == ACTION_KEEP)
            return true;
    return false;
}

/* True where it is asked to in this pass. */
static bool ask_to_keep(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->state != REPLICA_READY || replica->fault_ns || /* it may be wrong */
        replica->keep_sent || another_keeps(pass, i) || !due(pass, replica->keep_at_ns))
        return false;
    act(pass, (struct action){.type = ACTION_KEEP, .index = i});
    return true;
}

static void look_after(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    const struct reconcile_config *config = pass->config;
    bool keeps = keeps_first(replica);
    bool loads = replica->worker == WORKER_LOADING || replica->worker == WORKER_WARMING;
    if (replica->evacuate || (replica->restart && replica->worker != WORKER_FAILED) ||
        (is_of_other_kind(replica) && !wakes_in_place(replica) && !keeps) || replica->drain_sent)
        end_process(pass, i, replica);
    else if (wakes_in_place(replica))
        wake(pass, i, replica);
    else if (replica->fenced)
        kill_once(pass, i, replica, "STALE_EPOCH");
    else if (replica->refused)
        kill_once(pass, i, replica, "PROTOCOL_MISMATCH");
    else if (replica->worker == WORKER_UNKNOWN &&
             due(pass, replica->started_ns + config->connect_timeout_ns))
        kill_once(pass, i, replica, "CONNECT_TIMEOUT");
    else if (loads && due(pass, replica->started_ns + config->load_timeout_ns))
        kill_once(pass, i, replica, "LOAD_TIMEOUT");
    else if (replica->failed_ns && due(pass, replica->failed_ns + config->kill_grace_ns))
        kill_once(pass, i, replica, "LOAD_FAILED");
    else if (replica->leaving_ns &&
             due(pass, replica->leaving_ns + replica->grace_ns + config->kill_grace_ns))
        kill_once(pass, i, replica, "DRAIN_TIMEOUT");
    else if (replica->fault_ns && due(pass, replica->fault_ns + config->fault_grace_ns))
        kill_once(pass, i, replica, "DEVICE_FAULT");
    else if (!watch_stall(pass, i, replica) && !(keeps && ask_to_keep(pass, i, replica)))
        follow(pass, i, replica);
}

static void want(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->state == REPLICA_FAILED && replica->process == PROCESS_RUNNING)
        kill_once(pass, i, replica, "REPLICA_FAILED");
    else if (replica->process == PROCESS_RUNNING)
        look_after(pass, i, replica);
    else if (replica->restart &&
             (replica->state != REPLICA_PENDING || replica->process == PROCESS_EXITED))
        start_anew(pass, i, false);
    else if (replica->state == REPLICA_FAILED)
        return;
    else if (replica->process == PROCESS_EXITED)
        bury(pass, i, replica);
    else if (replica->state == REPLICA_PENDING)
        start_when_due(pass, i, replica);
    else /* recorded as running: it ended while nobody looked, or was never started */
        act(pass, (struct action){.type = ACTION_RETRY, .index = i, .at_ns = pass->now_ns});
}

static void unwant(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->process == PROCESS_RUNNING)
        end_process(pass, i, replica);
    else
        act(pass, (struct action){.type = ACTION_STOP, .index = i});
}

static void finish(struct pass *pass, size_t i, enum operation_state state, const char *reason)
{
    act(pass,
        (struct action){.type = ACTION_FINISH, .index = i, .state = (int)state, .reason = reason});
}

/* How far the members of an operation are. */
struct tally {
    size_t n_on_their_way; /* neither where they are to be nor past hope */
    size_t n_failed;
    size_t n_live;     /* of all: not stopped */
    bool not_kept;     /* one that was to be parked serves on, as its weights could not be kept */
    bool nothing_kept; /* one that is to be parked has nothing to be kept, and cannot load it */
    bool not_wanted;   /* one that was to be READY is wanted no more */
    bool still_leaves; /* one that is to end has not */
};

static struct tally count_members(const struct pass *pass,
                                  const struct reconcile_operation *operation)
{
    struct tally tally = {0};
    for (size_t j = 0; j < operation->n_replicas; j++) {
        size_t r = operation->replicas[j];
        const struct reconcile_replica *replica =
            r < pass->input->n_replicas ? &pass->input->replicas[r] : NULL;
        /* Rows of stopped replicas are not kept for ever. */
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
        else if (replica->keep_failed)
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
    if (operation->kind == OPERATION_UPDATE) /* update.c moves it and ends it */
        return;
    struct tally tally = count_members(pass, operation);
    if (operation->kind == OPERATION_UNLOAD) {
        if (tally.n_live == 0)
            finish(pass, i, OPERATION_DONE, NULL);
    } else if (operation->cancelling) {
        if (!tally.still_leaves)
            finish(pass, i, OPERATION_CANCELLED, "CANCELLED");
    } else if (tally.not_wanted) {
        finish(pass, i, OPERATION_CANCELLED, "UNLOADED");
    } else if (tally.n_on_their_way == 0) {
        bool failed = tally.n_failed || tally.not_kept || tally.nothing_kept;
        finish(pass, i, failed ? OPERATION_FAILED : OPERATION_DONE,
               tally.n_failed       ? "REPLICA_FAILED"
               : tally.not_kept     ? REASON_NOT_KEPT
               : tally.nothing_kept ? REASON_NOTHING_KEPT
                                    : NULL);
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
            want(&pass, i, replica);
        else
            unwant(&pass, i, replica);
    }
    for (size_t i = 0; i < input->n_operations; i++) {
        const struct reconcile_operation *operation = &input->operations[i];
        if (!operation->busy)
            finish_operation(&pass, i, operation);
    }
    *out_wake_ns = pass.wake_ns;
    return pass.n_actions;
}
