#include "server/worker/serve/stream_request.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "proto/rpc/message/message.h"
#include "server/worker/base/message.h"
#include "server/worker/serve/request_build.h"
#include "server/worker/serve/session.h"
#include "server/worker/state/worker.h"

enum { ARENA_BYTES = 4096 };

struct stream_request *stream_request_create(struct session *session,
                                             Sluice__Worker__V1__Submit *submit)
{
    struct stream_request *r = calloc(1, sizeof(*r));
    if (!r) {
        rpc_message_free(&submit->base);
        return NULL;
    }
    atomic_init(&r->n_refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    r->session = session;
    session_retain(session);
    r->submit = submit;
    r->id = submit->id;
    r->arrived_ns = clock_now_ns();
    meter_label_set(&r->label, submit);
    r->paused_by_server = submit->paused;
    r->credit_tokens = submit->has_credit_tokens ? submit->credit_tokens : INT64_MAX;
    if (submit->has_deadline_remaining_ns) {
        uint64_t room = (uint64_t)(INT64_MAX - r->arrived_ns);
        uint64_t left = submit->deadline_remaining_ns;
        r->deadline_ns = r->arrived_ns + (int64_t)(left < room ? left : room);
    }
    return r;
}

void stream_request_retain(struct stream_request *request)
{
    atomic_fetch_add(&request->n_refs, 1);
}

void stream_request_release(struct stream_request *request)
{
    if (!request || atomic_fetch_sub(&request->n_refs, 1) != 1)
        return;
    if (request->submit)
        rpc_message_free(&request->submit->base);
    if (request->early_update)
        rpc_message_free(&request->early_update->base);
    free(request->prompt_ids);
    pthread_mutex_destroy(&request->lock);
    session_release(request->session);
    free(request);
}

static struct engine *engine_of(struct stream_request *r)
{
    return r->session->worker->engine; /* the request was submitted, so the engine is loaded and
                                        * stays */
}

/* Under the lock, after the submit to the engine. */
static int apply_update(struct stream_request *r, const Sluice__V1__UpdateFrame *update,
                        struct error *err)
{
    struct engine_update change = {.max_tokens = -1, .end_where_it_is = true};
    change.replace_stop = update->replace_stop;
    change.stop = (const char *const *)update->stop;
    change.n_stop = (uint32_t)update->n_stop;
    if (update->has_max_tokens)
        change.max_tokens = update->max_tokens;
    change.set_priority = update->has_priority;
    change.priority = update->priority;
    return engine_update(engine_of(r), r->engine_id, &change, err);
}

/* --- on a request thread --- */

static void store_facts(struct stream_request *r, const struct engine_request *request)
{
    const Sluice__Worker__V1__ResumeState *resume = r->submit->resume;
    r->n_choices = request->sampling.n;
    r->seed = request->sampling.seed;
    r->want_logprobs = request->want_logprobs;
    r->send_logprobs = r->submit->request->output && r->submit->request->output->logprobs;
    r->ignore_eos = request->stopping.ignore_eos;
    r->ends_by_fim = r->submit->request->suffix[0] && !r->ignore_eos;
    for (size_t i = 0; resume && i < resume->n_choices; i++) {
        const Sluice__Worker__V1__ResumedChoice *c = resume->choices[i];
        if (c->choice >= ENGINE_MAX_CHOICES)
            continue;
        r->choices[c->choice].n_generated = (uint32_t)c->n_generated_ids;
        r->choices[c->choice].n_released = c->n_released;
        r->choices[c->choice].logprob_sum = c->logprob_sum;
    }
}

static int submit(struct stream_request *r, struct engine *engine, struct arena *arena,
                  struct error *err)
{
    struct worker *worker = r->session->worker;
    const Sluice__Worker__V1__ResumeState *resume = r->submit->resume;
    struct token_list ids = {0};
    struct engine_request request;
    struct error late;
    uint64_t engine_id;
    int rc = request_build_check(r->submit->request, err);
    if (!rc)
        rc = request_build(r->submit, engine_tokenizer(engine), arena, &request, err);
    if (!rc)
        rc = request_build_prompt(worker, engine, r->submit, &ids, &r->n_truncated, err);
    if (rc) {
        token_list_fini(&ids);
        return rc;
    }
    r->prompt_ids = ids.ids; /* kept until the first event reports them */
    r->n_prompt_ids = (uint32_t)ids.n_ids;
    r->numerics_changed = resume && resume->numerics_id[0] &&
                          strcmp(resume->numerics_id, engine_numerics_id(engine)) != 0;
    store_facts(r, &request);
    request.prompt_ids = r->prompt_ids;
    request.n_prompt_ids = r->n_prompt_ids;
    request.deadline_ns = r->deadline_ns;
    request.arrived_ns = r->arrived_ns; /* request threads prepare prompts in parallel, so the
                                         * arrival time decides the order */
    request.user_data = (uint64_t)(uintptr_t)r;
    stream_request_retain(r); /* reference for the engine, until the last event */
    rc = engine_submit(engine, &request, &engine_id, err);
    if (rc) {
        atomic_fetch_sub(&r->n_refs, 1); /* the caller holds another reference */
        return rc;
    }
    atomic_fetch_add(&worker->n_accepted, 1);
    atomic_fetch_add(&worker->n_prompt_tokens, r->n_prompt_ids);
    pthread_mutex_lock(&r->lock);
    r->engine_id = engine_id;
    r->submitted = true;
    if (r->cancelled)
        engine_cancel(engine, engine_id);
    r->paused = r->paused_by_server || r->credit_tokens <= 0;
    if (r->paused)
        engine_pause(engine, engine_id, true);
    if (r->early_update)
        apply_update(r, r->early_update, &late);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

/* Refuses a request before it reaches the engine. */
static void refuse(struct stream_request *r, const struct error *why)
{
    struct worker *worker = r->session->worker;
    atomic_fetch_add(&worker->n_refused, 1);
    worker_meter_refused(r, why);
    session_send_error(r->session, r->id, 0, why);
    session_forget(r->session, r->id);
    worker_request_end(worker);
}

void stream_request_start(void *arg)
{
    struct stream_request *r = arg;
    struct error err;
    struct arena arena;
    int rc = 0;
    pthread_mutex_lock(&r->lock);
    bool cancelled = r->cancelled;
    bool draining = r->draining;
    pthread_mutex_unlock(&r->lock);
    arena_init(&arena, ARENA_BYTES, 0);
    struct engine *engine = worker_engine(r->session->worker, &err);
    if (cancelled && draining) {
        error_set(&err, STATUS_UNAVAILABLE, "the worker is ending");
        rc = error_reason(&err, REASON_DRAINING);
    } else if (cancelled) {
        rc = error_set(&err, STATUS_CANCELLED, "cancelled before the request began");
    } else if (r->deadline_ns && clock_now_ns() >= r->deadline_ns) {
        rc = error_set(&err, STATUS_DEADLINE_EXCEEDED,
                       "the deadline passed before the request began");
    } else {
        rc = engine ? submit(r, engine, &arena, &err) : err.status;
    }
    if (rc) {
        refuse(r, &err);
    } else {
        session_send_accepted(r->session, r->id);
        /* Events do not use the submit frame. */
        rpc_message_free(&r->submit->base);
        r->submit = NULL;
    }
    arena_fini(&arena);
    stream_request_release(r);
}

/* --- changes --- */

void stream_request_cancel(struct stream_request *r, bool draining)
{
    pthread_mutex_lock(&r->lock);
    if (!r->cancelled) {
        r->cancelled = true;
        r->draining = draining;
        if (r->submitted)
            engine_cancel(engine_of(r), r->engine_id);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Under the lock: pauses or resumes the sequence if that changed. */
static void apply_pause(struct stream_request *r)
{
    bool paused = r->paused_by_server || r->credit_tokens <= 0;
    if (paused == r->paused)
        return;
    r->paused = paused;
    if (r->submitted)
        engine_pause(engine_of(r), r->engine_id, paused);
}

void stream_request_pause(struct stream_request *r, bool paused)
{
    pthread_mutex_lock(&r->lock);
    r->paused_by_server = paused;
    apply_pause(r);
    pthread_mutex_unlock(&r->lock);
}

void stream_request_credit(struct stream_request *r, uint32_t n_tokens)
{
    pthread_mutex_lock(&r->lock);
    if (r->credit_tokens != INT64_MAX)
        r->credit_tokens += n_tokens;
    apply_pause(r);
    pthread_mutex_unlock(&r->lock);
}

void stream_request_spend(struct stream_request *r, uint32_t n_tokens)
{
    pthread_mutex_lock(&r->lock);
    if (r->credit_tokens != INT64_MAX)
        r->credit_tokens -= n_tokens;
    apply_pause(r);
    pthread_mutex_unlock(&r->lock);
}

/* Merges two updates: the newer one, plus the fields that only the older one has. Takes both. */
static Sluice__V1__UpdateFrame *merge(Sluice__V1__UpdateFrame *older,
                                      Sluice__V1__UpdateFrame *newer)
{
    if (!older)
        return newer;
    if (!newer->has_max_tokens) {
        newer->has_max_tokens = older->has_max_tokens;
        newer->max_tokens = older->max_tokens;
    }
    if (!newer->has_priority) {
        newer->has_priority = older->has_priority;
        newer->priority = older->priority;
    }
    if (!newer->replace_stop && older->replace_stop) {
        newer->replace_stop = true;
        char **unused = newer->stop; /* freed with the older update */
        size_t n_unused = newer->n_stop;
        newer->stop = older->stop;
        newer->n_stop = older->n_stop;
        older->stop = unused;
        older->n_stop = n_unused;
    }
    rpc_message_free(&older->base);
    return newer;
}

int stream_request_update(struct stream_request *r, const Sluice__V1__UpdateFrame *update,
                          struct error *err)
{
    int rc = 0;
    pthread_mutex_lock(&r->lock);
    if (r->submitted) {
        rc = apply_update(r, update, err);
    } else {
        ProtobufCMessage *copy = message_copy(&update->base);
        if (copy)
            r->early_update = merge(r->early_update, (Sluice__V1__UpdateFrame *)copy);
        else
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "update: out of memory");
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}
