/* Steps in flight: scheduled, and not yet committed. A device with several stages works on several
 * steps at once. Steps are committed in the order in which they were scheduled.
 *
 * A sequence with rows in flight is neither scheduled again nor preempted. Its slot and blocks stay
 * until the commit. A step takes its share of the decoding sequences and leaves the rest to the
 * next. So each stage finds a step to work on. */
#include <assert.h>
#include <stdlib.h>

#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

static bool open_flight(const struct scheduler_config *cfg, struct scheduler_flight *flight)
{
    size_t n_samples = (size_t)cfg->max_seqs + cfg->n_score_rows + cfg->n_draft_rows;
    flight->samples = calloc(n_samples, sizeof(struct sequence *));
    flight->scored = calloc(n_samples, sizeof(*flight->scored));
    flight->scheduled = calloc(cfg->max_seqs, sizeof(struct sequence *));
    flight->state_writes = calloc(cfg->max_rows, sizeof(*flight->state_writes));
    return flight->samples && flight->scored && flight->scheduled && flight->state_writes;
}

bool scheduler_flights_open(struct scheduler *sched)
{
    bool ok = true;
    sched->flights = calloc(sched->cfg.max_flights, sizeof(*sched->flights));
    for (uint32_t i = 0; ok && sched->flights && i < sched->cfg.max_flights; i++)
        ok = open_flight(&sched->cfg, &sched->flights[i]);
    sched->flight = sched->flights;
    return ok && sched->flights;
}

void scheduler_flights_close(struct scheduler *sched)
{
    for (uint32_t i = 0; sched->flights && i < sched->cfg.max_flights; i++) {
        free(sched->flights[i].samples);
        free(sched->flights[i].scored);
        free(sched->flights[i].scheduled);
        free(sched->flights[i].state_writes);
    }
    free(sched->flights);
}

static struct scheduler_flight *oldest(const struct scheduler *sched)
{
    return &sched->flights[sched->first_flight];
}

bool scheduler_is_in_flight(const struct request *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].state != SEQUENCE_ENDED && r->choices[i].n_rows)
            return true;
    return false;
}

/* --- scheduling --- */

void scheduler_flights_begin(struct scheduler *sched)
{
    assert(sched->n_flights < sched->cfg.max_flights);
    sched->flight =
        &sched->flights[(sched->first_flight + sched->n_flights) % sched->cfg.max_flights];
    sched->flight->n_scheduled = sched->flight->n_state_writes = 0;
    sched->n_others = 0;
    for (uint32_t i = 0; sched->n_flights && i < sched->n_running; i++)
        sched->n_others += sched->running[i]->n_rows && sched->running[i]->samples;
}

uint32_t scheduler_flights_share(const struct scheduler *sched, uint32_t n)
{
    uint32_t most = sched->cfg.max_flights;
    return (n + sched->n_others + most - 1) / most;
}

/* --- the end of a step --- */

/* The leader has computed the prompt: the choices that wait for it share its blocks. A choice whose
 * length asks for longrope's other table gives them back before its first step. */
static void fork_choices(struct scheduler *sched, const struct sequence *leader)
{
    struct request *r = leader->request;
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].state == SEQUENCE_FORKING) {
            scheduler_blocks_fork(sched, leader, &r->choices[i]);
            r->choices[i].state = SEQUENCE_RUNNING;
        }
}

uint32_t scheduler_take(struct scheduler *sched, uint32_t i, const struct sample_result *result)
{
    const struct scheduler_flight *flight = oldest(sched);
    struct sequence *seq = flight->samples[i];
    if (result->status || flight->scored[i])
        return 0;
    sequence_append(seq, result->id);
    if (seq->n_accepted == seq->n_drafts || seq->draft->ids[seq->n_accepted] != result->id)
        return 0;
    return seq->i_draft + seq->n_accepted++;
}

void scheduler_commit(struct scheduler *sched)
{
    struct scheduler_flight *flight = oldest(sched);
    assert(sched->n_flights);
    for (uint32_t i = 0; i < flight->n_scheduled; i++) {
        struct sequence *seq = flight->scheduled[i];
        seq->n_computed += seq->n_rows + seq->n_accepted;
        scheduler_batch_charge(sched, seq, seq->n_computed - seq->n_accepted, seq->n_computed);
        if (seq->n_drafts > seq->n_accepted)
            scheduler_blocks_trim(
                sched, seq, (seq->n_computed + sched->cfg.block_size - 1) / sched->cfg.block_size);
        seq->n_rows = seq->n_drafts = seq->n_accepted = 0;
        scheduler_blocks_record(sched, seq);
        scheduler_states_commit(sched, flight, seq);
        if (seq->choice == seq->request->leader && seq->n_computed >= seq->request->n_prompt)
            fork_choices(sched, seq);
        scheduler_windows_pass(sched, seq);
    }
    flight->n_scheduled = 0;
    sched->done = flight->shape;
    sched->first_flight = (sched->first_flight + 1) % sched->cfg.max_flights;
    sched->n_flights--;
}
