#include "engine/engine_cost.h"

#include <math.h>
#include <stdbool.h>

/* The time of a stage, and its parts. */
struct times {
    double sum, slowest; /* the stages with their hops */
    double wire;         /* the part of `sum` in collectives and hops */
};

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double quotient(double n_bytes, double bytes_s)
{
    return n_bytes > 0 && bytes_s > 0 ? n_bytes / bytes_s : 0;
}

/* Bytes that a step of n_rows reads; n_seqs of the rows decode. */
static double read_bytes(const struct engine_cost_split *split, const struct engine_cost_rank *rank,
                         double n_rows, double n_seqs, double depth)
{
    double n = rank->dense_bytes;
    if (split->experts_used > 0)
        n += rank->expert_bytes * (1 - pow(1 - split->experts_used, n_rows));
    double window = smaller(depth, split->window_tokens);
    return n + n_seqs * (rank->kv_bytes * depth + rank->window_bytes * window + rank->state_bytes);
}

static double sums_s(const struct engine_cost_split *split, const struct engine_cost_device *device,
                     const struct engine_cost_rank *rank, double n_rows)
{
    double n = split->tp;
    if (split->tp < 2 || rank->n_collectives <= 0)
        return 0;
    double message =
        quotient(rank->wire_bytes * n_rows / rank->n_collectives, device->link_bytes_s);
    double push = device->latency_s + (n - 1) * message;
    double halves = 2 * device->latency_s + 2 * (n - 1) / n * message;
    return rank->n_collectives * smaller(push, halves);
}

static double hop_s(const struct engine_cost_split *split, const struct engine_cost_device *device,
                    double n_rows)
{
    return device->hop_latency_s + quotient(split->hidden_bytes * n_rows, device->hop_bytes_s);
}

/* The times of a step of n_rows on all stages, of which n_busy work at once. */
static struct times step_times(const struct engine_cost_split *split,
                               const struct engine_cost_device *device, double n_rows,
                               double n_seqs, double depth, double n_busy)
{
    struct times out = {0};
    double read_s = device->read_bytes_s;
    if (device->shared_bytes_s > 0)
        read_s = smaller(read_s, device->shared_bytes_s / (split->tp * n_busy));
    for (uint32_t s = 0; s < split->n_stages; s++) {
        double stage = 0, wire = 0;
        for (uint32_t i = 0; i < split->tp; i++) {
            const struct engine_cost_rank *rank = &split->ranks[s * split->tp + i];
            double reads = quotient(read_bytes(split, rank, n_rows, n_seqs, depth), read_s);
            double computes = quotient(2 * rank->multiplications * n_rows, device->ops_s);
            double sums = sums_s(split, device, rank, n_rows);
            stage = larger(stage, larger(reads, computes) + sums);
            wire = larger(wire, sums);
        }
        double hop = s ? hop_s(split, device, n_rows) : 0;
        out.sum += stage + hop;
        out.wire += wire + hop;
        out.slowest = larger(out.slowest, stage + hop);
    }
    return out;
}

/* Seconds until all n_seqs sequences have one more token. */
static double decode_s(const struct engine_cost_split *split,
                       const struct engine_cost_device *device, const struct engine_cost_use *use,
                       double n_seqs)
{
    double k = use->in_flight > 1 ? use->in_flight : 1;
    k = smaller(k, smaller(split->n_stages, larger(n_seqs, 1)));
    double rows = n_seqs / k;
    struct times t = step_times(split, device, rows, rows, use->depth_tokens, k);
    return device->step_s + larger(t.sum, k * t.slowest);
}

double engine_cost_wire(const struct engine_cost_split *split, uint32_t rank)
{
    bool hops = rank / split->tp + 1 < split->n_stages;
    return split->ranks[rank].wire_bytes * (split->tp - 1) + (hops ? split->hidden_bytes : 0);
}

void engine_cost_predict(const struct engine_cost_split *split,
                         const struct engine_cost_device *device, const struct engine_cost_use *use,
                         struct engine_cost *out)
{
    double n_parts = use->n_parts > 1 ? use->n_parts : 1;
    double alone = decode_s(split, device, use, 1), all = decode_s(split, device, use, use->n_seqs);
    struct times one = step_times(split, device, 1, 1, use->depth_tokens, 1);
    struct times part = step_times(split, device, use->prompt_rows / n_parts, 0, 0,
                                   smaller(n_parts, split->n_stages));
    double prompt = device->step_s + part.sum + (n_parts - 1) * part.slowest;
    *out = (struct engine_cost){
        .alone_tokens_s = quotient(1, alone),
        .tokens_s = quotient(use->n_seqs, all),
        .prompt_tokens_s = quotient(use->prompt_rows, prompt),
        .bubble = prompt > 0 ? 1 - n_parts * part.sum / (split->n_stages * prompt) : 0,
        .sums_share = quotient(one.wire, alone),
    };
    for (uint32_t r = 0; r < split->n_stages * split->tp; r++)
        out->wire_token_bytes = larger(out->wire_token_bytes, engine_cost_wire(split, r));
}
