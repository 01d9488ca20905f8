#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/strbuf.h"
#include "base/system/cpu.h"
#include "base/system/memory_limit.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/engine_splits.h"
#include "engine/engine_stats.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/kv_size.h"
#include "server/worker/place/place.h"
#include "server/worker/tools/tool.h"
#include "server/worker/tools/tool_splits.h"

/* The number of notes that add_notes may write. */
enum { MAX_NOTES = 9 };

/* The prediction of a plan assumes so many requests at once, and context tokens of each. */
enum { PREDICTED_REQUESTS = 32, PREDICTED_DEPTH = 1024 };

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "plan: out of memory");
}

/* Memory that ranks share, and that of the draft model: a part of the first rank's row. */
static struct executor_rank not_in_ranks(const struct executor_plan *sizes)
{
    struct executor_rank rest = {.weights_bytes = sizes->weights_bytes,
                                 .kv_bytes = sizes->kv_bytes,
                                 .state_bytes = sizes->state_bytes,
                                 .workspace_bytes = sizes->workspace_bytes};
    for (uint32_t r = 0; r < sizes->n_ranks; r++) {
        rest.weights_bytes -= sizes->ranks[r].weights_bytes;
        rest.kv_bytes -= sizes->ranks[r].kv_bytes;
        rest.state_bytes -= sizes->ranks[r].state_bytes;
        rest.workspace_bytes -= sizes->ranks[r].workspace_bytes;
    }
    return rest;
}

/* Adds a row for each rank; ranks take the devices in turn. Rows carry the bytes of all
 * replicas. Shared weights count once, and weights in memory already not at all. */
static int add_devices(const struct settings *settings, const struct executor_plan *sizes,
                       struct arena *arena, Sluice__V1__Plan *plan, struct error *err)
{
    uint32_t n_ranks = sizes->n_ranks;
    uint32_t n_copies = settings->weights_held     ? 0
                        : settings->weights_shared ? 1
                                                   : plan->n_replicas;
    struct memory_limit limit;
    uint64_t needed = 0, free_bytes = kv_size_available(settings, &limit);
    const char *names[64];
    size_t n_names = 0;
    for (const char *at = settings->devices; *at && n_names < 64;) {
        size_t n = strcspn(at, ",");
        if (n)
            names[n_names++] = message_text_n(arena, at, n);
        at += n + (at[n] == ',');
    }
    if (!n_names)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--devices: names no device");
    plan->devices = arena_calloc(arena, n_ranks, sizeof(*plan->devices));
    Sluice__V1__DevicePlan *rows = arena_calloc(arena, n_ranks, sizeof(*rows));
    if (!plan->devices || !rows)
        return out_of_memory(err);
    struct executor_rank rest = not_in_ranks(sizes);
    for (uint32_t r = 0; r < n_ranks; r++) {
        const struct executor_rank *rank = &sizes->ranks[r];
        Sluice__V1__DevicePlan *row = &rows[r];
        sluice__v1__device_plan__init(row);
        row->device = message_text(arena, names[r % n_names]);
        row->rank = r;
        row->stage = rank->stage;
        row->first_layer = rank->layer_begin;
        row->n_layers = rank->n_layers;
        row->weight_bytes = rank->weights_bytes * n_copies + rest.weights_bytes * plan->n_replicas;
        row->kv_bytes = (rank->kv_bytes + rest.kv_bytes) * plan->n_replicas;
        row->state_bytes = (rank->state_bytes + rest.state_bytes) * plan->n_replicas;
        row->workspace_bytes = (rank->workspace_bytes + rest.workspace_bytes) * plan->n_replicas;
        row->free_bytes = free_bytes;
        rest = (struct executor_rank){0};
        needed += row->weight_bytes + row->kv_bytes + row->state_bytes + row->workspace_bytes;
        plan->devices[r] = row;
    }
    plan->n_devices = n_ranks;
    plan->fits = needed <= free_bytes;
    rows[0].missing_bytes = plan->fits ? 0 : needed - free_bytes;
    return 0;
}

