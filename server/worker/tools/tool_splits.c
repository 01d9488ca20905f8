#include "server/worker/tools/tool_splits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "base/system/memory_limit.h"
#include "engine/engine_splits.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/kv_size.h"
#include "server/worker/place/place.h"

enum { MOST_GROUPS = 16 };

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "plan: out of memory");
}

/* Settings of a GPU on this machine say nothing about described devices. */
static int check_settings(const struct engine_config *cfg, const struct settings *settings,
                          struct error *err)
{
    const char *flag = cfg->executor.store != WEIGHT_STORE_SOURCE ? "weight_format"
                       : cfg->executor.gpu_memory_bytes           ? "gpu_memory"
                       : settings->config.has_gpu_layers          ? "gpu_layers"
                       : settings->config.kv_bytes                ? "kv_bytes"
                                                                  : NULL;
    if (!flag)
        return 0;
    return error_field(err, flag,
                       "a plan for described groups cannot use this setting; leave it out (memory "
                       "is a part of the description, and kv_tokens sizes the KV cache)");
}

/* --- messages --- */

Sluice__V1__Prediction *tool_splits_prediction(struct arena *arena, const char *kind,
                                               const struct engine_cost *cost, double tokens_s,
                                               uint32_t n_requests, uint32_t depth_tokens)
{
    Sluice__V1__Prediction *out = arena_alloc(arena, sizeof(*out));
    if (!out)
        return NULL;
    sluice__v1__prediction__init(out);
    out->kind = message_text(arena, kind);
    out->tokens_per_second_alone = cost->alone_tokens_s;
    out->tokens_per_second = tokens_s;
    out->prompt_tokens_per_second = cost->prompt_tokens_s;
    out->n_requests = n_requests;
    out->depth_tokens = depth_tokens;
    out->bubble = cost->bubble;
    out->wire_share = cost->sums_share;
    return out;
}

static int add_ranks(const struct engine_split *split, const struct device_spec *group,
                     struct arena *arena, Sluice__V1__SplitPlan *out, struct error *err)
{
    const struct executor_plan *plan = &split->plan;
    Sluice__V1__DevicePlan *rows = arena_calloc(arena, plan->n_ranks, sizeof(*rows));
    out->ranks = arena_calloc(arena, plan->n_ranks, sizeof(*out->ranks));
    if (!rows || !out->ranks)
        return out_of_memory(err);
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const struct executor_rank *rank = &plan->ranks[r];
        const struct engine_cost_rank *cost = &plan->cost.ranks[r];
        struct executor_device sizes = {
            .kv_block_bytes = (uint64_t)cost->kv_bytes * plan->block_size,
            .window_block_bytes = (uint64_t)cost->window_bytes * plan->block_size};
        sluice__v1__device_plan__init(&rows[r]);
        rows[r].device = message_text(arena, group->kind);
        rows[r].rank = r;
        rows[r].stage = rank->stage;
        rows[r].first_layer = rank->layer_begin;
        rows[r].n_layers = rank->n_layers;
        rows[r].weight_bytes = rank->weights_bytes;
        rows[r].kv_bytes = engine_splits_kv_bytes(plan, &sizes, split->kv_tokens);
        rows[r].state_bytes = rank->state_bytes;
        rows[r].workspace_bytes = rank->workspace_bytes;
        rows[r].wire_token_bytes = (uint64_t)engine_cost_wire(&plan->cost, r);
        out->ranks[out->n_ranks++] = &rows[r];
    }
    return 0;
}

static int add_split(const struct settings *settings, const struct engine_split *split,
                     const struct device_spec *group, struct arena *arena,
                     Sluice__V1__SplitPlan *out, struct error *err)
{
    const struct executor_plan *plan = &split->plan;
    sluice__v1__split_plan__init(out);
    out->tp = split->tp;
    out->pp = split->pp;
    if (split->refusal.status) {
        out->refusal = message_text(arena, split->refusal.message);
        return 0;
    }
    if (split->not_built.status)
        out->not_supported = message_text(arena, split->not_built.message);
    out->n_replicas = split->n_replicas;
    out->fits = split->fits;
    out->missing_bytes = split->missing_bytes;
    out->n_kv_tokens = split->kv_tokens;
    out->kv_token_bytes = (plan->kv_block_bytes + plan->window_block_bytes) / plan->block_size;
    out->kv_copies = split->kv_copies;
    out->prediction = tool_splits_prediction(arena, group->kind, &split->cost, split->tokens_s,
                                             split->n_at_once, (uint32_t)settings->group_depth);
    return out->prediction ? add_ranks(split, group, arena, out, err) : out_of_memory(err);
}

