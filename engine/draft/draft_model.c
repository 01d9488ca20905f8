#include "engine/draft/draft_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/draft/draft_model_private.h"
#include "engine/request/sequence.h"

enum {
    LEAST_CATCH_ROWS = 8, /* rows of a pass, at least, for sequences that catch up */
    /* a sequence with more missing rows catches up before it drafts */
    SHORT_ROWS = DRAFT_MAX_TOKENS + 1,
    FIRST_REST = 4,
    LONGEST_REST = 256, /* most steps until a sequence that did not pay is tried again */
    HOPE_WEIGHT = 12,
};

/* --- worth of a pass --- */

/* The planned step so far. Costs are in rows of the target model. */
struct gain {
    float tokens, cost;   /* expected correct tokens, and their cost */
    float row_ns, margin; /* margin 0: drafts whether drafting pays or not */
    int64_t room_ns;
};

/* Least chance of a correct token at which another row pays. */
static float least_chance(const struct gain *g)
{
    return g->margin * g->tokens / g->cost;
}

static float rows_of_ns(const struct gain *g, int64_t ns)
{
    return g->row_ns > 0 ? (float)ns / g->row_ns : 0.0f;
}

/* A pass that draws one token for each of some sequences. */
struct prospect {
    struct step_shape shape;
    float sum; /* expected number of correct tokens */
};

static void add_sequence(struct prospect *p, const struct draft_job *job, float chance)
{
    p->shape.n_decode++;
    p->shape.n_context += sequence_n_tokens(job->seq) + job->seq->draft->n_ids;
    p->sum += chance;
}

/* True if the pass fits into the time and its expected tokens are worth its cost. */
static bool pass_pays(const struct draft_model *dm, const struct gain *g, const struct prospect *p)
{
    uint32_t n = p->shape.n_decode;
    int64_t ns = step_time_predict(&dm->time, &p->shape);
    return n && ns + (int64_t)((float)n * g->row_ns) <= g->room_ns &&
           p->sum >= least_chance(g) * (rows_of_ns(g, ns) + (float)n);
}

/* --- choice of the sequences --- */

/* Returns the mark in dm->whole of blocks that the sequence may read: 1 + its rope table. */
static uint8_t whole_mark(const struct draft_by_model *m)
{
    return (uint8_t)(1 + m->is_long);
}

/* A draft model with longrope chooses its table by the sequence's length, too. At the border all
 * its K and V are computed again. */
static void choose_rope(const struct draft_model *dm, struct draft *d, uint32_t n_tokens)
{
    bool is_long = dm->long_rope_after && n_tokens > dm->long_rope_after;
    if (d->model.is_long != is_long)
        draft_cut(d, 0);
    d->model.is_long = is_long;
}

/* Adds whole blocks that other sequences have written. With recurrent layers they must end at a
 * snapshot, from which the sequence continues. */
static void find_written(struct draft_model *dm, struct draft_job *job)
{
    struct draft_by_model *m = &job->seq->draft->model;
    uint32_t bs = dm->block_size, first = m->n_written / bs, end = 0;
    for (uint32_t k = first; k < job->seq->n_hashed; k++) {
        if (dm->whole[job->table[k]] != whole_mark(m))
            break;
        if (!dm->states || draft_states_has(dm->states, job->table[k]))
            end = k + 1;
    }
    if (!end)
        return;
    m->n_written = end * bs;
    if (dm->states)
        draft_states_attach(dm->states, job->seq->slot, job->table[end - 1], m->n_written);
}

/* Updates n_written before drafting: adds accepted drafts whose K and V are written. A sequence
 * whose recurrent state is gone starts again. */
static void count_written(struct draft_model *dm, struct draft_job *job)
{
    const struct sequence *seq = job->seq;
    struct draft *d = seq->draft;
    struct draft_by_model *m = &d->model;
    uint32_t n = sequence_n_tokens(seq), begin;
    choose_rope(dm, d, n);
    for (uint32_t i = 0; i < m->n_ahead && m->n_written == m->n_told + i && m->n_written < n; i++)
        m->n_written += sequence_token(seq, m->n_told + i) == d->ids[i];
    m->n_ahead = 0;
    if (dm->states)
        m->n_written = draft_states_keep(dm->states, seq->slot, &m->state_id, m->n_written);
    begin = m->n_written;
    find_written(dm, job);
    dm->stats.n_found += m->n_written - begin;
    d->n_ids = m->n_checked = 0;
    m->n_told = n;
}

/* Tokens of the sequence that the draft model has not computed. */
static uint32_t n_owed(const struct draft_job *job)
{
    return sequence_n_tokens(job->seq) - job->seq->draft->model.n_written;
}