/* Returns the larger of two shortages. The first: what all replicas lack of the device's free
 * memory. The second, on a GPU: what a single replica lacks of its limit. */
static uint64_t missing_bytes_of(const struct executor_device *d, uint32_t n_replicas,
                                 uint64_t free_bytes)
{
    uint64_t one = d->weights_bytes + d->kv_bytes + d->state_bytes + d->workspace_bytes,
             all = one * n_replicas;
    uint64_t of_free = all > free_bytes ? all - free_bytes : 0;
    uint64_t of_limit = d->is_gpu && one > d->limit_bytes ? one - d->limit_bytes : 0;
    return of_free > of_limit ? of_free : of_limit;
}

/* Called if any device is a GPU. Adds a row for each device, with the device's own figures. */
static int add_gpu_devices(const struct settings *settings, const struct executor_plan *sizes,
                           struct arena *arena, Sluice__V1__Plan *plan)
{
    plan->devices = arena_calloc(arena, EXECUTOR_MAX_DEVICES, sizeof(*plan->devices));
    Sluice__V1__DevicePlan *rows = arena_calloc(arena, EXECUTOR_MAX_DEVICES, sizeof(*rows));
    if (!plan->devices || !rows)
        return STATUS_RESOURCE_EXHAUSTED;
    plan->fits = true;
    for (uint32_t i = 0; i < sizes->n_devices; i++) {
        const struct executor_device *d = &sizes->devices[i];
        Sluice__V1__DevicePlan *row = &rows[i];
        struct memory_limit limit;
        uint64_t available = kv_size_available(settings, &limit);
        sluice__v1__device_plan__init(row);
        row->device = message_text(arena, d->name);
        row->weight_bytes = d->weights_bytes * plan->n_replicas;
        row->kv_bytes = d->kv_bytes * plan->n_replicas;
        row->state_bytes = d->state_bytes * plan->n_replicas;
        row->workspace_bytes = d->workspace_bytes * plan->n_replicas;
        row->free_bytes = d->is_gpu ? d->free_bytes : available;
        row->promised_bytes = d->promised_bytes;
        row->missing_bytes = missing_bytes_of(d, plan->n_replicas, row->free_bytes);
        plan->fits &= !row->missing_bytes;
        plan->devices[plan->n_devices++] = row;
    }
    return 0;
}

/* Returns a note on a limit below the machine's free memory; NULL if there is none. */
static char *note_bound(const struct settings *settings, struct arena *arena)
{
    char left[32], machine[32], most[32], text[192];
    struct memory_limit limit;
    uint64_t available = kv_size_available(settings, &limit);
    if (settings->memory_limit && available == settings->memory_limit)
        snprintf(text, sizeof(text),
                 "the manager's memory_budget leaves %s, of %s that the machine has free",
                 format_bytes(kv_size_budget_left(settings), left),
                 format_bytes(limit.free_bytes, machine));
    else if (limit.group_limit_bytes)
        snprintf(text, sizeof(text),
                 "a memory cgroup of %s leaves %s, of %s that the machine has free",
                 format_bytes(limit.group_limit_bytes, most), format_bytes(limit.free_bytes, left),
                 format_bytes(limit.machine_free_bytes, machine));
    else
        return NULL;
    return message_text(arena, text);
}

static void add_draft_notes(const struct executor_plan *sizes, struct arena *arena,
                            Sluice__V1__Plan *plan, struct strbuf *text)
{
    char size[32];
    if (sizes->draft_bytes) {
        strbuf_clear(text);
        strbuf_printf(
            text,
            "%s of the weights are the draft model's, packed by each replica on its first rank",
            format_bytes(sizes->draft_bytes, size));
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(text));
    }
    if (sizes->draft_state_bytes) {
        strbuf_clear(text);
        strbuf_printf(text, "%s of the states are the draft model's, in %" PRIu32 " slots",
                      format_bytes(sizes->draft_state_bytes, size), sizes->n_draft_slots);
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(text));
    }
}

