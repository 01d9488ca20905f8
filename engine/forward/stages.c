#include "engine/forward/stages.h"

#include <float.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/plan.h"

/* Costs of the layers, and of what the first and the last stage have besides. */
struct costs {
    double *until; /* owned; [n_layers + 1] the sum of the layers before */
    bool *may_cut; /* owned; [n_layers] a stage may begin with this layer */
    double first, last;
};

static double multiplications(const struct weight_place *place, const struct model *model)
{
    const struct model_experts *experts = &model->shape.experts;
    if (place->desc.role != WEIGHT_LINEAR_COLUMN && place->desc.role != WEIGHT_LINEAR_ROW)
        return 0;
    double n = (double)place->desc.n_rows * place->desc.k_total;
    return model_has_experts(place->slot) ? n * experts->n_used / experts->n : n;
}

static void add_global(struct costs *costs, const struct weight_place *place,
                       const struct model *model, double of_bytes, double of_ops)
{
    const struct rank first = {.tp = 1, .n_stages = 2}, last = {.tp = 1, .n_stages = 2, .stage = 1};
    bool at_first = plan_stage_has(&first, model, place->slot);
    bool at_last = plan_stage_has(&last, model, place->slot);
    if (at_first) /* where both have the matrix, only the last multiplies by it */
        costs->first += at_last ? of_bytes : of_bytes + of_ops;
    if (at_last)
        costs->last += of_bytes + of_ops;
}

static int add_costs(struct costs *costs, const struct rank_plan *whole, const struct model *model,
                     struct error *err)
{
    uint32_t n_layers = whole->split.n_layers;
    double bytes = 0, ops = 0;
    *costs = (struct costs){.until = calloc(n_layers + 1, sizeof(*costs->until)),
                            .may_cut = calloc(n_layers, sizeof(*costs->may_cut))};
    if (!costs->until || !costs->may_cut)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %" PRIu32 " layers",
                         n_layers);
    for (uint32_t i = 0; i < whole->n_places; i++) {
        bytes += (double)whole->places[i].n_bytes;
        ops += multiplications(&whole->places[i], model);
    }
    for (uint32_t i = 0; i < whole->n_places; i++) {
        const struct weight_place *place = &whole->places[i];
        double of_bytes = (double)place->n_bytes / bytes;
        double of_ops = ops > 0 ? multiplications(place, model) / ops : 0;
        if (place->slot < ARCH_FIRST_LAYER_SLOT)
            add_global(costs, place, model, of_bytes, of_ops);
        else
            costs->until[place->layer + 1] += of_bytes + of_ops;
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        costs->until[i + 1] += costs->until[i];
        costs->may_cut[i] = !i || rank_may_cut(&model->shape, i);
    }
    return 0;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The cost of layers [begin, end) as stage s of n. */
static double stage_cost(const struct costs *costs, uint32_t s, uint32_t n, uint32_t begin,
                         uint32_t end)
{
    return costs->until[end] - costs->until[begin] + (s ? 0 : costs->first) +
           (s + 1 < n ? 0 : costs->last);
}

/* Fills best[end] for stages 0 to s over layers [0, end) from `before`, those of one stage less.
 * from[end]: the first layer of stage s. */
static void add_stage(const struct costs *costs, uint32_t n_layers, uint32_t s, uint32_t n,
                      const double *before, double *best, uint32_t *from)
{
    for (uint32_t end = 0; end <= n_layers; end++) {
        best[end] = DBL_MAX;
        for (uint32_t begin = s; begin < end; begin++) {
            if (before[begin] >= DBL_MAX || !costs->may_cut[begin])
                continue;
            double most = larger(before[begin], stage_cost(costs, s, n, begin, end));
            if (most < best[end]) {
                best[end] = most;
                from[end] = begin;
            }
        }
    }
}

