/* plan_ops_check(): does a kernel set have the ops of a model's mixers? (plan.h) */
#include <inttypes.h>

#include "base/error.h"
#include "engine/model/plan.h"

/* The first op of the mixer that the set lacks, or NULL. */
static const char *missing_op(const struct op_table *ops, enum arch_mixing mixing)
{
    if (mixing == ARCH_MIXING_LATENT && !ops->copy_heads)
        return "copy_heads";
    if (mixing == ARCH_MIXING_LATENT && !ops->kv_v_in_k)
        return "attention with V in K";
    if (!arch_has_state(mixing))
        return NULL;
    if (!ops->conv)
        return "conv";
    if (mixing == ARCH_MIXING_CONV)
        return NULL;
    if (mixing == ARCH_MIXING_DELTA)
        return ops->delta_net ? NULL : "delta_net";
    return ops->ssm ? NULL : "ssm";
}

int plan_ops_check(const struct op_table *ops, const struct model_shape *shape,
                   uint32_t layer_begin, uint32_t n_layers, struct error *err)
{
    for (uint32_t i = layer_begin; i < layer_begin + n_layers; i++) {
        const struct arch_mixer *mixer = shape->layers[i].mixer;
        const char *op = missing_op(ops, mixer->mixing);
        if (op)
            return error_set(err, STATUS_UNIMPLEMENTED,
                             "kernels %s: the op %s is missing, which layer %" PRIu32
                             " (\"%s\") needs; load the model on another device",
                             ops->name, op, i, mixer->name);
    }
    return 0;
}