/* Pauses drafting for the sequence; each pause is twice as long as the last. */
static void pause_drafting(struct draft_by_model *m)
{
    m->rest = m->rest ? m->rest : FIRST_REST;
    m->n_rest = m->rest;
    m->rest = m->rest < LONGEST_REST / 2 ? (uint16_t)(m->rest * 2) : LONGEST_REST;
    m->is_trial = false;
}

/* True if too many tokens are missing to catch up. Even if every draft were right, the rest of the
 * answer could not win the time back. */
static bool is_too_late(const struct draft_model *dm, const struct draft_job *job,
                        const struct draft_bounds *b)
{
    const struct request *r = job->seq->request;
    uint32_t left = r->max_tokens - job->seq->n_ids;
    float step_ns = (b->base_rows + b->n_rows) * b->row_ns / (b->n_rows > 1 ? b->n_rows : 1);
    uint32_t n = n_owed(job);
    struct step_shape shape = {.n_prefill = n,
                               .n_context = step_time_context(job->seq->draft->model.n_written, n)};
    return n > SHORT_ROWS && !dm->always &&
           (float)step_time_predict(&dm->time, &shape) > step_ns * (float)left;
}

/* Prepares the job. Returns false if the sequence must not draft in this step. */
static bool may_draft(struct draft_model *dm, struct draft_job *job, const struct draft_bounds *b)
{
    struct draft_by_model *m = &job->seq->draft->model;
    uint32_t n = sequence_n_tokens(job->seq);
    job->n_rows = 0;
    job->is_drafting = false;
    job->chance = 1.0f;
    count_written(dm, job);
    if (m->is_deaf || n > dm->context_tokens || is_too_late(dm, job, b))
        return false;
    uint32_t room = dm->context_tokens + 1 - n; /* the last drafted token is not computed */
    if (dm->long_rope_after && !m->is_long && dm->long_rope_after + 1 - n < room)
        room = dm->long_rope_after + 1 - n;
    job->n_most = job->n_most < room ? job->n_most : room;
    job->n_most = job->n_most < DRAFT_MAX_TOKENS ? job->n_most : DRAFT_MAX_TOKENS;
    if (m->n_rest) {
        m->n_rest--;
        m->is_trial = !m->n_rest;
        return false;
    }
    return job->n_most > 0;
}

/* Chooses the sequences of the first pass. Those that draft get is_drafting; those that must catch
 * up first get n_rows in emit_first(). Moves both kinds to the front of `jobs` and returns their
 * number. */
static uint32_t choose_sequences(struct draft_model *dm, struct draft_job *jobs, uint32_t n,
                                 const struct draft_bounds *b, const struct gain *g)
{
    struct prospect all = {0}, trials = {0};
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!may_draft(dm, &jobs[i], b))
            continue;
        struct draft_job kept = jobs[i];
        const struct draft_by_model *m = &kept.seq->draft->model;
        jobs[i] = jobs[n_kept];
        if (n_owed(&kept) <= SHORT_ROWS) {
            kept.is_drafting = m->is_trial || m->hope >= least_chance(g);
            if (m->is_trial)
                add_sequence(&trials, &kept, m->hope);
            if (kept.is_drafting)
                add_sequence(&all, &kept, m->hope);
            else
                pause_drafting(&kept.seq->draft->model);
        }
        jobs[n_kept++] = kept;
    }
    bool pays = pass_pays(dm, g, &all);
    bool has_time = step_time_predict(&dm->time, &trials.shape) <= g->room_ns;
    for (uint32_t i = 0; i < n_kept; i++) {
        struct draft_by_model *m = &jobs[i].seq->draft->model;
        if (!jobs[i].is_drafting || pays)
            continue;
        jobs[i].is_drafting = m->is_trial && has_time;
        if (!m->is_trial)
            pause_drafting(m);
    }
    return n_kept;
}

/* --- a pass --- */

static uint32_t token_at(const struct sequence *seq, uint32_t at)
{
    uint32_t n = sequence_n_tokens(seq);
    return at < n ? sequence_token(seq, at) : seq->draft->ids[at - n];
}

/* How many of the sequence's next n rows may be written. A block that another sequence writes in
 * this pass is left to that sequence. */
static uint32_t writable_rows(struct draft_model *dm, const struct draft_job *job, uint32_t begin,
                              uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (dm->writers[job->table[(begin + i) / dm->block_size]] == dm->i_pass)
            return i;
        if (token_at(job->seq, begin + i) >= dm->vocab_size) {
            job->seq->draft->model.is_deaf = true;
            return 0;
        }
    }
    return n;
}

