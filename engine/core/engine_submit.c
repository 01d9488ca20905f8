#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/request/reasoning_families.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"
#include "engine/request/stop.h"

void engine_request_init(struct engine_request *request)
{
    *request = (struct engine_request){
        .sampling =
            {
                .top_p = 1.0f,
                .typical_p = 1.0f,
                .repetition_penalty = 1.0f,
                .n = 1,
            },
        .stopping = {.max_tokens = UINT32_MAX},
    };
}

/* Takes a reference for the inbox. A request that is in the inbox already only gets the new
 * bits. */
void engine_post(struct engine *e, struct request *r, unsigned bits)
{
    if (!(atomic_fetch_or(&r->control, bits | CONTROL_QUEUED) & CONTROL_QUEUED)) {
        request_retain(r);
        struct request *head = atomic_load_explicit(&e->inbox, memory_order_relaxed);
        do
            atomic_store_explicit(&r->inbox_next, head, memory_order_relaxed);
        while (!atomic_compare_exchange_weak(&e->inbox, &head, r));
    }
    if (!atomic_load(&e->sleeping))
        return;
    pthread_mutex_lock(&e->sleep_lock);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->sleep_lock);
}

/* --- submit --- */

/* Counts a refusal. Returns the error's status. */
static int count_refusal(struct engine *e, struct error *err, enum reason reason)
{
    atomic_fetch_add_explicit(&e->n_refused, 1, memory_order_relaxed);
    if (reason)
        error_reason(err, reason);
    return err->status;
}

static int check_open(struct engine *e, struct error *err)
{
    if (atomic_load(&e->failed)) {
        *err = e->failure;
        return count_refusal(e, err, REASON_ENGINE_FAILED);
    }
    if (atomic_load(&e->draining)) {
        error_set(err, STATUS_UNAVAILABLE, "the engine is draining and accepts no new requests");
        return count_refusal(e, err, REASON_DRAINING);
    }
    return 0;
}

static int check_deadline(struct engine *e, const struct engine_request *req, struct error *err)
{
    if (!req->deadline_ns)
        return 0;
    int64_t left = req->deadline_ns - clock_now_ns();
    if (left <= 0) {
        error_set(err, STATUS_DEADLINE_EXCEEDED,
                  "the deadline had passed when the request arrived");
        return count_refusal(e, err, REASON_NONE);
    }
    struct admission_question question = {.caller = admission_caller(req->caller),
                                          .priority = req->priority,
                                          .n_prompt = req->n_prompt_ids,
                                          .n_choices = req->sampling.n};
    int64_t wait = admission_predict_ns(&e->admission, &question);
    if (wait <= left)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "the first token is expected in %lld ms, the deadline is in %lld ms",
              (long long)(wait / NS_PER_MS), (long long)(left / NS_PER_MS));
    err->retry_after_ms = admission_retry_ms(&e->admission);
    return count_refusal(e, err, REASON_DEADLINE_UNREACHABLE);
}

/* Reserves a place in the queue, and one in the registry, which holds requests until their last
 * event is read. */
static int reserve_place(struct engine *e, struct error *err)
{
    uint32_t most = e->cfg.max_queued + e->cfg.max_concurrent;
    if (atomic_fetch_add(&e->n_live, 1) < most) {
        uint64_t waiting = atomic_fetch_add(&e->waiting, ENGINE_INCOMING);
        if (waiting / ENGINE_INCOMING + (uint32_t)waiting < e->cfg.max_queued)
            return 0;
        atomic_fetch_sub(&e->waiting, ENGINE_INCOMING);
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "the queue is full: %u requests wait (max_queued)", e->cfg.max_queued);
    } else {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "the engine holds %u requests, its limit (max_queued + max_concurrent); "
                  "ended requests count until their events are read",
                  most);
    }
    atomic_fetch_sub(&e->n_live, 1);
    err->retry_after_ms = admission_retry_ms(&e->admission);
    return count_refusal(e, err, REASON_QUEUE_FULL);
}

bool engine_tells_reasoning(const struct tokenizer *tok)
{
    return reasoning_families_of(tok) != NULL;
}

static int make_request(struct engine *e, const struct engine_request *req,
                        struct request **out_request, struct error *err)
{
    struct request *r;
    int rc = request_create(req, &e->limits, &r, err);
    if (rc)
        return rc;
    r->submitted_ns = clock_now_ns();
    r->caller_hash = admission_caller(r->caller);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        rc = request_output_create(&r->choices[i], e->tokenizer, req, err);
        if (rc) {
            request_release(r);
            return rc;
        }
    }
    *out_request = r;
    return 0;
}

static int register_request(struct engine *e, struct request *r, struct error *err)
{
    pthread_mutex_lock(&e->registry_lock);
    r->id = ++e->last_id;
    bool ok = hash_map_put(&e->registry, &r->id, sizeof(r->id), r);
    pthread_mutex_unlock(&e->registry_lock);
    if (ok)
        return 0;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for another request");
}

