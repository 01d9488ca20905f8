#include "clients/cli/bench/bench_load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "clients/cli/bench/bench_prompts.h"
#include "clients/cli/bench/bench_random.h"
#include "clients/cli/bench/bench_transport.h"

enum {
    TICK_MS = 100,
    REST_MS = 100, /* closed loop: pause after a failed request, to spare a dead server */
};

struct load;

/* A request in flight, or a free place for one. */
struct bench_slot {
    struct load *load;
    struct bench_slot *next; /* in the list of free or of ended slots */
    void *call;              /* made by the transport; starting thread only */
    bool live, counts, finished, is_short;
    int64_t due_ns, first_ns, last_ns;
    int64_t rests_until_ns; /* ended slots: becomes free at this time */
    uint32_t n_tokens, n_first, n_prompt, n_cached;
};

struct load {
    const struct bench_load_config *config;
    struct bench_results *results;
    struct bench_transport *transport;
    struct bench_slot *slots; /* owned; [n_clients] */
    uint32_t *ids;            /* owned; space for one prompt */
    uint64_t next_index;
    /* State of the current phase, warm-up or load. Only the starting thread uses these fields. */
    uint64_t n_phase_started;
    bool counts, stopped;
    struct bench_slot *free;
    /* guarded by the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct bench_slot *ended;
    uint32_t n_live;
    uint64_t n_ended, n_tokens;
    struct error warmup_error;
};

/* --- answers; on a thread of the transport --- */

/* Call under the lock. */
static void add_tokens(struct bench_slot *slot, uint64_t n_tokens)
{
    slot->n_tokens += (uint32_t)n_tokens;
    slot->load->n_tokens += n_tokens;
    slot->load->results->n_output_tokens += slot->counts ? n_tokens : 0;
}

void bench_slot_tokens(struct bench_slot *slot, uint64_t n_tokens)
{
    struct load *load = slot->load;
    struct bench_results *r = load->results;
    int64_t now_ns = clock_now_ns();
    if (!n_tokens)
        return;
    pthread_mutex_lock(&load->lock);
    if (!slot->n_tokens) {
        slot->first_ns = now_ns;
        slot->n_first = (uint32_t)n_tokens;
    } else if (slot->counts) {
        histogram_add_many(&r->itl, (now_ns - slot->last_ns) / (int64_t)n_tokens, n_tokens);
    }
    slot->last_ns = now_ns;
    add_tokens(slot, n_tokens);
    r->n_messages += slot->counts;
    pthread_mutex_unlock(&load->lock);
}

void bench_slot_late_tokens(struct bench_slot *slot, uint64_t n_tokens)
{
    pthread_mutex_lock(&slot->load->lock);
    add_tokens(slot, n_tokens);
    pthread_mutex_unlock(&slot->load->lock);
}

void bench_slot_prompt(struct bench_slot *slot, uint32_t n_tokens, uint32_t n_cached)
{
    struct load *load = slot->load;
    pthread_mutex_lock(&load->lock);
    slot->n_prompt = n_tokens;
    slot->n_cached = n_cached;
    load->results->n_input_tokens += slot->counts ? n_tokens : 0;
    load->results->n_cached_tokens += slot->counts ? n_cached : 0;
    pthread_mutex_unlock(&load->lock);
}

void bench_slot_drafts(struct bench_slot *slot, uint64_t n_drafted, uint64_t n_accepted,
                       const char *numerics_id)
{
    struct bench_results *r = slot->load->results;
    pthread_mutex_lock(&slot->load->lock);
    snprintf(r->numerics_id, sizeof(r->numerics_id), "%s", numerics_id);
    r->n_drafted_tokens += slot->counts ? n_drafted : 0;
    r->n_accepted_tokens += slot->counts ? n_accepted : 0;
    pthread_mutex_unlock(&slot->load->lock);
}

void bench_slot_finished(struct bench_slot *slot, const struct bench_finish *finish)
{
    pthread_mutex_lock(&slot->load->lock);
    slot->finished = finish->n_tokens == slot->n_tokens ||
                     (finish->hides_one && finish->n_tokens == slot->n_tokens + 1);
    slot->is_short = !finish->is_length;
    pthread_mutex_unlock(&slot->load->lock);
}

static bool within(double slo_ms, int64_t ns)
{
    return slo_ms <= 0 || (double)ns <= slo_ms * 1e6;
}

static void count_ok(struct bench_slot *slot, int64_t now_ns)
{
    const struct bench_load_config *c = slot->load->config;
    struct bench_results *r = slot->load->results;
    int64_t e2e_ns = now_ns - slot->due_ns, tpot_ns = 0;
    int64_t ttft_ns = slot->n_tokens ? slot->first_ns - slot->due_ns : e2e_ns;
    if (slot->n_tokens > slot->n_first) {
        tpot_ns = (slot->last_ns - slot->first_ns) / (slot->n_tokens - slot->n_first);
        histogram_add(&r->tpot, tpot_ns);
    }
    if (slot->n_tokens)
        histogram_add(&r->ttft, ttft_ns);
    histogram_add(&r->e2e, e2e_ns);
    r->n_ok++;
    r->n_short += slot->is_short;
    r->n_good += within(c->slo_ttft_ms, ttft_ns) && within(c->slo_itl_ms, tpot_ns) &&
                 within(c->slo_e2e_ms, e2e_ns);
}

static void count_error(struct bench_slot *slot, const struct error *status)
{
    struct load *load = slot->load;
    struct bench_results *r = load->results;
    int code = status_to_grpc(status->status);
    if (!slot->counts) {
        if (!load->warmup_error.status)
            load->warmup_error = *status;
        return;
    }
    if (!r->first_error.status)
        r->first_error = *status;
    r->n_failed++;
    r->by_code[code >= 0 && code < BENCH_CODES ? code : 2]++;
}

/* Counts the end of a request. An OK end without all tokens is an error too. */
static void count_end(struct bench_slot *slot, const struct error *status, int64_t now_ns)
{
    struct error err;
    if (status->status == STATUS_CANCELLED && slot->load->stopped) {
        slot->load->results->n_cancelled += slot->counts;
    } else if (status->status) {
        count_error(slot, status);
    } else if (!slot->finished) {
        error_set(&err, STATUS_DATA_LOSS, "an answer ended without all of its tokens");
        count_error(slot, &err);
    } else if (slot->counts) {
        count_ok(slot, now_ns);
    }
}

void bench_slot_end(struct bench_slot *slot, const struct error *status)
{
    struct load *load = slot->load;
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&load->lock);
    count_end(slot, status, now_ns);
    if (slot->counts)
        load->results->end_ns = now_ns;
    if (status->status && load->config->rate <= 0)
        slot->rests_until_ns = now_ns + REST_MS * NS_PER_MS;
    slot->next = load->ended;
    load->ended = slot;
    load->n_live--;
    load->n_ended++;
    pthread_cond_signal(&load->changed);
    pthread_mutex_unlock(&load->lock);
}

