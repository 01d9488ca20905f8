#include "server/worker/state/worker.h"

#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "server/worker/base/process.h"

void worker_init(struct worker *worker, const struct settings *settings)
{
    memset(worker, 0, sizeof(*worker));
    worker->settings = settings;
    worker->start_ticks = process_start_ticks();
    worker->memory_at_start_bytes = process_memory_bytes();
    worker->started_ns = clock_now_ns();
    worker->state = SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_LOADING;
    pthread_mutex_init(&worker->lock, NULL);
    wake_init(&worker->events);
    wake_init(&worker->status);
    wake_init(&worker->main);
    wake_init(&worker->heartbeat);
    arena_init(&worker->facts, 0, 0);
}

void worker_fini(struct worker *worker)
{
    engine_close(worker->engine);
    chat_templates_destroy(worker->own_templates);
    arena_fini(&worker->facts);
    wake_fini(&worker->events);
    wake_fini(&worker->status);
    wake_fini(&worker->main);
    wake_fini(&worker->heartbeat);
    pthread_mutex_destroy(&worker->lock);
}

struct engine *worker_engine(struct worker *worker, struct error *err)
{
    pthread_mutex_lock(&worker->lock);
    Sluice__Worker__V1__WorkerState state = worker->state;
    struct engine *engine = worker->engine;
    struct error failure = worker->failure;
    pthread_mutex_unlock(&worker->lock);
    switch (state) {
    case SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY:
    case SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_DRAINING:
        if (engine)
            return engine;
        break;
    case SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_FAILED:
        *err = failure;
        return NULL;
    case SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED:
        error_set(err, STATUS_FAILED_PRECONDITION, "the model is parked");
        error_reason(err, REASON_PARKED);
        return NULL;
    default:
        break;
    }
    error_set(err, STATUS_UNAVAILABLE, "the model is being loaded");
    err->retry_after_ms = 1000;
    error_reason(err, REASON_LOADING);
    return NULL;
}

void worker_set_state(struct worker *worker, Sluice__Worker__V1__WorkerState state)
{
    pthread_mutex_lock(&worker->lock);
    worker->state = state;
    pthread_mutex_unlock(&worker->lock);
    wake_signal(&worker->status);
}

void worker_set_planned(struct worker *worker, const struct executor_plan *plan)
{
    pthread_mutex_lock(&worker->lock);
    worker->planned = *plan;
    pthread_mutex_unlock(&worker->lock);
    wake_signal(&worker->status);
}

Sluice__Worker__V1__WorkerState worker_state(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    Sluice__Worker__V1__WorkerState state = worker->state;
    pthread_mutex_unlock(&worker->lock);
    return state;
}

int worker_check_protocol(uint32_t peer_min, uint32_t peer_max, struct error *err)
{
    if (peer_min <= WORKER_PROTOCOL_MAX && peer_max >= WORKER_PROTOCOL_MIN)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "no common protocol version: the peer has %u to %u, this worker %d to %d", peer_min,
              peer_max, WORKER_PROTOCOL_MIN, WORKER_PROTOCOL_MAX);
    return error_reason(err, REASON_PROTOCOL_MISMATCH);
}

void worker_request_begin(struct worker *worker)
{
    atomic_fetch_add(&worker->n_live, 1);
}

void worker_request_end(struct worker *worker)
{
    if (atomic_fetch_sub(&worker->n_live, 1) == 1)
        wake_signal(&worker->main);
}

void worker_fill_load(const struct worker *worker, struct engine *engine,
                      Sluice__Worker__V1__Load *load)
{
    struct engine_stats stats;
    engine_get_stats(engine, &stats);
    load->n_running = stats.n_running;
    load->n_queued = stats.n_queued;
    load->n_paused = stats.n_paused;
    load->n_ready = stats.n_ready;
    load->free_kv_tokens = (uint64_t)stats.n_blocks_free * worker->kv_block_tokens;
    load->total_kv_tokens = (uint64_t)stats.n_blocks * worker->kv_block_tokens;
    load->kv_block_tokens = worker->kv_block_tokens;
    load->step_ns = stats.last_step_ns > 0 ? (uint64_t)stats.last_step_ns : 0;
    load->progress = stats.progress_counter;
    load->queued_prompt_tokens = stats.queued_prompt_tokens;
    load->cached_kv_tokens = (uint64_t)stats.n_blocks_cached * worker->kv_block_tokens;
    load->n_preemptions = stats.n_preemptions;
    load->n_prefix_query_tokens = stats.n_prefix_query_tokens;
    load->n_prefix_hit_tokens = stats.n_prefix_hit_tokens;
    load->n_state_slots = stats.n_state_slots;
    load->n_states_used = stats.n_states_used;
    load->n_snapshots = stats.n_snapshots;
    load->state_slot_bytes = engine_memory(engine)->state_slot_bytes;
    load->n_snapshot_hits = stats.n_snapshot_hits;
    load->n_snapshot_evictions = stats.n_snapshot_evictions;
    load->free_window_tokens = (uint64_t)stats.n_window_blocks_free * worker->kv_block_tokens;
    load->total_window_tokens = (uint64_t)stats.n_window_blocks * worker->kv_block_tokens;
    load->cached_window_tokens = (uint64_t)stats.n_window_blocks_cached * worker->kv_block_tokens;
}
