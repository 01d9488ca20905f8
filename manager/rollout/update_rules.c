#include "manager/rollout/update_rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/format.h"
#include "manager/rollout/traffic.h"

static const double default_quantile = 0.9;

/* Interpolates within the bucket, as if its values were spread evenly. Beyond the last bound:
 * that bound. */
static double quantile_ms(const struct update_counts *counts, uint64_t n, double quantile)
{
    double rank = quantile * (double)n, below = 0;
    uint32_t i = 0;
    while (i < counts->n_bounds && below + (double)counts->n_first[i] < rank)
        below += (double)counts->n_first[i++];
    if (i == counts->n_bounds)
        return 1e3 * counts->bounds_s[i - 1];
    double low = i ? counts->bounds_s[i - 1] : 0, wide = counts->bounds_s[i] - low;
    return 1e3 *
           (low + (counts->n_first[i] ? wide * (rank - below) / (double)counts->n_first[i] : wide));
}

double update_ttft_ms(const struct update_counts *counts, const pb_gates *gates)
{
    double quantile = gates->has_ttft_quantile ? gates->ttft_quantile : default_quantile;
    uint64_t n = 0;
    for (uint32_t i = 0; counts->n_bounds && i <= counts->n_bounds; i++)
        n += counts->n_first[i];
    if (n && quantile > 0)
        return quantile_ms(counts, n, quantile);
    double queue = counts->n_queued ? counts->queue_s / (double)counts->n_queued : 0;
    return counts->n_prefilled ? 1e3 * (queue + counts->prefill_s / (double)counts->n_prefilled)
                               : 0;
}

struct update_counts update_counts_since(const struct update_counts *now,
                                         const struct update_counts *then)
{
    struct update_counts since = {
        .n_ok = now->n_ok - then->n_ok,
        .n_failed = now->n_failed - then->n_failed,
        .n_live = now->n_live,
        .n_queued = now->n_queued - then->n_queued,
        .n_prefilled = now->n_prefilled - then->n_prefilled,
        .queue_s = now->queue_s - then->queue_s,
        .prefill_s = now->prefill_s - then->prefill_s,
    };
    size_t n_bytes = now->n_bounds * sizeof(now->bounds_s[0]);
    /* A version without a worker had no bounds then, and counted nothing. */
    if (then->n_bounds
            ? then->n_bounds != now->n_bounds || memcmp(then->bounds_s, now->bounds_s, n_bytes) != 0
            : then->n_prefilled != 0)
        return since;
    since.n_bounds = now->n_bounds;
    memcpy(since.bounds_s, now->bounds_s, n_bytes);
    for (uint32_t i = 0; now->n_bounds && i <= now->n_bounds; i++)
        since.n_first[i] = now->n_first[i] - then->n_first[i];
    return since;
}

uint32_t update_weight(const pb_traffic *base, const char *version, const char *from,
                       const char *to, uint32_t percent)
{
    uint32_t of_from = traffic_weight(base, from);
    if (strcmp(version, from) == 0)
        return of_from * (100 - percent);
    return traffic_weight(base, version) * 100 + (strcmp(version, to) == 0 ? of_from * percent : 0);
}

__attribute__((format(printf, 3, 4))) static void
go_back(struct update_decision *out, enum reason reason, const char *format, ...)
{
    va_list args;
    out->move = UPDATE_GO_BACK;
    out->reason = reason;
    va_start(args, format);
    vsnprintf(out->message, sizeof(out->message), format, args);
    va_end(args);
}

uint64_t update_wanted_answers(const pb_gates *gates)
{
    return gates->has_min_answers ? gates->min_answers : UPDATE_MIN_ANSWERS;
}

unsigned update_unmeasured_gates(const pb_gates *gates, const struct update_counts *new_counts,
                                 const struct update_counts *old_counts)
{
    uint64_t n_ended = new_counts->n_ok + new_counts->n_failed;
    uint64_t least = update_wanted_answers(gates);
    bool answered = n_ended && n_ended >= least;
    bool timed = answered && update_ttft_ms(new_counts, gates) > 0;
    bool compared =
        timed && old_counts->n_prefilled >= least && update_ttft_ms(old_counts, gates) > 0;
    return (gates->has_max_error_rate && !answered ? UPDATE_GATE_ERROR_RATE : 0U) |
           (gates->has_max_ttft_ms && !timed ? UPDATE_GATE_TTFT_MS : 0U) |
           (gates->has_max_ttft_ratio && !compared ? UPDATE_GATE_TTFT_RATIO : 0U);
}

