#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/draft/draft_model_private.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"

enum { PROBE_TOKENS = 1, LONGEST_CHUNK = 256 };

/* The target's config with the given context. All layers are on its first rank, or on the GPU of
 * its head. */
static struct executor_config config_of(const struct executor_config *target,
                                        uint32_t context_tokens)
{
    struct executor_config cfg = *target;
    cfg.tp = cfg.pp = 1;
    cfg.gpu_layers = UINT16_MAX; /* all layers on the GPU of the target's head */
    cfg.max_context_tokens = context_tokens;
    cfg.max_seqs =
        target->max_seqs < DRAFT_MODEL_MAX_SEQS ? target->max_seqs : DRAFT_MODEL_MAX_SEQS;
    cfg.n_score_rows = 0;
    /* a state for each sequence that drafts, and more for drafted tokens and snapshots */
    cfg.state_slots = cfg.max_seqs + DRAFT_MAX_TOKENS;
    cfg.snapshot_bytes = 0;
    cfg.splits_windows = false; /* the draft model reads the target's tables */
    cfg.packed_fds = NULL;
    cfg.other_bytes = cfg.other_graph_bytes = 0;
    return cfg;
}

/* The draft file's context, cut to the target's. */
static int find_context(struct checkpoint *ckpt, const struct executor_config *target,
                        uint32_t most, uint32_t *out_context, struct error *err)
{
    struct executor_config probe = config_of(target, 0);
    struct executor_plan plan;
    probe.kv_tokens = PROBE_TOKENS;
    int rc = executor_plan(ckpt, &probe, &plan, err);
    if (!rc)
        *out_context = plan.context_tokens < most ? plan.context_tokens : most;
    return rc;
}

int draft_model_plan(const char *path, const struct executor_config *target,
                     uint32_t context_tokens, struct executor_plan *out_plan, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    uint32_t context;
    int rc = checkpoint_open(path, &ckpt, err);
    if (!rc)
        rc = find_context(ckpt, target, context_tokens, &context, err);
    if (!rc) {
        struct executor_config cfg = config_of(target, context);
        rc = executor_plan(ckpt, &cfg, out_plan, err);
    }
    checkpoint_close(ckpt);
    return rc ? error_prefix(err, "draft model") : 0;
}

/* Checks that each id in both vocabularies is the same token; unused ids are ignored. An id of one
 * vocabulary alone is never drafted, or ends drafting for its sequence. */
static int check_vocabulary(const struct tokenizer *own, const char *name,
                            const struct tokenizer *target, const char *target_name,
                            struct error *err)
{
    uint32_t n = tokenizer_info(own)->vocab_size, n_target = tokenizer_info(target)->vocab_size;
    for (uint32_t id = 0; id < n && id < n_target; id++) {
        size_t n_a, n_b;
        char text_a[ESCAPE_MAX_BYTES], text_b[ESCAPE_MAX_BYTES];
        const char *a = tokenizer_token_bytes(own, id, &n_a);
        const char *b = tokenizer_token_bytes(target, id, &n_b);
        if (tokenizer_token_kind(own, id) == TOKEN_UNUSED ||
            tokenizer_token_kind(target, id) == TOKEN_UNUSED ||
            (n_a == n_b && memcmp(a, b, n_a) == 0))
            continue;
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "draft model %s (%u tokens) has another vocabulary than %s (%u tokens): "
                  "token %u is \"%s\" in the draft model and \"%s\" in the target",
                  name, n, target_name, n_target, id, escape_text(a, n_a, text_a),
                  escape_text(b, n_b, text_b));
        return error_reason(err, REASON_DRAFT_MISMATCH);
    }
    return 0;
}

static int open_executor(struct draft_model *dm, struct checkpoint *ckpt,
                         const struct executor_config *target_cfg, struct executor *target,
                         struct error *err)
{
    uint32_t n_target = executor_model_info(target)->vocab_size, context;
    int rc = find_context(ckpt, target_cfg, executor_actual(target)->context_tokens, &context, err);
    if (rc)
        return rc;
    struct executor_config cfg = config_of(target_cfg, context);
    cfg.beside = target;
    cfg.n_sampled = n_target;
    rc = executor_open(ckpt, &cfg, NULL, NULL, NULL, &dm->executor, err);
    if (rc)
        return rc;
    dm->vocab_size = executor_model_info(dm->executor)->vocab_size;
    dm->is_narrow = dm->vocab_size < n_target;
    dm->context_tokens = context;
    dm->long_rope_after = executor_model_info(dm->executor)->long_rope_after;
    dm->max_rows = cfg.max_rows;
    dm->chunk = cfg.max_rows < LONGEST_CHUNK ? cfg.max_rows : LONGEST_CHUNK;
    dm->block_size = cfg.kv_block_size;
    struct step_limits limits = {
        .max_rows = cfg.max_rows,
        .max_seqs = cfg.max_seqs,
        .max_blocks_per_seq = context / cfg.kv_block_size + (context % cfg.kv_block_size != 0),
    };
    uint32_t n_slots = executor_actual(dm->executor)->n_state_slots;
    if (n_slots)
        rc = draft_states_create(n_slots, target_cfg->max_seqs, &dm->states, err);
    return rc ? rc : step_batch_create(&limits, &dm->batch, err);
}

static int allocate_blocks(struct draft_model *dm, struct error *err)
{
    uint32_t n = executor_actual(dm->executor)->n_blocks;
    dm->whole = calloc(n, sizeof(*dm->whole));
    dm->writers = calloc(n, sizeof(*dm->writers));
    if (dm->whole && dm->writers)
        return 0;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u blocks", n);
}

int draft_model_open(const char *path, const struct executor_config *cfg, struct executor *target,
                     const struct tokenizer *tokenizer, const char *target_name,
                     struct draft_model **out_model, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct tokenizer *own = NULL;
    struct draft_model *dm = calloc(1, sizeof(*dm));
    if (!dm)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a draft model");
    int rc = checkpoint_open(path, &ckpt, err);
    if (!rc)
        rc = tokenizer_open(ckpt, &own, err);
    if (!rc) {
        checkpoint_set_n_tokens(ckpt, tokenizer_info(own)->vocab_size);
        rc = check_vocabulary(own, checkpoint_name(ckpt), tokenizer, target_name, err);
        if (rc)
            goto out; /* the error names both files */
        dm->name = strdup(checkpoint_name(ckpt));
        rc = dm->name ? open_executor(dm, ckpt, cfg, target, err)
                      : error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the file name");
    }
    if (!rc)
        rc = allocate_blocks(dm, err);
    if (rc)
        error_prefix(err, "draft model");
    else
        *out_model = dm;
out:
    if (rc)
        draft_model_close(dm);
    tokenizer_close(own);
    checkpoint_close(ckpt);
    return rc;
}

void draft_model_close(struct draft_model *dm)
{
    if (!dm)
        return;
    executor_close(dm->executor);
    step_batch_destroy(dm->batch);
    draft_states_destroy(dm->states);
    free(dm->whole);
    free(dm->writers);
    free(dm->name);
    free(dm);
}

const struct executor_plan *draft_model_memory(const struct draft_model *dm)
{
    return executor_actual(dm->executor);
}

uint32_t draft_model_context(const struct draft_model *dm)
{
    return dm->context_tokens;
}

const char *draft_model_name(const struct draft_model *dm)
{
    return dm->name;
}
