/* Steps of the engine thread: schedules and launches steps, draws their tokens, and gives the
 * results to the requests. */
#include <string.h>

#include "base/clock.h"
#include "engine/core/engine_private.h"
#include "engine/draft/draft_model.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"
#include "engine/request/request_output.h"
#include "engine/request/sequence.h"
#include "kernels/device_failpoint.h"
#include "kernels/device_fault.h"

/* --- drawing --- */

/* Queues the draw of the n samples in e->to_draw (ascending). Adjacent samples are drawn by one
 * call. */
static int queue_draws(struct engine *e, const struct scheduler_plan *plan, uint32_t n,
                       struct error *err)
{
    int rc = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = e->to_draw[k];
        if (plan->scored[i])
            sequence_score_params(plan->samples[i], plan->scored[i], &e->params[i]);
        else
            sequence_sample_params(plan->samples[i], &e->params[i]);
    }
    for (uint32_t k = 0, end; k < n && !rc; k = end) {
        uint32_t i = e->to_draw[k];
        for (end = k + 1; end < n && e->to_draw[end] == i + (end - k);)
            end++;
        rc = executor_queue_sample(e->executor, i, end - k, &e->params[i], &e->results[i], err);
    }
    return rc;
}

/* Queues the draw of all rows but the drafted ones. */
static int begin_draw(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    for (uint32_t i = 0; i < plan->n_samples; i++) {
        e->to_draw[i] = i;
        e->drawn[i] = false;
    }
    return queue_draws(e, plan, plan->n_samples - plan->n_drafted, err);
}

/* Collects the drawn tokens, then draws the rows behind correct drafts, round by round. Each draw
 * uses the state that its sequence has then, as if each row had been a step of its own. */
static int end_draw(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    uint32_t n = plan->n_samples - plan->n_drafted;
    int rc = 0;
    e->drawn_ns = clock_now_ns(); /* executor_step() has finished a step without samples */
    while (n && !rc) {
        uint32_t n_next = 0;
        rc = executor_wait(e->executor, err);
        e->drawn_ns = clock_now_ns();
        for (uint32_t k = 0; k < n && !rc; k++) {
            uint32_t i = e->to_draw[k], next = scheduler_take(e->scheduler, i, &e->results[i]);
            e->drawn[i] = true;
            if (next)
                e->to_draw[n_next++] = next;
        }
        n = n_next;
        if (n && !rc)
            rc = queue_draws(e, plan, n, err);
    }
    return rc;
}

/* --- results --- */

static const char *sample_failure(int status)
{
    if (status == STATUS_DATA_LOSS)
        return "the model's output is not a number: no token can be drawn";
    return "every token is banned by bias or mask: no token can be drawn";
}

static void copy_logprob(struct engine_logprob *to, const struct sample_result *result)
{
    to->id = result->id;
    to->logprob = result->logprob;
    to->n_top = result->n_top;
    memcpy(to->top_ids, result->top_ids, result->n_top * sizeof(*to->top_ids));
    memcpy(to->top_logprobs, result->top_logprobs, result->n_top * sizeof(*to->top_logprobs));
}

/* Stores the log-probability of prompt token i. */
static void take_score(struct engine *e, struct sequence *seq, uint32_t i,
                       const struct sample_result *result)
{
    struct request *r = seq->request;
    if (r->state == REQUEST_ENDED)
        return; /* an earlier row of this step ended the request */
    if (result->status) {
        engine_end_request(e, r, FINISH_ERROR, result->status, sample_failure(result->status));
        return;
    }
    copy_logprob(&r->prompt_logprobs[i], result);
    r->n_scored = i + 1;
    engine_events_mark(e, r);
}

/* Ends a choice at the tokens whose text was taken; later drafted tokens are dropped. */
static void close_choice(struct engine *e, struct sequence *seq)
{
    seq->n_ids = seq->output->n_taken;
    engine_end_choice(e, seq);
}

