/* update_rules.h: what a rolling update does next, as a pure function of what is recorded and seen.
 * update.c looks, asks and carries out. Any thread; no state.
 *
 *   LOAD ─all ready→ SHIFT ─step after step→ DRAIN ─old gone→ END
 *     └── failed, cancelled ──┴─ gate, lost → ROLL_BACK ─new gone→ END */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

enum {
    UPDATE_MIN_ANSWERS = 20,
    UPDATE_WAIT_STEPS = 4,  /* a step with too few answers is held so many times its length */
    UPDATE_MAX_BOUNDS = 48, /* of the workers' histogram of times to the first token */
};

/* Totals of a version's workers, or what came to them in a step. */
struct update_counts {
    uint64_t n_ok, n_failed;
    uint64_t n_live;                /* requests on the workers now; no total */
    uint64_t n_queued, n_prefilled; /* observations of the two sums */
    double queue_s, prefill_s;
    /* Times to the first token; n_bounds 0: a worker told of none, or theirs do not fit together.
     */
    uint32_t n_bounds;
    double bounds_s[UPDATE_MAX_BOUNDS];
    uint64_t n_first[UPDATE_MAX_BOUNDS + 1]; /* in each bucket; the last has no bound */
};

struct update_look {
    enum update_phase phase;
    const pb_gates *gates;
    uint32_t n_new, n_ready; /* of the new version; ready: and does not stand still */
    uint32_t n_failed;       /* past hope: failed, or its devices are put aside */
    bool restarted;          /* one of them is another process than when traffic began to move */
    uint32_t n_leaving;      /* replicas of the version that goes which have not stopped */
    uint32_t step, n_steps;
    bool measured; /* the step's figures count from `held_ns` ago */
    int64_t held_ns, step_ns;
    struct update_counts new_counts, old_counts; /* in this step */
};

enum update_move {
    UPDATE_STAY,
    UPDATE_BEGIN_SHIFT, /* to the first step */
    UPDATE_NEXT_STEP,
    UPDATE_RETIRE_OLD,
    UPDATE_GO_BACK,
    UPDATE_SETTLE,
};

struct update_decision {
    enum update_move move;
    const char *reason; /* GO_BACK: UPPER_SNAKE, static */
    char message[192];  /* and for people */
    bool unmeasured;    /* NEXT_STEP, RETIRE_OLD: there were too few answers, as message says */
};

void update_decide(const struct update_look *look, struct update_decision *out);

/* Milliseconds to the first token at the gates' quantile, the mean where that is 0 or the workers
 * do not tell more; 0: no request has got one. */
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
/* Bits of the gates that are set and have too little to look at in a step with these figures. */
unsigned update_unmeasured_gates(const pb_gates *gates, const struct update_counts *new_counts,
                                 const struct update_counts *old_counts);

/* The weight of a version in a step of `percent`: `base` is the rule before, whose weights count a
 * hundredfold so that percents of them are whole. */
uint32_t update_weight(const pb_traffic *base, const char *version, const char *from,
                       const char *to, uint32_t percent);