/* Returns false if no cuts give n stages. */
static bool choose_bounds(const struct costs *costs, uint32_t n_layers, uint32_t n, double *best,
                          uint32_t *from, uint32_t *bounds)
{
    uint32_t n_ends = n_layers + 1;
    for (uint32_t end = 0; end < n_ends; end++)
        best[end] = end ? DBL_MAX : 0; /* no stage has no layers */
    for (uint32_t s = 0; s < n; s++)
        add_stage(costs, n_layers, s, n, best + (size_t)s * n_ends, best + (size_t)(s + 1) * n_ends,
                  from + (size_t)s * n_ends);
    if (best[(size_t)n * n_ends + n_layers] >= DBL_MAX)
        return false;
    bounds[n] = n_layers;
    for (uint32_t s = n; s-- > 0;)
        bounds[s] = from[(size_t)s * n_ends + bounds[s + 1]];
    return true;
}

static const char *name_of(const struct model *model, enum arch_slot slot, uint32_t layer)
{
    const struct checkpoint_tensor *tensor = model_tensor(model, slot, layer, 0);
    return tensor ? tensor->name : "?";
}

/* The name of a key in the metadata. */
static const char *key_of(const struct model *model, enum arch_param_id id)
{
    for (uint32_t i = 0; i < model->source.n_params; i++)
        if (model->source.params[i].id == id)
            return model->source.params[i].key;
    return "?";
}

/* The error for a model whose layers cannot be parted into n stages. */
static int refuse(const struct model *model, uint32_t n, struct error *err)
{
    const struct model_shape *shape = &model->shape;
    uint32_t n_cuts = 0, last = 0;
    if (shape->layer_embd_dim)
        return error_field(err, "pp",
                           "%" PRIu32 " stages: the first stage alone has the inputs of all layers "
                           "(key %s: %" PRIu32 ", tensor \"%s\"); must be 1",
                           n, key_of(model, ARCH_PARAM_LAYER_EMBD), shape->layer_embd_dim,
                           name_of(model, ARCH_LAYER_EMBD, 0));
    for (uint32_t cut = 1; cut < shape->n_layers; cut++)
        n_cuts += rank_may_cut(shape, cut);
    for (uint32_t i = 0; i < shape->n_layers; i++)
        if (shape->layers[i].kv_source != i)
            last = i;
    return error_field(err, "pp",
                       "%" PRIu32 " stages: at most %" PRIu32 " can be made, because layer %" PRIu32
                       " reads the K and V of layer %" PRIu32
                       " (key %s, tensor \"%s\"), and both must be on the same stage",
                       n, n_cuts + 1, last, shape->layers[last].kv_source,
                       key_of(model, ARCH_PARAM_SHARED_KV_LAYERS),
                       name_of(model, ARCH_ATTN_K, shape->layers[last].kv_source));
}

int stages_split(const struct rank_plan *whole, const struct model *model, uint32_t n_stages,
                 uint32_t bounds[STAGES_MAX + 1], struct error *err)
{
    const struct model_shape *shape = &model->shape;
    struct costs costs;
    size_t n_ends = (size_t)shape->n_layers + 1;
    if (n_stages < 1 || n_stages > STAGES_MAX)
        return error_field(err, "pp", "%" PRIu32 " is not in 1..%d", n_stages, STAGES_MAX);
    if (n_stages > shape->n_layers)
        return error_field(err, "pp", "%" PRIu32 " stages: the model has %" PRIu32 " layer%s",
                           n_stages, shape->n_layers, shape->n_layers == 1 ? "" : "s");
    int rc = add_costs(&costs, whole, model, err);
    double *best = calloc((n_stages + 1) * n_ends, sizeof(*best));
    uint32_t *from = calloc(n_stages * n_ends, sizeof(*from));
    if (!rc && (!best || !from))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %" PRIu32 " stages",
                       n_stages);
    if (!rc && !choose_bounds(&costs, shape->n_layers, n_stages, best, from, bounds))
        rc = refuse(model, n_stages, err);
    free(best);
    free(from);
    free(costs.until);
    free(costs.may_cut);
    return rc;
}