int engine_submit(struct engine *e, const struct engine_request *req, uint64_t *out_id,
                  struct error *err)
{
    struct request *r = NULL;
    int rc = check_open(e, err);
    if (rc)
        return rc;
    rc = request_check(req, &e->limits, err);
    if (rc)
        return count_refusal(e, err, REASON_NONE);
    rc = check_deadline(e, req, err);
    if (!rc)
        rc = reserve_place(e, err);
    if (rc)
        return rc;
    rc = make_request(e, req, &r, err);
    if (!rc)
        rc = register_request(e, r, err);
    if (rc) {
        request_release(r);
        atomic_fetch_sub(&e->waiting, ENGINE_INCOMING);
        atomic_fetch_sub(&e->n_live, 1);
        return count_refusal(e, err, REASON_NONE);
    }
    *out_id = r->id;
    atomic_fetch_add(&e->n_unfinished, 1);
    atomic_fetch_add_explicit(&e->n_submitted, 1, memory_order_relaxed);
    /* request_create()'s reference is the registry's. The inbox takes its own, and the engine
     * thread takes another while it works on the request. */
    request_retain(r);
    engine_post(e, r, CONTROL_SUBMIT);
    request_release(r);
    return 0;
}

/* --- changes --- */

/* The request of an id, with a reference for the caller, or NULL. */
static struct request *find_request(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->registry_lock);
    struct request *r = hash_map_get(&e->registry, &id, sizeof(id));
    if (r)
        request_retain(r);
    pthread_mutex_unlock(&e->registry_lock);
    return r;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    struct request *r = find_request(e, id);
    if (!r)
        return;
    engine_post(e, r, CONTROL_CANCEL);
    request_release(r);
}

void engine_pause(struct engine *e, uint64_t id, bool paused)
{
    struct request *r = find_request(e, id);
    if (!r)
        return;
    atomic_store(&r->want_paused, paused);
    engine_post(e, r, CONTROL_PAUSE);
    request_release(r);
}

/* True if the request's end is published. *out_most_ids: most published tokens of a choice. */
static bool read_published(struct engine *e, const struct request *r, uint32_t *out_most_ids)
{
    pthread_mutex_lock(&e->events_lock);
    bool ended = r->published.ended;
    *out_most_ids = 0;
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].output->published.n_ids > *out_most_ids)
            *out_most_ids = r->choices[i].output->published.n_ids;
    pthread_mutex_unlock(&e->events_lock);
    return ended;
}

static int check_update(struct engine *e, const struct request *r, uint64_t id,
                        const struct engine_update *update, struct error *err)
{
    uint32_t n_ids;
    if (read_published(e, r, &n_ids))
        return error_set(err, STATUS_NOT_FOUND, "request %llu has ended", (unsigned long long)id);
    if (update->max_tokens != -1 &&
        (update->max_tokens < 1 || (!update->end_where_it_is && update->max_tokens < n_ids)))
        return error_field(err, "update.max_tokens",
                           "%lld must be at least 1 and at least the generated tokens (%u)",
                           (long long)update->max_tokens, n_ids);
    if (update->max_tokens != -1 && update->max_tokens < r->min_tokens)
        return error_field(err, "update.max_tokens", "%lld is below min_tokens (%u)",
                           (long long)update->max_tokens, r->min_tokens);
    if (update->set_priority &&
        (update->priority < -REQUEST_MAX_PRIORITY || update->priority > REQUEST_MAX_PRIORITY))
        return error_field(err, "update.priority", "%d is not in [-%d, %d]", update->priority,
                           REQUEST_MAX_PRIORITY, REQUEST_MAX_PRIORITY);
    if (update->replace_stop)
        return request_check_stops("update.stop", update->stop, update->n_stop, err);
    return 0;
}

/* Allocates the new stop strings and matchers, so that the engine thread need not allocate. */
static int create_stop_change(const struct request *r, const struct engine_update *update,
                              struct request_stop_change **out_change, struct error *err)
{
    struct request_stop_change *change = calloc(1, sizeof(*change));
    if (!change)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "update.stop: out of memory");
    int rc = stop_set_create(update->stop, update->n_stop, r->include_stop, &change->set, err);
    for (uint32_t i = 0; !rc && i < r->n_choices; i++)
        rc = stop_matcher_create(change->set, &change->matchers[i], err);
    if (rc)
        request_stop_change_destroy(change);
    else
        *out_change = change;
    return rc;
}

int engine_update(struct engine *e, uint64_t id, const struct engine_update *update,
                  struct error *err)
{
    struct request *r = find_request(e, id);
    if (!r)
        return error_set(err, STATUS_NOT_FOUND, "request %llu is unknown", (unsigned long long)id);
    unsigned bits = 0;
    int rc = check_update(e, r, id, update, err);
    struct request_stop_change *change = NULL;
    if (!rc && update->replace_stop)
        rc = create_stop_change(r, update, &change, err);
    if (rc)
        goto out;
    if (change) {
        request_stop_change_destroy(atomic_exchange(&r->new_stops, change));
        bits |= CONTROL_STOPS;
    }
    if (update->max_tokens != -1) {
        uint32_t asked =
            update->max_tokens < UINT32_MAX ? (uint32_t)update->max_tokens : UINT32_MAX;
        atomic_store(&r->new_max_tokens, asked);
        bits |= CONTROL_MAX_TOKENS;
    }
    if (update->set_priority) {
        atomic_store(&r->new_priority, update->priority);
        bits |= CONTROL_PRIORITY;
    }
    if (bits)
        engine_post(e, r, bits);
out:
    request_release(r);
    return rc;
}

void engine_drain(struct engine *e)
{
    atomic_store(&e->draining, true);
}

bool engine_is_idle(const struct engine *e)
{
    return atomic_load(&e->n_unfinished) == 0;
}

int engine_health(struct engine *e, struct error *err)
{
    if (!atomic_load(&e->failed))
        return 0;
    *err = e->failure;
    return err->status;
}