static int add_notes(const struct settings *settings, const struct model_info *model,
                     const struct executor_plan *sizes, struct arena *arena, Sluice__V1__Plan *plan,
                     struct error *err)
{
    struct strbuf text = {0};
    char size[32];
    plan->notes = arena_calloc(arena, MAX_NOTES, sizeof(*plan->notes));
    if (!plan->notes)
        return out_of_memory(err);
    if (sizes->context_tokens < model->trained_tokens) {
        strbuf_printf(&text, "context length %" PRIu32 ", the model was trained for %" PRIu32,
                      sizes->context_tokens, model->trained_tokens);
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(&text));
    }
    if (settings->config.context_length > model->context_tokens) {
        strbuf_clear(&text);
        strbuf_printf(&text, "context length cut from %" PRIu32 " to %" PRIu32,
                      settings->config.context_length, sizes->context_tokens);
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(&text));
    }
    if (settings->memory_promised) {
        strbuf_clear(&text);
        strbuf_printf(&text,
                      "%s of free memory are promised to other replicas and not counted as free",
                      format_bytes(settings->memory_promised, size));
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(&text));
    }
    const struct executor_device *head = &sizes->devices[sizes->n_devices - 1];
    if (head->promised_bytes) {
        strbuf_clear(&text);
        strbuf_printf(&text,
                      "%s of %s's free memory are promised to other replicas and not counted as "
                      "free",
                      format_bytes(head->promised_bytes, size), head->name);
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(&text));
    }
    if (sizes->n_devices > 1) {
        strbuf_clear(&text);
        strbuf_printf(&text,
                      "%" PRIu32 " of %" PRIu32 " layers on %s, the first %" PRIu32 " on the CPU",
                      sizes->devices[1].n_layers, model->n_layers, sizes->devices[1].name,
                      sizes->devices[0].n_layers);
        plan->notes[plan->n_notes++] = message_text(arena, strbuf_str(&text));
    }
    add_draft_notes(sizes, arena, plan, &text);
    if (!sizes->devices[0].is_gpu && (plan->notes[plan->n_notes] = note_bound(settings, arena)))
        plan->n_notes++;
    if (settings->weights_held)
        plan->notes[plan->n_notes++] =
            message_text(arena, "the weights are in memory already, shared with other replicas");
    strbuf_fini(&text);
    return 0;
}

/* Predicts one replica, on the figures of its kind of device. Nothing is added for a GPU of another
 * kind, or for layers on two devices. */
static int add_prediction(const struct engine_config *cfg, const struct executor_plan *sizes,
                          struct arena *arena, Sluice__V1__Plan *plan, struct error *err)
{
    const struct executor_device *device = &sizes->devices[0];
    const char *kind = device->is_gpu ? device_spec_kind_of(device->product) : "cpu";
    uint32_t n_cores = cfg->executor.n_threads ? cfg->executor.n_threads : (uint32_t)cpu_count();
    uint32_t depth = PREDICTED_DEPTH, n_seqs = (uint32_t)(sizes->kv_tokens / PREDICTED_DEPTH);
    struct device_spec group;
    struct engine_cost cost;
    if (sizes->n_devices > 1 || !kind || device_spec_parse(kind, strlen(kind), &group, err) != 0)
        return 0;
    n_seqs = n_seqs < PREDICTED_REQUESTS ? n_seqs : PREDICTED_REQUESTS;
    n_seqs = n_seqs ? n_seqs : 1;
    engine_splits_predict(sizes, &group, n_cores, cfg, n_seqs, depth, &cost);
    plan->prediction = tool_splits_prediction(arena, kind, &cost, cost.tokens_s, n_seqs, depth);
    for (size_t r = 0; r < plan->n_devices && plan->n_devices == sizes->n_ranks; r++)
        plan->devices[r]->wire_token_bytes = (uint64_t)engine_cost_wire(&sizes->cost, (uint32_t)r);
    return plan->prediction ? 0 : out_of_memory(err);
}