static void take_text(struct engine *e, struct sequence *seq, const struct sample_result *result,
                      int64_t now_ns)
{
    if (!seq->request->first_token_ns)
        seq->request->first_token_ns = now_ns;
    if (seq->logprobs)
        copy_logprob(&seq->logprobs[seq->output->n_taken], result);
    request_output_take(seq);
    e->stats.n_generated_tokens++;
}

/* Adds the choice's next token of this step. Tokens behind the end of the choice are dropped. */
static void take_result(struct engine *e, struct sequence *seq, const struct sample_result *result,
                        int64_t now_ns)
{
    struct request *r = seq->request;
    if (r->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE)
        return;
    if (result->status)
        request_output_end(seq, FINISH_ERROR, result->status, sample_failure(result->status));
    else
        take_text(e, seq, result, now_ns);
    engine_events_mark(e, r);
    if (seq->output->reason != FINISH_NONE)
        close_choice(e, seq);
}

void engine_step_deferred(struct engine *e, bool in_flight)
{
    uint32_t n = e->n_deferred;
    e->n_deferred = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *seq = e->deferred[i];
        struct request *r = seq->request;
        const struct sample_result *result = &e->last_results[e->deferred_result[i]];
        if (!in_flight || r->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE) {
            take_result(e, seq, result, e->deferred_ns); /* does nothing if the choice has ended */
            request_release(r);
            continue;
        }
        take_text(e, seq, result, e->deferred_ns);
        if (seq->output->reason == FINISH_NONE) {
            engine_events_mark(e, r);
            request_release(r);
        } else { /* end_deferred() releases the reference */
            e->deferred_ended[e->n_deferred_ended++] = seq;
        }
    }
}

/* Ends the choices that deferred text has ended. No step is in flight. */
static void end_deferred(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_deferred_ended; i++) {
        struct sequence *seq = e->deferred_ended[i];
        struct request *r = seq->request;
        engine_events_mark(e, r);
        if (r->state != REQUEST_ENDED)
            close_choice(e, seq);
        request_release(r);
    }
    e->n_deferred_ended = 0;
}

/* Defers the text of sample i if it can be decoded later. Returns false if it must be decoded
 * now. */
static bool defer_text(struct engine *e, const struct scheduler_plan *plan, uint32_t i)
{
    struct sequence *seq = plan->samples[i];
    if (!e->defers || plan->n_drafted || plan->scored[i] || !e->drawn[i] || e->results[i].status ||
        seq->request->state == REQUEST_ENDED || seq->output->reason != FINISH_NONE ||
        request_output_may_end(seq))
        return false;
    request_retain(seq->request);
    e->deferred[e->n_deferred] = seq;
    e->deferred_result[e->n_deferred++] = i;
    return true;
}

/* Counts a drafted row; accepted if it gave a token. */
static void count_draft(struct engine *e, const struct scheduler_plan *plan, uint32_t i)
{
    const struct sequence *seq = plan->samples[i];
    struct request *r = seq->request;
    bool accepted = e->drawn[i] && !e->results[i].status && r->state != REQUEST_ENDED &&
                    seq->output->reason == FINISH_NONE;
    r->n_drafted_tokens++;
    r->n_accepted_tokens += accepted;
    e->stats.n_drafted_tokens++;
    e->stats.n_accepted_tokens += accepted;
}

static void count_paths(struct engine *e, const uint32_t n_rows[2])
{
    struct engine_stats *s = &e->stats;
    bool mixed = n_rows[0] && n_rows[1];
    uint32_t by_d = mixed && executor_mixes_roles(e->executor) ? 0 : n_rows[1];
    s->n_mixed_steps += mixed;
    s->n_path_d_rows += by_d;
    s->n_path_p_rows += n_rows[0] + n_rows[1] - by_d;
}