/* --- recurrent states of the rows --- */

/* True if the state behind the sequence's first n tokens is to be kept as a snapshot. The last
 * block that the same prompt could use again ends a prompt. */
static bool wants_snapshot(const struct draft_model *dm, const struct sequence *seq, uint32_t n,
                           enum state_place *out_where)
{
    uint32_t n_blocks = n / dm->block_size;
    bool is_end = n_blocks == (seq->request->n_prompt - 1) / dm->block_size ||
                  n_blocks == seq->snapshot_block;
    *out_where = is_end ? STATE_END : STATE_INSIDE;
    return n % dm->block_size == 0 && n_blocks <= seq->n_hashed &&
           (is_end || n % ENGINE_SNAPSHOT_TOKENS == 0);
}

/* Slots of a sequence's rows in a pass. */
struct row_slots {
    uint32_t read, write;
};

/* Chooses the slots that the sequence's next n rows read and write. False: no slot is free. */
static bool choose_slots(struct draft_model *dm, const struct draft_job *job, uint32_t begin,
                         uint32_t n, struct row_slots *out_slots)
{
    bool is_draft = begin >= sequence_n_tokens(job->seq);
    *out_slots = (struct row_slots){STEP_STATE_NONE, STEP_STATE_NONE};
    return !dm->states || draft_states_advance(dm->states, job->seq->slot, begin + n, is_draft,
                                               &out_slots->read, &out_slots->write);
}

/* Writes the slots of the rows of sequence s, and of snapshots behind them. */
static void emit_slots(struct draft_model *dm, const struct draft_job *job, uint32_t s,
                       const struct row_slots *slots)
{
    struct step_batch *b = dm->batch;
    uint32_t end = b->seq_start[s + 1];
    for (uint32_t row = b->seq_start[s]; dm->states && row < end; row++) {
        uint32_t n = b->positions[row] + 1, block = job->table[(n - 1) / dm->block_size];
        enum state_place where;
        bool is_kept = wants_snapshot(dm, job->seq, n, &where);
        b->state_reads[row] = row == b->seq_start[s] ? slots->read : STEP_STATE_PREVIOUS;
        b->state_writes[row] = row + 1 == end ? slots->write : STEP_STATE_NONE;
        if (is_kept && row + 1 == end)
            draft_states_record(dm->states, block, slots->write, where);
        else if (is_kept)
            b->state_writes[row] = draft_states_snapshot(dm->states, block, where);
    }
}

/* --- rows --- */

/* Writes the sequence's next n rows into the batch; returns how many were written. */
static uint32_t emit_rows(struct draft_model *dm, struct draft_job *job, uint32_t n)
{
    struct step_batch *b = dm->batch;
    const struct draft_by_model *m = &job->seq->draft->model;
    uint32_t begin = m->n_written + m->n_ahead, bs = dm->block_size, s = b->n_seqs;
    struct row_slots slots;
    n = writable_rows(dm, job, begin, n);
    if (n && !choose_slots(dm, job, begin, n, &slots))
        n = 0;
    job->n_rows = n;
    if (!n)
        return 0;
    b->n_seqs++;
    b->seq_start[s] = b->n_rows;
    memcpy(b->block_tables + (size_t)s * b->limits.max_blocks_per_seq, job->table,
           ((begin + n - 1) / bs + 1) * sizeof(*job->table));
    for (uint32_t at = begin; at < begin + n; at++) {
        uint32_t row = b->n_rows++;
        b->token_ids[row] = token_at(job->seq, at);
        b->positions[row] = at;
        b->kv_slots[row] = job->table[at / bs] * bs + at % bs;
        b->seq_of_row[row] = s;
        b->rope_tables[row] = m->is_long;
        b->is_generated[row] = at >= job->seq->request->n_prompt;
        dm->writers[job->table[at / bs]] = dm->i_pass;
    }
    b->seq_start[s + 1] = b->n_rows;
    emit_slots(dm, job, s, &slots);
    dm->shape.n_context += step_time_context(begin, n);
    return n;
}

/* Samples the last row of the batch for the job. */
static void sample_last_row(struct draft_model *dm, struct draft_job *job)
{
    struct step_batch *b = dm->batch;
    dm->sampled[b->n_sample_rows] = job;
    b->sample_rows[b->n_sample_rows++] = b->n_rows - 1;
}

static void begin_pass(struct draft_model *dm)
{
    step_batch_clear(dm->batch);
    dm->shape = (struct step_shape){0};
    dm->i_pass++;
}

/* Writes the first pass: sequences that draft, then sequences that catch up, as far as time and
 * rows allow. */
