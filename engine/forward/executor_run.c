/* Runs jobs on the executor's ranks: steps, copies, logits. With several CPU stages, steps follow
 * each other through the stages. Then each stage can work on a step of its own. */
#include <assert.h>

#include "engine/forward/executor_private.h"
#include "engine/model/step.h"

/* --- a rank's work --- */

/* The rank's part of a saved state. */
static unsigned char *host_of(const struct step_job *job, uint32_t r)
{
    const struct executor *ex = job->ex;
    uint64_t at = 0;
    for (uint32_t i = 0; i < r; i++)
        at += decoder_state_bytes(&ex->plans[i], &ex->model.shape);
    return job->host + at;
}

/* Takes the part's rows from the stage before. */
static int take_rows(const struct executor *ex, uint32_t r, const struct step_part *part)
{
    size_t hidden = ex->model.shape.hidden_dim, at = part->row_begin * hidden;
    return ex->cpu->ops->copy(ex->streams[r], decoder_hidden(ex->decoders[r]) + at,
                              decoder_hidden(ex->decoders[r - ex->tp]) + at,
                              part->n_rows * hidden * sizeof(float));
}

/* Waits until the part's rows have their place. The next stage must have taken the rows of the step
 * before from there. */
static void wait_for_place(const struct step_job *job, uint32_t r, const struct step_part *part)
{
    struct executor *ex = job->ex;
    const struct step_parts *before = &job->before;
    uint32_t n = 0;
    while (n < before->n && before->parts[n].row_begin < part->row_begin + part->n_rows)
        n++;
    pipeline_gate_wait(&ex->taken, r + ex->tp, before->first + n);
}

/* Runs the step's parts on a rank of a CPU stage. After a failure the rank runs on, because ranks
 * of its stage wait for it. */
static void run_parts(struct step_job *job, uint32_t r)
{
    struct executor *ex = job->ex;
    for (uint32_t i = 0; i < job->parts.n; i++) {
        const struct step_part *part = &job->parts.parts[i];
        struct error err;
        int rc = 0;
        if (r + ex->tp < ex->n_ranks)
            wait_for_place(job, r, part);
        if (r >= ex->tp) {
            pipeline_gate_wait(&ex->gate, r - ex->tp, job->parts.first + i + 1);
            rc = take_rows(ex, r, part);
            pipeline_gate_pass(&ex->taken, r);
            if (rc)
                error_set(&err, rc, "rank %u: rows of the stage before cannot be copied", r);
        }
        if (!rc)
            rc = decoder_step_part(ex->decoders[r], job->batch, part, &err);
        if (rc && !job->rc[r]) {
            job->rc[r] = rc;
            job->errs[r] = err;
        }
        pipeline_gate_pass(&ex->gate, r);
    }
}

static void run_step(struct step_job *job, uint32_t r)
{
    if (job->parts.n)
        run_parts(job, r);
    else
        job->rc[r] = decoder_step(job->ex->decoders[r], job->batch, &job->errs[r]);
}

static void run_rank(void *ctx, uint32_t r)
{
    struct step_job *job = ctx;
    struct decoder *dec = job->ex->decoders[r];
    struct error *err = &job->errs[r];
    switch (job->kind) {
    case JOB_STEP:
        run_step(job, r);
        break;
    case JOB_LOGITS:
        if (rank_is_last(&job->ex->plans[r].rank))
            job->rc[r] = decoder_logits(dec, job->first_logits, job->n_logits, err);
        break;
    case JOB_COPY_BLOCK:
    case JOB_COPY_WINDOW:
        job->rc[r] = decoder_copy_block(dec, job->kind == JOB_COPY_WINDOW, job->from, job->to, err);
        break;
    case JOB_COPY_STATE:
        job->rc[r] = decoder_copy_state(dec, job->from, job->to, err);
        break;
    case JOB_SAVE_STATE:
        job->rc[r] = decoder_save_state(dec, job->from, host_of(job, r), err);
        break;
    case JOB_LOAD_STATE:
        job->rc[r] = decoder_load_state(dec, job->to, host_of(job, r), err);
        break;
    }
}

/* --- all ranks --- */

/* Runs the stages one after the other; the rows pass from device to device. */
static int run_stages(struct step_job *job, struct error *err)
{
    struct executor *ex = job->ex;
    int rc = 0;
    for (uint32_t r = 0; !rc && r < ex->n_ranks; r++) {
        if (r > 0 && job->batch)
            rc = rank_device(ex, r)->ops->upload(ex->streams[r], decoder_hidden(ex->decoders[r]),
                                                 decoder_hidden(ex->decoders[r - 1]),
                                                 (size_t)job->batch->n_rows *
                                                     ex->model.shape.hidden_dim * sizeof(float));
        if (rc)
            return rank_device(ex, r)->ops->stream_sync(ex->streams[r], err);
        run_rank(job, r);
        rc = job->rc[r];
        if (rc)
            *err = job->errs[r];
    }
    return rc;
}