static void count_step(struct engine *e, const struct scheduler_plan *plan, int64_t ns)
{
    struct engine_stats *s = &e->stats;
    uint32_t n_rows = plan->n_decode_rows + plan->n_drafted + plan->n_prefill_rows;
    s->n_steps++;
    s->n_decode_steps += plan->n_decode_rows > 0;
    s->n_decode_rows += plan->n_decode_rows;
    s->n_decode_active += plan->n_decode_rows ? plan->n_decode_ready : 0;
    s->n_prefill_rows += plan->n_prefill_rows;
    s->last_step_ns = ns;
    s->draft_ns += plan->draft_ns;
    *(plan->n_prefill_rows ? &s->prefill_ns : &s->decode_ns) += ns;
    admission_saw_step(&e->admission, n_rows, plan->n_prefill_rows, ns);
    if (!plan->n_prefill_rows) {
        step_cost_saw(&e->step_cost, n_rows, ns - plan->draft_ns);
        scheduler_set_row_cost(e->scheduler, step_cost_base_rows(&e->step_cost));
    }
}

static void take_sample(struct engine *e, const struct scheduler_plan *plan, uint32_t i,
                        int64_t now_ns)
{
    if (i >= plan->n_samples - plan->n_drafted)
        count_draft(e, plan, i);
    if (plan->scored[i])
        take_score(e, plan->samples[i], plan->scored[i], &e->results[i]);
    else if (e->drawn[i])
        take_result(e, plan->samples[i], &e->results[i], now_ns);
}

/* Deferred texts still need this step's results, so the two result arrays are swapped. */
static void take_samples(struct engine *e, const struct scheduler_plan *plan, int64_t now_ns)
{
    struct sample_result *results = e->results;
    e->deferred_ns = now_ns;
    for (uint32_t i = 0; i < plan->n_samples; i++)
        if (!defer_text(e, plan, i))
            take_sample(e, plan, i, now_ns);
    e->results = e->last_results;
    e->last_results = results;
}

/* --- steps in flight --- */

static struct engine_flight *oldest(struct engine *e)
{
    return &e->flights[e->first_flight];
}

/* The step leaves the ring; its results are still to be taken. */
static void commit(struct engine *e)
{
    executor_release(e->executor);
    scheduler_commit(e->scheduler);
    e->first_flight = (e->first_flight + 1) % e->max_flights;
    e->n_flights--;
}

/* Ends all requests; the engine accepts no more. The results of steps in flight are dropped. */
static void fail_engine(struct engine *e, const struct error *why)
{
    struct request *r;
    struct error ignored;
    while (e->n_flights) {
        if (oldest(e)->is_submitted)
            (void)executor_collect(e->executor, &ignored);
        commit(e);
    }
    e->failure = *why;
    e->failure.status = STATUS_UNAVAILABLE;
    error_prefix(&e->failure,
                 device_fault_of_error(&e->failure) ? "the device failed" : "the engine failed");
    atomic_store(&e->failed, true);
    while ((r = scheduler_any(e->scheduler)))
        engine_end_request(e, r, FINISH_ERROR, e->failure.status, e->failure.message);
}

/* Counts how long the device was idle before this step was queued. */
static void count_queued(struct engine *e, const struct engine_flight *f)
{
    e->stats.n_ahead += f->batch->is_ahead;
    if (!e->drawn_ns || f->plan.n_prefill_rows || !executor_is_async(e->executor))
        return;
    e->stats.n_between++;
    e->stats.between_ns += clock_now_ns() - e->drawn_ns;
}

/* Collects the step, and queues the draw of its rows. */
static int collect(struct engine *e, struct engine_flight *f, struct error *err)
{
    int rc = f->rc;
    if (rc)
        *err = f->err;
    else
        rc = executor_collect(e->executor, err);
    count_queued(e, f);
    if (!rc)
        rc = device_failpoint(err);
    return rc ? rc : begin_draw(e, &f->plan, err);
}

/* Gives the executor the expected inputs of the next step. They are written into this step's batch,
 * which is no longer read. Not done if deferred text has ended a choice: then the next step
 * differs. */
static int step_ahead(struct engine *e, struct engine_flight *f, struct error *err)
{
    if (!e->defers || e->n_deferred_ended || !scheduler_schedule_ahead(e->scheduler, f->batch))
        return 0;
    return executor_step_ahead(e->executor, f->batch, err);
}