static void emit_first(struct draft_model *dm, struct draft_job *jobs, uint32_t n,
                       const struct draft_bounds *b)
{
    for (uint32_t i = 0; i < n; i++) {
        struct draft_job *job = &jobs[i];
        uint32_t room = dm->max_rows - dm->batch->n_rows, owed = n_owed(job);
        if (!job->is_drafting || !room)
            continue;
        dm->shape.n_decode += emit_rows(dm, job, owed < room ? owed : room);
        job->is_drafting = job->n_rows == owed;
        if (job->is_drafting)
            sample_last_row(dm, job);
    }
    for (uint32_t i = 0; i < n && dm->batch->n_rows < dm->max_rows; i++) {
        uint32_t room = dm->max_rows - dm->batch->n_rows, owed = n_owed(&jobs[i]);
        uint32_t done = dm->shape.n_prefill;
        if (owed <= SHORT_ROWS || jobs[i].n_rows)
            continue;
        room = room < dm->chunk ? room : dm->chunk;
        uint32_t fits =
            b->catch_ns == INT64_MAX
                ? owed
                : step_time_fit_rows(&dm->time, &dm->shape, jobs[i].seq->draft->model.n_written,
                                     b->catch_ns, owed);
        fits = fits + done < LEAST_CATCH_ROWS ? LEAST_CATCH_ROWS - done : fits;
        fits = fits < owed ? fits : owed;
        dm->shape.n_prefill += emit_rows(dm, &jobs[i], fits < room ? fits : room);
    }
}

/* Sampling parameters of the sequence's next draft. */
static void fill_params(const struct draft_model *dm, const struct draft_job *job,
                        struct sample_params *p)
{
    const struct draft *d = job->seq->draft;
    sequence_sample_params(job->seq, p);
    p->position += d->n_ids;
    if (d->n_ids)
        p->previous_id = d->ids[d->n_ids - 1];
    p->want_logprob = true;
    p->n_top = 0;
    if (dm->is_narrow) { /* biases and counts may name tokens outside its vocabulary */
        p->n_counts = 0;
        p->n_biases = 0;
    }
}

static int run_pass(struct draft_model *dm, struct error *err)
{
    int64_t begin = clock_now_ns();
    uint32_t n = dm->batch->n_sample_rows;
    int rc = executor_step(dm->executor, dm->batch, err);
    for (uint32_t i = 0; i < n && !rc; i++)
        fill_params(dm, dm->sampled[i], &dm->params[i]);
    if (!rc && n)
        rc = executor_sample(dm->executor, 0, n, dm->params, dm->results, err);
    if (rc)
        return rc;
    if (dm->states)
        draft_states_end_pass(dm->states);
    dm->stats.n_passes++;
    dm->stats.n_rows += dm->batch->n_rows;
    step_time_saw(&dm->time, &dm->shape, clock_now_ns() - begin);
    return 0;
}

/* Counts the rows that were written, and marks whole blocks for reuse by other sequences. */
static void record_written(struct draft_model *dm, struct draft_job *jobs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct draft_job *job = &jobs[i];
        struct draft_by_model *m = &job->seq->draft->model;
        uint32_t bs = dm->block_size, k = m->n_marked / bs;
        m->n_written += job->n_rows;
        for (; k < m->n_written / bs && k < job->seq->n_hashed; k++)
            dm->whole[job->table[k]] = whole_mark(m);
        m->n_marked = k * bs;
    }
}

/* Index in `trust` for a token of this log-probability. */
static uint32_t trust_of(float logprob)
{
    float p = expf(logprob) * (float)DRAFT_MAX_MATCH;
    return p < 0 || !(p < (float)DRAFT_MAX_MATCH - 1) ? DRAFT_MAX_MATCH - 1 : (uint32_t)p;
}

/* Accepts a sequence's drawn token as draft if the token is likely enough. */
static void accept_draft(struct draft_job *job, const struct sample_result *result, struct gain *g)
{
    struct draft *d = job->seq->draft;
    struct draft_by_model *m = &d->model;
    job->is_drafting = false;
    if (result->status || isnan(result->logprob))
        return;
    uint32_t i_trust = trust_of(result->logprob);
    float chance = d->trust[i_trust];
    m->hope += (chance - m->hope) / HOPE_WEIGHT;
    job->chance *= chance;
    bool is_worth = job->chance >= least_chance(g);
    if (!is_worth && (d->n_ids || !m->is_trial))
        return;
    if (m->is_trial)
        m->hope = chance; /* decides if the next step drafts, too */
    else if (!d->n_ids)
        /* a first draft that pays resets the pause; a trial's later drafts do not, because its pass
         * is paid for already */
        m->rest = FIRST_REST;
    m->is_trial = false;
    g->tokens += job->chance;
    g->cost += 1.0f;
    m->i_trust[d->n_ids] = (uint8_t)i_trust;
    d->ids[d->n_ids++] = result->id;
    job->is_drafting =
        is_worth && d->n_ids < job->n_most && !request_is_stop_id(job->seq->request, result->id);
}