static void run_rank_of_stage(void *ctx, uint32_t i)
{
    const struct stage_task *task = ctx;
    task->fn(task->job, task->stage * task->ex->tp + i);
}

static void run_stage(void *ctx)
{
    struct stage_task *task = ctx;
    rank_team_run(task->ex->teams[task->stage], run_rank_of_stage, task);
}

void executor_run_ranks(struct executor *ex, uint32_t first_stage, rank_team_fn *fn, void *job)
{
    struct stage_task tasks[STAGES_MAX];
    uint32_t numbers[STAGES_MAX];
    if (ex->n_stages == 1) {
        rank_team_run(ex->teams[0], fn, job);
        return;
    }
    for (uint32_t s = first_stage; s < ex->n_stages; s++) {
        tasks[s] = (struct stage_task){ex, s, fn, job};
        numbers[s] = lane_post(ex->lanes[s], run_stage, &tasks[s]);
    }
    for (uint32_t s = first_stage; s < ex->n_stages; s++)
        lane_wait(ex->lanes[s], numbers[s]);
}

static void clear_errors(struct step_job *job)
{
    for (uint32_t r = 0; r < job->ex->n_ranks; r++) {
        job->rc[r] = 0;
        error_clear(&job->errs[r]);
    }
}

static int first_error(const struct step_job *job, struct error *err)
{
    for (uint32_t r = 0; r < job->ex->n_ranks; r++)
        if (job->rc[r]) {
            *err = job->errs[r];
            return job->rc[r];
        }
    return 0;
}

int executor_run_job(struct step_job *job, struct error *err)
{
    struct executor *ex = job->ex;
    bool is_for_head = job->kind == JOB_LOGITS;
    clear_errors(job);
    if (ex->gpu)
        return run_stages(job, err);
    assert(is_for_head ? ex->n_stages == 1 || ex->is_open : !ex->n_flights);
    executor_run_ranks(ex, is_for_head ? ex->n_stages - 1 : 0, run_rank, job);
    return first_error(job, err);
}

/* --- steps in flight --- */

static struct executor_flight *oldest(struct executor *ex)
{
    return &ex->flights[ex->first_flight];
}

static void post_stage(struct executor *ex, struct executor_flight *flight, uint32_t s)
{
    flight->tasks[s] = (struct stage_task){ex, s, run_rank, &flight->job};
    flight->numbers[s] = lane_post(ex->lanes[s], run_stage, &flight->tasks[s]);
}

void executor_post_step(struct executor *ex, const struct step_batch *batch)
{
    const struct pipeline_cut cut = {
        .n_stages = ex->n_stages,
        .base_rows = PIPELINE_BASE_ROWS,
        .whole_sequences = ex->actual.n_state_slots > 0,
    };
    assert(ex->n_flights < ex->n_stages);
    struct executor_flight *flight =
        &ex->flights[(ex->first_flight + ex->n_flights) % ex->n_stages];
    struct step_job *job = &flight->job;
    job->ex = ex;
    job->kind = JOB_STEP;
    job->batch = batch;
    job->before = ex->before;
    job->parts.first = ex->before.first + ex->before.n;
    job->parts.n = pipeline_cut_step(&cut, batch, job->parts.parts);
    ex->before = job->parts;
    clear_errors(job);
    ex->n_flights++;
    for (uint32_t s = 0; s + 1 < ex->n_stages; s++)
        post_stage(ex, flight, s);
    if (ex->n_flights == 1 && !ex->is_open)
        post_stage(ex, flight, ex->n_stages - 1);
}

int executor_await_step(struct executor *ex, uint32_t *out_n_sample_rows, struct error *err)
{
    struct executor_flight *flight = oldest(ex);
    executor_release(ex);
    assert(ex->n_flights && ex->n_stages);
    for (uint32_t s = 0; s < ex->n_stages; s++)
        lane_wait(ex->lanes[s], flight->numbers[s]);
    *out_n_sample_rows = flight->job.batch->n_sample_rows;
    ex->first_flight = (ex->first_flight + 1) % ex->n_stages;
    ex->n_flights--;
    ex->is_open = true;
    return first_error(&flight->job, err);
}

void executor_release(struct executor *ex)
{
    if (!ex->is_open)
        return;
    ex->is_open = false;
    if (ex->n_flights)
        post_stage(ex, oldest(ex), ex->n_stages - 1);
}