static int make_plan(const struct settings *settings, struct checkpoint *ckpt,
                     const struct model_info *model, struct arena *arena, Sluice__V1__Plan *plan,
                     struct error *err)
{
    struct engine_config cfg;
    struct executor_plan sizes;
    int rc = place_engine_config(settings, &cfg, err);
    if (!rc)
        rc = kv_size_resolve(ckpt, settings, &cfg, err);
    if (!rc)
        rc = engine_plan(&cfg, ckpt, &sizes, err);
    if (rc)
        return rc;
    plan->n_kv_tokens = sizes.kv_tokens;
    plan->kv_token_bytes = sizes.kv_tokens ? sizes.kv_bytes / sizes.kv_tokens : 0;
    if (sizes.n_window_blocks) {
        plan->kv_token_bytes = sizes.kv_block_bytes / sizes.block_size;
        plan->n_window_blocks = sizes.n_window_blocks;
        plan->window_bytes = sizes.n_window_blocks * sizes.window_block_bytes;
        plan->window_tokens = sizes.window_reach;
    }
    plan->n_kv_blocks = sizes.n_blocks;
    plan->n_state_slots = sizes.n_state_slots;
    plan->state_slot_bytes = sizes.state_slot_bytes;
    plan->n_running_states = sizes.n_running_states;
    plan->kv_block_tokens = cfg.executor.kv_block_size;
    plan->packed_bytes = sizes.weights_bytes;
    plan->promised_bytes = settings->memory_promised;
    plan->draft_bytes = sizes.draft_bytes;
    plan->tp = cfg.executor.tp;
    plan->pp = cfg.executor.pp;
    plan->n_replicas = (uint32_t)settings->replicas;
    if (engine_is_on_gpu(&cfg))
        rc = add_gpu_devices(settings, &sizes, arena, plan) ? out_of_memory(err) : 0;
    else
        rc = add_devices(settings, &sizes, arena, plan, err);
    if (!rc)
        rc = add_prediction(&cfg, &sizes, arena, plan, err);
    return rc ? rc : add_notes(settings, model, &sizes, arena, plan, err);
}

/* A load counts the tokens of a folder's tokenizer first. A tokenizer that cannot be read fails
 * the load, not its plan. */
static void count_tokens(struct checkpoint *ckpt, const struct tokenizer *tok)
{
    struct tokenizer *own = NULL;
    struct error ignored;
    if (!tok && strcmp(checkpoint_format(ckpt), "hf") == 0 &&
        tokenizer_open(ckpt, &own, &ignored) == 0)
        tok = own;
    if (tok)
        checkpoint_set_n_tokens(ckpt, tokenizer_info(tok)->vocab_size);
    tokenizer_close(own);
}

int tool_plan_make(const struct settings *settings, struct checkpoint *ckpt,
                   const struct tokenizer *tok, const struct model_info *model, struct arena *arena,
                   Sluice__V1__Plan **out_plan, struct error *err)
{
    Sluice__V1__Plan *plan = arena_alloc(arena, sizeof(*plan));
    if (!plan)
        return out_of_memory(err);
    sluice__v1__plan__init(plan);
    count_tokens(ckpt, tok);
    int rc = *settings->groups ? tool_splits_make(settings, ckpt, arena, plan, err)
                               : make_plan(settings, ckpt, model, arena, plan, err);
    if (!rc)
        *out_plan = plan;
    return rc;
}

int tool_plan(const struct settings *settings, struct arena *arena,
              Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct model_info model;
    int rc = checkpoint_open(settings->model, &ckpt, err);
    if (rc)
        return rc;
    rc = facts_check_digest(ckpt, settings->digest, err);
    if (!rc)
        rc = engine_read_model_info(ckpt, &model, err);
    if (!rc)
        rc = tool_plan_make(settings, ckpt, NULL, &model, arena, &report->plan, err);
    checkpoint_close(ckpt);
    if (!rc)
        report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN;
    return rc;
}