static void check_gates(const struct update_facts *facts, struct update_decision *out)
{
    const pb_gates *gates = facts->gates;
    const struct update_counts *new_counts = &facts->new_counts, *old_counts = &facts->old_counts;
    uint64_t least = update_wanted_answers(gates);
    uint64_t n_ended = new_counts->n_ok + new_counts->n_failed;
    char now[32], before[32];
    double ttft_ms = update_ttft_ms(new_counts, gates), old_ms = update_ttft_ms(old_counts, gates);
    if (n_ended < least || !n_ended)
        return;
    double rate = (double)new_counts->n_failed / (double)n_ended;
    if (gates->has_max_error_rate && rate > gates->max_error_rate)
        go_back(out, REASON_ERROR_RATE,
                "%" PRIu64 " of %" PRIu64 " answers of the new version failed (%.3g), limit %.3g",
                new_counts->n_failed, n_ended, rate, gates->max_error_rate);
    else if (gates->has_max_ttft_ms && ttft_ms > gates->max_ttft_ms)
        go_back(out, REASON_TTFT, "the new version's first token takes %s, limit %s",
                format_latency(ttft_ms, now), format_latency(gates->max_ttft_ms, before));
    else if (gates->has_max_ttft_ratio && old_counts->n_prefilled >= least && old_ms > 0 &&
             ttft_ms > gates->max_ttft_ratio * old_ms)
        go_back(out, REASON_TTFT,
                "the new version's first token takes %s, the old one's %s, limit %.3g times that",
                format_latency(ttft_ms, now), format_latency(old_ms, before),
                gates->max_ttft_ratio);
}

static bool is_silent(const struct update_counts *counts)
{
    return !counts->n_ok && !counts->n_failed && !counts->n_queued && !counts->n_prefilled &&
           !counts->n_live;
}

/* No request came to either version in the step, and none runs: a longer wait brings no answers.
 * With max_wait_ms or require_answers set, the update waits for requests. */
static bool has_no_traffic(const struct update_facts *facts)
{
    return !facts->gates->has_max_wait_ms && !facts->gates->require_answers &&
           is_silent(&facts->new_counts) && is_silent(&facts->old_counts);
}

/* True where the step may end. False: its gates have too few answers so far. */
static bool step_is_over(const struct update_facts *facts, struct update_decision *out)
{
    const pb_gates *gates = facts->gates;
    uint64_t n_ended = facts->new_counts.n_ok + facts->new_counts.n_failed;
    bool gated = gates->has_max_error_rate || gates->has_max_ttft_ms || gates->has_max_ttft_ratio;
    int64_t wait_ns = gates->has_max_wait_ms ? (int64_t)gates->max_wait_ms * NS_PER_MS
                                             : UPDATE_WAIT_STEPS * facts->step_ns;
    if (!gated || n_ended >= update_wanted_answers(gates))
        return true;
    if (has_no_traffic(facts)) {
        out->unmeasured = true;
        snprintf(out->message, sizeof(out->message),
                 "no request came in %.3g s: the update continued without a check of its gates",
                 (double)facts->held_ns / NS_PER_S);
        return true;
    }
    if (facts->held_ns < facts->step_ns + wait_ns)
        return false;
    if (gates->require_answers) {
        go_back(out, REASON_TOO_FEW_ANSWERS,
                "%" PRIu64 " answers of the new version in %.3g s, %" PRIu64
                " are needed for its gates",
                n_ended, (double)facts->held_ns / NS_PER_S, update_wanted_answers(gates));
        return false;
    }
    out->unmeasured = true;
    snprintf(out->message, sizeof(out->message),
             "%" PRIu64 " answers of the new version in %.3g s where %" PRIu64
             " were needed: the update continued without a check of some gates",
             n_ended, (double)facts->held_ns / NS_PER_S, update_wanted_answers(gates));
    return true;
}

static void decide_shift(const struct update_facts *facts, struct update_decision *out)
{
    if (facts->n_failed || facts->restarted || facts->n_ready < facts->n_new) {
        go_back(out, REASON_REPLICA_LOST,
                "a replica of the new version was lost while traffic moved");
        return;
    }
    if (!facts->measured)
        return;
    check_gates(facts, out);
    if (out->move == UPDATE_STAY && facts->held_ns >= facts->step_ns && step_is_over(facts, out))
        out->move = facts->step + 1 < facts->n_steps ? UPDATE_NEXT_STEP : UPDATE_RETIRE_OLD;
}

void update_decide(const struct update_facts *facts, struct update_decision *out)
{
    *out = (struct update_decision){.move = UPDATE_STAY};
    switch (facts->phase) {
    case UPDATE_LOAD:
        if (facts->n_failed)
            go_back(out, REASON_REPLICA_FAILED, "the new version could not be loaded");
        else if (facts->n_ready >= facts->n_new)
            out->move = UPDATE_BEGIN_SHIFT;
        break;
    case UPDATE_SHIFT:
        decide_shift(facts, out);
        break;
    case UPDATE_DRAIN:
    case UPDATE_ROLL_BACK:
        if (!facts->n_leaving)
            out->move = UPDATE_SETTLE;
        break;
    case UPDATE_END:
        break;
    }
}
