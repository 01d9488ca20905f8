/* update_rules.h: the next move of a rolling update, a pure function of recorded and observed
 * state. The caller (update.c) collects the facts and carries out the move. Any thread; no state.
 *
 *   LOAD ─all ready→ SHIFT ─step after step→ DRAIN ─old gone→ END
 *     └── failed, cancelled ──┴─ gate, lost → ROLL_BACK ─new gone→ END */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "manager/base/pb.h"

enum {
    UPDATE_MIN_ANSWERS = 20,
    UPDATE_WAIT_STEPS = 4,  /* a step with too few answers lasts up to this many times longer */
    UPDATE_MAX_BOUNDS = 48, /* buckets of the workers' histogram of times to the first token */
};

/* Totals over a version's workers, or the counts of one step. */
struct update_counts {
    uint64_t n_ok, n_failed;
    uint64_t n_live;                /* requests running now; not a total */
    uint64_t n_queued, n_prefilled; /* number of samples in the two sums */
    double queue_s, prefill_s;
    /* Times to the first token. n_bounds 0: a worker reported no histogram, or the workers'
     * bounds differ. */
    uint32_t n_bounds;
    double bounds_s[UPDATE_MAX_BOUNDS];
    uint64_t n_first[UPDATE_MAX_BOUNDS + 1]; /* count per bucket; the last bucket has no upper
                                              * bound */
};

struct update_facts {
    enum update_phase phase;
    const pb_gates *gates;
    uint32_t n_new, n_ready; /* replicas of the new version; ready ones that are not stalled */
    uint32_t n_failed;       /* failed, or on quarantined devices */
    bool restarted;          /* a replica's process was replaced since traffic began to move */
    uint32_t n_leaving;      /* replicas of the retired version that have not stopped */
    uint32_t step, n_steps;
    bool measured; /* the counts of the step cover the last `held_ns` */
    int64_t held_ns, step_ns;
    struct update_counts new_counts, old_counts; /* in this step */
};

enum update_move {
    UPDATE_STAY,
    UPDATE_BEGIN_SHIFT, /* move traffic to the first step */
    UPDATE_NEXT_STEP,
    UPDATE_RETIRE_OLD,
    UPDATE_GO_BACK,
    UPDATE_SETTLE,
};

struct update_decision {
    enum update_move move;
    enum reason reason; /* GO_BACK */
    char message[192];  /* the reason, for people */
    bool unmeasured;    /* NEXT_STEP, RETIRE_OLD: there were too few answers; message has the
                         * figures */
};

void update_decide(const struct update_facts *facts, struct update_decision *out);

/* Milliseconds to the first token at the gates' quantile. The mean where the quantile is 0 or
 * the workers report no histogram; 0: no request has had a token. */
double update_ttft_ms(const struct update_counts *counts, const pb_gates *gates);
struct update_counts update_counts_since(const struct update_counts *now,
                                         const struct update_counts *then);

/* A gate that is set. */
enum update_gate {
    UPDATE_GATE_ERROR_RATE = 1,
    UPDATE_GATE_TTFT_MS = 2,
    UPDATE_GATE_TTFT_RATIO = 4,
};

uint64_t update_wanted_answers(const pb_gates *gates);
/* Bits of the set gates that have too few answers in a step with these counts. */
unsigned update_unmeasured_gates(const pb_gates *gates, const struct update_counts *new_counts,
                                 const struct update_counts *old_counts);

/* Weight of a version in a step of `percent`. `base` is the rule before the update; its weights
 * are multiplied by 100, so that percents are whole numbers. */
uint32_t update_weight(const pb_traffic *base, const char *version, const char *from,
                       const char *to, uint32_t percent);
