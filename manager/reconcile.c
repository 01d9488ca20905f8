#include "manager/reconcile.h"

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
    deaths->at_ns[deaths->n_total % RECONCILE_MAX_CRASHES] = now_ns;
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
    int64_t oldest = deaths->at_ns[(deaths->n_total - config->crash_limit) % RECONCILE_MAX_CRASHES];
    return now_ns - oldest <= config->crash_window_ns;
}

static int64_t backoff(const struct reconcile_config *config, uint32_t n_in_a_row)
{
    int64_t wait = config->backoff_initial_ns;
    for (uint32_t i = 1; i < n_in_a_row && wait < config->backoff_max_ns; i++)
        wait *= 2;
    return wait < config->backoff_max_ns ? wait : config->backoff_max_ns;
}

/* A wanted replica's process has ended. */
static void bury(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    struct reconcile_deaths deaths = replica->deaths;
    reconcile_note_death(pass->config, &deaths, replica->ready_ns, pass->now_ns);
    if (replica->permanent)
        act(pass, (struct action){.type = ACTION_FAIL, .index = i, .reason = "LOAD_FAILED"});
    else if (crash_loop(pass->config, &deaths, pass->now_ns))
        act(pass, (struct action){.type = ACTION_FAIL, .index = i, .reason = "CRASH_LOOP"});
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

static void want(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    const struct reconcile_config *config = pass->config;
    if (replica->state == REPLICA_FAILED) {
        if (replica->process == PROCESS_RUNNING)
            kill_once(pass, i, replica, "REPLICA_FAILED");
        return;
    }
    switch (replica->process) {
    case PROCESS_NONE:
        /* Recorded as running with no process: it ended while nobody looked, or was never started.
         */
        if (replica->state != REPLICA_PENDING)
            act(pass, (struct action){.type = ACTION_RETRY, .index = i, .at_ns = pass->now_ns});
        else if (due(pass, replica->next_start_ns))
            act(pass, (struct action){.type = ACTION_START, .index = i});
        break;
    case PROCESS_EXITED:
        bury(pass, i, replica);
        break;
    case PROCESS_RUNNING:
        if (replica->fenced)
            kill_once(pass, i, replica, "STALE_EPOCH");
        else if (replica->worker == WORKER_UNKNOWN &&
                 due(pass, replica->started_ns + config->connect_timeout_ns))
            kill_once(pass, i, replica, "CONNECT_TIMEOUT");
        else if ((replica->worker == WORKER_LOADING || replica->worker == WORKER_WARMING ||
                  replica->worker == WORKER_FAILED) &&
                 due(pass, replica->started_ns + config->load_timeout_ns))
            kill_once(pass, i, replica, "LOAD_TIMEOUT");
        else
            follow(pass, i, replica);
        break;
    }
}

static void unwant(struct pass *pass, size_t i, const struct reconcile_replica *replica)
{
    if (replica->process != PROCESS_RUNNING) {
        act(pass, (struct action){.type = ACTION_STOP, .index = i});
        return;
    }
    if (replica->fenced)
        kill_once(pass, i, replica, "STALE_EPOCH");
    else if (!replica->drain_sent)
        act(pass, (struct action){.type = ACTION_DRAIN, .index = i});
    else if (due(pass, replica->drain_deadline_ns + pass->config->kill_grace_ns))
        kill_once(pass, i, replica, "DRAIN_TIMEOUT");
}

/* Ranks of the live replicas within their deployment decide who is too many: the youngest. */
static bool is_wanted(const struct reconcile_input *input, size_t i)
{
    size_t deployment = input->replicas[i].deployment;
    if (deployment >= input->n_deployments)
        return false;
    uint32_t n_before = 0;
    for (size_t j = 0; j < i; j++)
        if (input->replicas[j].deployment == deployment &&
            input->replicas[j].state != REPLICA_STOPPED)
            n_before++;
    return n_before < input->n_wanted[deployment];
}

static void finish_load(struct pass *pass, size_t i, const struct reconcile_operation *operation)
{
    size_t n_ready = 0;
    for (size_t j = 0; j < operation->n_replicas; j++) {
        size_t r = operation->replicas[j];
        const struct reconcile_replica *replica =
            r < pass->input->n_replicas ? &pass->input->replicas[r] : NULL;
        if (!replica || !is_wanted(pass->input, r) || replica->state == REPLICA_STOPPED) {
            act(pass, (struct action){.type = ACTION_FINISH,
                                      .index = i,
                                      .state = OPERATION_CANCELLED,
                                      .reason = "UNLOADED"});
            return;
        }
        if (replica->state == REPLICA_FAILED) {
            act(pass, (struct action){.type = ACTION_FINISH,
                                      .index = i,
                                      .state = OPERATION_FAILED,
                                      .reason = "REPLICA_FAILED"});
            return;
        }
        n_ready += replica->state == REPLICA_READY;
    }
    if (n_ready == operation->n_replicas)
        act(pass, (struct action){.type = ACTION_FINISH, .index = i, .state = OPERATION_DONE});
}

static void finish_unload(struct pass *pass, size_t i, const struct reconcile_operation *operation)
{
    for (size_t j = 0; j < operation->n_replicas; j++) {
        size_t r = operation->replicas[j];
        if (r < pass->input->n_replicas && pass->input->replicas[r].state != REPLICA_STOPPED)
            return;
    }
    act(pass, (struct action){.type = ACTION_FINISH, .index = i, .state = OPERATION_DONE});
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
        if (operation->busy)
            continue;
        if (operation->kind == OPERATION_LOAD)
            finish_load(&pass, i, operation);
        else
            finish_unload(&pass, i, operation);
    }
    *out_wake_ns = pass.wake_ns;
    return pass.n_actions;
}
