/* engine_facts.h: the facts of a model's files for people. These are layers by kind, ropes,
 * experts, counts of weights, and the parts that are not used. Reads no weights. Part of the
 * contract of engine.h. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "engine/engine_stats.h"

struct checkpoint;
struct error;

/* Layers of equal shape. The words are constants. */
struct engine_layer_kind {
    /* "attention", "gated delta net", "mamba-2", "short convolution", "latent attention",
     * "attention and mamba-2", "none" */
    const char *mixer;
    const char *reach;     /* "full", "window", "chunk"; "" without attention */
    uint32_t reach_tokens; /* width of window or chunk; 0: full */
    int32_t rope;          /* number of the rope set; -1: none */
    uint32_t n_heads, n_kv_heads, k_dim, v_dim;
    /* Recurrent layers: heads of the state and of its keys, its shape, and taps of the convolution.
     * 0 without a state; a short convolution has no heads. */
    uint32_t n_state_heads, n_state_keys, state_key_dim, state_dim, conv_width;
    uint64_t state_bytes;              /* a sequence's, in one layer */
    const char *ffn;                   /* "dense", "experts", "dense and experts", "none" */
    const char *ffn_form, *activation; /* "gated", "plain"; "silu"; "" without an FFN */
    uint32_t ffn_dim;                  /* width of a dense FFN */
    const uint32_t *layers;            /* [n_layers], ascending */
    uint32_t n_layers;
};

struct engine_rope_facts {
    uint32_t rope, n_rotated;
    const char *scaling; /* "none", "linear", "llama3", "yarn", "longrope", "dynamic" */
    double base, factor, original_context;
};

struct engine_expert_facts {
    uint32_t n, n_used, ffn_dim, shared_ffn_dim; /* n 0: the model has no experts */
    uint32_t n_groups, n_groups_used;
    const char *score;
    bool renormalised;
    double scale;
};

enum engine_ignored_kind { ENGINE_IGNORED_KEY, ENGINE_IGNORED_TENSOR, ENGINE_IGNORED_ROW };

/* Keys, tensors or rows of the vocabulary that one rule leaves out. */
struct engine_ignored {
    enum engine_ignored_kind kind;
    const char *rule, *why;
    const char *first; /* name of the first */
    uint64_t n, n_bytes;
};

/* Texts are borrowed from the checkpoint, the arena or constants. */
struct engine_facts {
    struct arena arena;
    struct model_info model;
    const char *norm, *residual; /* "rms", "layer"; "sequential", "parallel" */
    bool tied_output;
    const char *context_limit;   /* the cause of model.context_tokens */
    uint64_t n_loaded, n_active; /* weights that a load reads, and that a token uses */
    const struct engine_layer_kind *layers;
    const struct engine_rope_facts *ropes;
    const struct engine_ignored *ignored;
    uint32_t n_layers, n_ropes, n_ignored; /* n_layers: kinds */
    struct engine_expert_facts experts;
};

/* UNIMPLEMENTED and INVALID_ARGUMENT as engine_read_model_info(). *out_facts is owned:
 * engine_facts_fini(). `ckpt` stays open as long as the facts are used. */
int engine_facts_read(const struct checkpoint *ckpt, struct engine_facts *out_facts,
                      struct error *err);
void engine_facts_fini(struct engine_facts *facts);