static int finish(struct engine *e, struct engine_flight *f, struct error *err)
{
    int rc = collect(e, f, err);
    if (e->n_deferred) { /* the device runs the step meanwhile */
        engine_step_deferred(e, true);
        if (!e->n_deferred_ended)
            engine_publish_news(e, 0, false);
    }
    if (!rc)
        rc = step_ahead(e, f, err);
    return rc ? rc : end_draw(e, &f->plan, err);
}

/* Ends the oldest step in flight. With several in flight, a step's time begins with the end of the
 * step before it. So the times add up to the time that passed. */
static void land(struct engine *e)
{
    struct engine_flight *f = oldest(e);
    struct error err;
    int rc = finish(e, f, &err);
    commit(e);
    end_deferred(e);
    if (rc) {
        fail_engine(e, &err);
        return;
    }
    int64_t end = clock_now_ns(), begin = f->begin_ns > e->landed_ns ? f->begin_ns : e->landed_ns;
    e->landed_ns = end;
    take_samples(e, &f->plan, end);
    scheduler_saw_step(e->scheduler, end - begin - f->plan.draft_ns);
    count_step(e, &f->plan, end - begin);
    count_paths(e, f->n_rows);
}

void engine_step_settle(struct engine *e)
{
    while (e->n_flights)
        land(e);
}

/* Moves states and copies blocks before a step. No other step is in flight then. */
static int make_moves(struct engine *e, const struct scheduler_plan *plan, uint32_t n_flights,
                      struct error *err)
{
    if (!plan->n_moves && !plan->n_copies)
        return 0;
    while (e->n_flights > n_flights)
        land(e);
    return atomic_load(&e->failed) ? 0 : engine_moves_make(e, plan, err);
}

/* Hands the scheduled step to the executor. If that fails, land() finds the error. */
static void submit(struct engine *e, struct engine_flight *f)
{
    int rc = e->draft_model ? draft_model_health(e->draft_model, &f->err) : 0;
    if (!rc)
        rc = make_moves(e, &f->plan, 1, &f->err);
    if (!rc && !e->n_flights)
        return; /* another step failed, and this one was dropped */
    if (!rc)
        rc = executor_submit(e->executor, f->batch, &f->err);
    f->is_submitted = !rc;
    f->rc = rc;
}

static void tell_start(struct engine *e, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_started; i++)
        engine_events_mark(e, plan->started[i]);
    /* Readers learn of a start before the step runs: the process may die in the step. */
    if (plan->n_started && !e->n_deferred)
        engine_publish_news(e, 0, true);
    for (uint32_t i = 0; i < plan->n_begun; i++) {
        const struct request *r = plan->begun[i]->request;
        /* a resume finds the blocks of its own earlier run */
        if (!r->n_preemptions && !plan->begun[i]->n_replayed)
            admission_saw_start(&e->admission, r->caller_hash, r->n_cached_tokens);
    }
}

/* Schedules a step and begins it. Returns false if nothing can run. */
static bool launch(struct engine *e)
{
    struct engine_flight *f = &e->flights[(e->first_flight + e->n_flights) % e->max_flights];
    struct error err;
    f->begin_ns = clock_now_ns();
    f->is_submitted = false;
    f->rc = 0;
    bool has_rows = scheduler_schedule(e->scheduler, f->batch, f->begin_ns, &f->plan);
    tell_start(e, &f->plan);
    if (!has_rows) {
        if (make_moves(e, &f->plan, 0, &err))
            fail_engine(e, &err);
        return false;
    }
    e->n_flights++;
    f->n_rows[0] = f->n_rows[1] = 0;
    for (uint32_t r = 0; r < f->batch->n_rows; r++)
        f->n_rows[f->batch->is_generated[r] != 0]++;
    submit(e, f);
    return true;
}

bool engine_step_run(struct engine *e)
{
    bool ran = e->n_flights > 0 || e->n_deferred > 0;
    while (e->n_flights < e->max_flights && launch(e))
        ran = true;
    if (e->n_flights)
        land(e);
    else
        engine_step_deferred(e, false);
    return ran;
}