static int add_group(const struct settings *settings, const struct engine_splits *splits,
                     const struct device_spec *group, struct arena *arena,
                     Sluice__V1__GroupPlan *out, struct error *err)
{
    Sluice__V1__SplitPlan *rows = arena_calloc(arena, splits->n, sizeof(*rows));
    sluice__v1__group_plan__init(out);
    out->splits = arena_calloc(arena, splits->n, sizeof(*out->splits));
    if (!rows || !out->splits)
        return out_of_memory(err);
    out->group = message_text(arena, group->name);
    out->kind = message_text(arena, group->kind);
    out->n_machines = group->n_machines;
    out->n_devices = group->n_devices;
    out->memory_bytes = (uint64_t)group->memory_bytes;
    out->read_bytes_per_second = group->read_bytes_s;
    out->operations_per_second = group->ops_s;
    out->link_bytes_per_second = group->link_bytes_s;
    out->latency_us = group->latency_s * 1e6;
    for (uint32_t i = 0; i < splits->n; i++) {
        int rc = add_split(settings, &splits->rows[i], group, arena, &rows[i], err);
        if (rc)
            return rc;
        rows[i].recommended = i == splits->best;
        out->splits[out->n_splits++] = &rows[i];
    }
    return 0;
}

/* --- groups --- */

/* Completes a description of this machine's CPU. */
static void describe_machine(const struct settings *settings, struct device_spec *group)
{
    struct memory_limit limit;
    if (!group->is_gpu && !group->n_devices)
        group->n_devices = (uint32_t)cpu_count();
    if (!group->is_gpu && group->memory_bytes <= 0)
        group->memory_bytes = (double)kv_size_available(settings, &limit);
}

static int plan_group(const struct settings *settings, const struct engine_config *cfg,
                      struct checkpoint *ckpt, const struct device_spec *group, struct arena *arena,
                      Sluice__V1__GroupPlan *out, struct error *err)
{
    const struct engine_splits_use use = {.tp = (uint32_t)settings->group_tp,
                                          .pp = (uint32_t)settings->group_pp,
                                          .n_requests = (uint32_t)settings->group_requests,
                                          .depth_tokens = (uint32_t)settings->group_depth};
    struct engine_splits splits;
    int rc = engine_splits_make(cfg, ckpt, group, &use, &splits, err);
    if (!rc && !splits.n)
        rc = error_field(err, use.tp ? "tp" : "pp",
                         "%u does not divide the %u devices of group %s evenly; give both tp and "
                         "pp, or neither",
                         use.tp ? use.tp : use.pp, group->n_devices * group->n_machines,
                         group->name);
    if (!rc)
        rc = add_group(settings, &splits, group, arena, out, err);
    engine_splits_fini(&splits);
    return rc;
}

int tool_splits_make(const struct settings *settings, struct checkpoint *ckpt, struct arena *arena,
                     Sluice__V1__Plan *plan, struct error *err)
{
    struct engine_config cfg;
    Sluice__V1__GroupPlan *rows = arena_calloc(arena, MOST_GROUPS, sizeof(*rows));
    plan->groups = arena_calloc(arena, MOST_GROUPS, sizeof(*plan->groups));
    int rc = rows && plan->groups ? place_engine_config(settings, &cfg, err) : out_of_memory(err);
    if (!rc)
        rc = check_settings(&cfg, settings, err);
    if (rc)
        return rc;
    cfg.executor.max_rows = cfg.max_batch_tokens;
    cfg.executor.max_seqs = cfg.max_concurrent;
    for (const char *at = settings->groups; !rc && *at;) {
        struct device_spec group;
        size_t n = strcspn(at, ",");
        if (plan->n_groups == MOST_GROUPS)
            return error_field(err, "groups", "more than %d groups", MOST_GROUPS);
        rc = device_spec_parse(at, n, &group, err);
        if (rc)
            break;
        describe_machine(settings, &group);
        Sluice__V1__GroupPlan *row = &rows[plan->n_groups];
        plan->groups[plan->n_groups++] = row;
        rc = plan_group(settings, &cfg, ckpt, &group, arena, row, err);
        at += n + (at[n] == ',');
    }
    return rc;
}