/* --- requests; on the starting thread --- */

/* Counts a request that got no connection as failed. In the warm-up that is an error. */
static int count_unconnected(struct load *load, const struct error *err)
{
    struct bench_results *r = load->results;
    int code = status_to_grpc(err->status);
    struct timespec rest = {.tv_nsec = REST_MS * NS_PER_MS};
    if (!load->counts)
        return err->status;
    if (load->config->rate <= 0)
        nanosleep(&rest, NULL);
    pthread_mutex_lock(&load->lock);
    if (!r->first_error.status)
        r->first_error = *err;
    load->n_phase_started++;
    load->n_ended++;
    r->n_started++;
    r->n_failed++;
    r->by_code[code >= 0 && code < BENCH_CODES ? code : 2]++;
    r->end_ns = clock_now_ns();
    pthread_mutex_unlock(&load->lock);
    return 0;
}

static void set_live(struct load *load, struct bench_slot *slot, bool live)
{
    struct bench_results *r = load->results;
    pthread_mutex_lock(&load->lock);
    load->n_live += live ? 1 : -1;
    if (load->counts && load->n_live > r->max_in_flight)
        r->max_in_flight = load->n_live;
    pthread_mutex_unlock(&load->lock);
    slot->live = live;
}

static int start_request(struct load *load, int64_t due_ns, struct error *err)
{
    const struct bench_transport_ops *ops = load->transport->ops;
    struct bench_request request;
    struct bench_slot *slot = load->free;
    void *connection = NULL;
    int rc = ops->connect(load->transport, &connection, err);
    if (rc)
        return count_unconnected(load, err);
    bench_prompts_get(load->config->prompts, load->next_index++, load->ids, &request.prompt);
    request.seed = load->config->seed + load->next_index;
    load->free = slot->next;
    *slot = (struct bench_slot){.load = load, .counts = load->counts};
    slot->due_ns = due_ns ? due_ns : clock_now_ns();
    set_live(load, slot, true);
    rc = ops->start(load->transport, connection, &request, slot, &slot->call, err);
    if (rc) {
        set_live(load, slot, false);
        slot->next = load->free;
        load->free = slot;
        return rc;
    }
    load->n_phase_started++;
    load->results->n_started += load->counts;
    return 0;
}