/* Accounts for a finished pass: takes its drafts, adds its cost. Time for catching up is not
 * charged to the drafts. */
static void end_pass(struct draft_model *dm, struct gain *g, int64_t ns)
{
    g->cost += dm->shape.n_prefill ? 0 : rows_of_ns(g, ns);
    g->room_ns -= g->room_ns == INT64_MAX ? 0 : ns;
    for (uint32_t i = 0; i < dm->batch->n_sample_rows; i++)
        accept_draft(dm->sampled[i], &dm->results[i], g);
}

/* Writes the next pass: one row for each sequence whose next token is likely enough. Returns false
 * if the pass would not pay. */
static bool emit_next(struct draft_model *dm, struct draft_job *jobs, uint32_t n,
                      const struct gain *g)
{
    struct prospect next = {0};
    for (uint32_t i = 0; i < n; i++) {
        float chance = jobs[i].chance * jobs[i].seq->draft->model.hope;
        jobs[i].is_drafting = jobs[i].is_drafting && chance >= least_chance(g);
        if (jobs[i].is_drafting)
            add_sequence(&next, &jobs[i], chance);
    }
    if (!pass_pays(dm, g, &next))
        return false;
    begin_pass(dm);
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].n_rows = 0;
        if (!jobs[i].is_drafting || dm->batch->n_rows == dm->max_rows ||
            !emit_rows(dm, &jobs[i], 1))
            continue;
        dm->shape.n_decode++;
        sample_last_row(dm, &jobs[i]);
    }
    return dm->batch->n_sample_rows > 0;
}

/* Drafts for the jobs: a first pass, then further passes while they pay. */
static int run_passes(struct draft_model *dm, struct draft_job *jobs, uint32_t n,
                      const struct draft_bounds *b, struct error *err)
{
    struct gain g = {.tokens = b->n_rows,
                     .cost = b->base_rows + b->n_rows,
                     .row_ns = b->row_ns,
                     .margin = dm->always ? 0 : b->margin,
                     .room_ns = b->room_ns};
    int64_t begin = clock_now_ns();
    if (dm->states)
        draft_states_begin(dm->states);
    n = choose_sequences(dm, jobs, n, b, &g);
    begin_pass(dm);
    emit_first(dm, jobs, n, b);
    if (!dm->batch->n_rows)
        return 0;
    int rc = run_pass(dm, err);
    if (rc)
        return rc;
    record_written(dm, jobs, n);
    end_pass(dm, &g, clock_now_ns() - begin);
    while (emit_next(dm, jobs, n, &g)) {
        begin = clock_now_ns();
        rc = run_pass(dm, err);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < dm->batch->n_sample_rows; i++)
            dm->sampled[i]->seq->draft->model.n_ahead++;
        end_pass(dm, &g, clock_now_ns() - begin);
    }
    return 0;
}

int64_t draft_model_propose(void *ctx, struct draft_job *jobs, uint32_t n,
                            const struct draft_bounds *bounds)
{
    struct draft_model *dm = ctx;
    int64_t begin = clock_now_ns();
    if (dm->failure.status || run_passes(dm, jobs, n, bounds, &dm->failure) != 0)
        for (uint32_t i = 0; i < n; i++)
            jobs[i].seq->draft->n_ids = 0;
    return clock_now_ns() - begin;
}

void draft_model_set_always(struct draft_model *dm)
{
    dm->always = true;
}

void draft_model_forget(void *ctx, uint32_t block)
{
    struct draft_model *dm = ctx;
    dm->whole[block] = 0;
    if (dm->states)
        draft_states_forget(dm->states, block);
}

int draft_model_health(const struct draft_model *dm, struct error *err)
{
    if (dm->failure.status)
        *err = dm->failure;
    return dm->failure.status;
}

uint64_t draft_model_graphs_taken(const struct draft_model *dm)
{
    return executor_graphs_taken(dm->executor);
}

uint64_t draft_model_progress_counter(const struct draft_model *dm)
{
    return executor_progress_counter(dm->executor);
}

void draft_model_get_stats(const struct draft_model *dm, struct draft_model_stats *out_stats)
{
    *out_stats = dm->stats;
}
