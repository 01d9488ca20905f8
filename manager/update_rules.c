#include "manager/update_rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "manager/traffic.h"

double update_ttft_ms(const struct update_counts *counts)
{
    double queue = counts->n_queued ? counts->queue_s / (double)counts->n_queued : 0;
    return counts->n_prefilled ? 1e3 * (queue + counts->prefill_s / (double)counts->n_prefilled)
                               : 0;
}

struct update_counts update_counts_since(const struct update_counts *now,
                                         const struct update_counts *then)
{
    return (struct update_counts){
        .n_ok = now->n_ok - then->n_ok,
        .n_failed = now->n_failed - then->n_failed,
        .n_queued = now->n_queued - then->n_queued,
        .n_prefilled = now->n_prefilled - then->n_prefilled,
        .queue_s = now->queue_s - then->queue_s,
        .prefill_s = now->prefill_s - then->prefill_s,
    };
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
go_back(struct update_decision *out, const char *reason, const char *format, ...)
{
    va_list args;
    out->move = UPDATE_GO_BACK;
    out->reason = reason;
    va_start(args, format);
    vsnprintf(out->message, sizeof(out->message), format, args);
    va_end(args);
}

static void check_gates(const struct update_look *look, struct update_decision *out)
{
    const pb_gates *gates = look->gates;
    const struct update_counts *new_counts = &look->new_counts, *old_counts = &look->old_counts;
    uint64_t least = gates->has_min_answers ? gates->min_answers : UPDATE_MIN_ANSWERS;
    uint64_t n_ended = new_counts->n_ok + new_counts->n_failed;
    double ttft_ms = update_ttft_ms(new_counts), old_ms = update_ttft_ms(old_counts);
    if (n_ended < least || !n_ended)
        return;
    double rate = (double)new_counts->n_failed / (double)n_ended;
    if (gates->has_max_error_rate && rate > gates->max_error_rate)
        go_back(out, "ERROR_RATE",
                "%" PRIu64 " of %" PRIu64 " answers of the new version failed (%.3g), limit %.3g",
                new_counts->n_failed, n_ended, rate, gates->max_error_rate);
    else if (gates->has_max_ttft_ms && ttft_ms > gates->max_ttft_ms)
        go_back(out, "TTFT", "the new version's first token takes %.3g ms, limit %.3g ms", ttft_ms,
                gates->max_ttft_ms);
    else if (gates->has_max_ttft_ratio && old_counts->n_prefilled >= least && old_ms > 0 &&
             ttft_ms > gates->max_ttft_ratio * old_ms)
        go_back(out, "TTFT",
                "the new version's first token takes %.3g ms, the old one's %.3g ms, limit %.3g "
                "times that",
                ttft_ms, old_ms, gates->max_ttft_ratio);
}

static void decide_shift(const struct update_look *look, struct update_decision *out)
{
    if (look->n_failed || look->restarted || look->n_ready < look->n_new) {
        go_back(out, "REPLICA_LOST", "a replica of the new version was lost while traffic moved");
        return;
    }
    if (!look->measured)
        return;
    check_gates(look, out);
    if (out->move == UPDATE_STAY && look->held_ns >= look->step_ns)
        out->move = look->step + 1 < look->n_steps ? UPDATE_NEXT_STEP : UPDATE_RETIRE_OLD;
}

void update_decide(const struct update_look *look, struct update_decision *out)
{
    *out = (struct update_decision){.move = UPDATE_STAY};
    switch (look->phase) {
    case UPDATE_LOAD:
        if (look->n_failed)
            go_back(out, "REPLICA_FAILED", "the new version could not be loaded");
        else if (look->n_ready >= look->n_new)
            out->move = UPDATE_BEGIN_SHIFT;
        break;
    case UPDATE_SHIFT:
        decide_shift(look, out);
        break;
    case UPDATE_DRAIN:
    case UPDATE_ROLL_BACK:
        if (!look->n_leaving)
            out->move = UPDATE_SETTLE;
        break;
    case UPDATE_END:
        break;
    }
}