/* Frees slots whose calls have ended. Call under the lock. */
static void reap(struct load *load)
{
    int64_t now_ns = clock_now_ns();
    struct bench_slot **at = &load->ended, *slot;
    while ((slot = *at) != NULL) {
        if (slot->rests_until_ns > now_ns && !load->stopped) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        load->transport->ops->release(load->transport, slot->call);
        slot->call = NULL;
        slot->live = false;
        slot->next = load->free;
        load->free = slot;
    }
}

static void cancel_all(struct load *load)
{
    for (uint32_t i = 0; i < load->config->n_clients; i++)
        if (load->slots[i].live)
            load->transport->ops->cancel(load->transport, load->slots[i].call);
}

/* --- phases --- */

struct phase {
    uint64_t n_requests; /* 0: until end_ns */
    uint32_t most_live;
    int64_t end_ns; /* 0: until n_requests */
    double rate;
    struct bench_random arrivals;
    int64_t due_ns; /* time of the next arrival */
    bool closed;    /* starts no more requests */
};

/* Waits for an end, the next arrival or a tick. Call under the lock. */
static void wait_a_moment(struct load *load, const struct phase *phase, bool may_start)
{
    int64_t until_ns = clock_now_ns() + TICK_MS * NS_PER_MS;
    if (may_start && phase->rate > 0 && phase->due_ns < until_ns)
        until_ns = phase->due_ns;
    struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    pthread_cond_timedwait(&load->changed, &load->lock, &until);
}

static void report_progress(struct load *load, int64_t *last_ns)
{
    const struct bench_load_config *c = load->config;
    int64_t now_ns = clock_now_ns();
    if (!c->progress || now_ns - *last_ns < TICK_MS * NS_PER_MS)
        return;
    *last_ns = now_ns;
    pthread_mutex_lock(&load->lock);
    uint64_t n_ended = load->n_ended, n_live = load->n_live, n_tokens = load->n_tokens;
    pthread_mutex_unlock(&load->lock);
    c->progress(c->ctx, n_ended, n_live, n_tokens);
}

/* True if the phase has requests left to start. */
static bool has_more(struct load *load, struct phase *phase)
{
    if (load->config->stop && *load->config->stop && !load->stopped) {
        pthread_mutex_lock(&load->lock);
        load->stopped = true;
        pthread_mutex_unlock(&load->lock);
        load->results->interrupted = true;
        cancel_all(load);
    }
    if (load->stopped || (phase->n_requests && load->n_phase_started >= phase->n_requests))
        return false;
    if (!phase->end_ns || clock_now_ns() < phase->end_ns)
        return true;
    /* after end_ns: earlier arrivals still start if a slot is free */
    phase->closed |= phase->rate <= 0 || phase->due_ns >= phase->end_ns || !load->free;
    return !phase->closed;
}

/* Counts arrivals that were due before the end but found no free slot until then. */
static void count_missed(struct load *load, struct phase *phase)
{
    uint64_t n = load->n_phase_started;
    while (phase->rate > 0 && phase->due_ns < phase->end_ns &&
           (!phase->n_requests || n < phase->n_requests)) {
        phase->due_ns += bench_random_arrival_ns(&phase->arrivals, phase->rate);
        load->results->n_missed++;
        n++;
    }
}

/* Starts requests when they are due and waits for the end of all. */
static int run_phase(struct load *load, struct phase *phase, struct error *err)
{
    int64_t reported_ns = 0;
    bool was_full = false;
    int rc = 0;
    load->n_phase_started = 0;
    for (;;) {
        bool more = has_more(load, phase) && !rc;
        pthread_mutex_lock(&load->lock);
        reap(load);
        bool due = more && (phase->rate <= 0 || phase->due_ns <= clock_now_ns());
        bool over = !more && !load->n_live;
        bool room = load->free && load->n_live < phase->most_live;
        if (!over && (!due || !room))
            wait_a_moment(load, phase, more && room);
        bool start = due && room;
        pthread_mutex_unlock(&load->lock);
        if (over)
            break;
        was_full |= due && !start;
        if (start) {
            load->results->n_late += phase->rate > 0 && was_full;
            rc = start_request(load, phase->rate > 0 ? phase->due_ns : 0, err);
            if (phase->rate > 0)
                phase->due_ns += bench_random_arrival_ns(&phase->arrivals, phase->rate);
            was_full = false;
            if (rc)
                cancel_all(load);
        }
        report_progress(load, &reported_ns);
    }
    if (!rc && !load->stopped)
        count_missed(load, phase);
    return rc;
}

static int warm_up(struct load *load, struct error *err)
{
    uint32_t most = load->config->n_clients;
    if (load->config->rate > 0 && most > BENCH_WARMUP_CLIENTS)
        most = BENCH_WARMUP_CLIENTS;
    struct phase phase = {.n_requests = load->config->n_warmup, .most_live = most};
    int rc = phase.n_requests ? run_phase(load, &phase, err) : 0;
    if (!rc && load->warmup_error.status) {
        *err = load->warmup_error;
        rc = error_prefix(err, "warm-up");
    }
    load->n_ended = load->n_tokens = 0;
    return rc;
}

static int run_load(struct load *load, struct error *err)
{
    const struct bench_load_config *c = load->config;
    struct phase phase = {.n_requests = c->n_requests, .most_live = c->n_clients, .rate = c->rate};
    bench_random_init(&phase.arrivals, c->seed, UINT64_MAX);
    load->counts = true;
    load->results->start_ns = load->results->end_ns = clock_now_ns();
    phase.due_ns = load->results->start_ns;
    if (c->duration_ns)
        phase.end_ns = load->results->start_ns + c->duration_ns;
    return run_phase(load, &phase, err);
}

static int prepare(struct load *load, struct error *err)
{
    const struct bench_load_config *c = load->config;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&load->lock, NULL);
    pthread_cond_init(&load->changed, &clock);
    pthread_condattr_destroy(&clock);
    load->slots = calloc(c->n_clients, sizeof(*load->slots));
    load->ids = calloc((size_t)c->max_prompt_ids + 1, sizeof(*load->ids));
    if (!load->slots || !load->ids)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the requests");
    for (uint32_t i = 0; i < c->n_clients; i++) {
        load->slots[i].next = load->free;
        load->free = &load->slots[i];
    }
    double expected = c->rate > 0 ? c->rate * 10 : c->n_clients;
    return load->transport->ops->prepare(
        load->transport, (uint32_t)(expected < c->n_clients ? expected : c->n_clients), err);
}

int bench_load_run(const struct bench_load_config *config, struct bench_results *out_results,
                   struct error *err)
{
    struct load *load = calloc(1, sizeof(*load));
    if (!load)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the load");
    load->config = config;
    load->results = out_results;
    load->transport = config->transport;
    memset(out_results, 0, sizeof(*out_results));
    int rc = prepare(load, err);
    if (!rc)
        rc = warm_up(load, err);
    if (!rc && !load->stopped)
        rc = run_load(load, err);
    out_results->n_connections = load->transport->ops->n_connections(load->transport);
    load->stopped = true;
    reap(load); /* includes slots that pause after a failure */
    pthread_cond_destroy(&load->changed);
    pthread_mutex_destroy(&load->lock);
    free(load->slots);
    free(load->ids);
    free(load);
    return rc;
}
