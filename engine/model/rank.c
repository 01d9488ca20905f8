#include "engine/model/rank.h"

#include "base/error.h"
#include "engine/model/model.h"

static int split_dim(struct segments *seg, uint32_t dim, uint32_t granule, const struct rank *rank,
                     const char *what, struct error *err)
{
    int rc = segments_init(seg, dim, granule, rank->tp, rank->index, err);
    if (rc)
        return error_prefix(err, "tp %u over %s", rank->tp, what);
    return 0;
}

int rank_split_init(struct rank_split *split, const struct rank *rank,
                    const struct model_shape *shape, struct error *err)
{
    uint32_t hd = shape->head_dim;
    uint32_t n_layers = rank->n_layers ? rank->n_layers : shape->n_layers;
    if (rank->stage >= rank->n_stages || rank->layer_begin > shape->n_layers ||
        n_layers > shape->n_layers - rank->layer_begin)
        return error_set(err, STATUS_INTERNAL, "stage %u of %u: layers %u..%u of %u", rank->stage,
                         rank->n_stages, rank->layer_begin, rank->layer_begin + n_layers,
                         shape->n_layers);
    int rc = split_dim(&split->heads, shape->n_heads * hd, hd, rank, "the heads", err);
    if (!rc)
        rc = split_dim(&split->ffn, shape->ffn_dim, 1, rank, "the MLP", err);
    if (!rc)
        rc = split_dim(&split->vocab, shape->vocab_size, 1, rank, "the vocabulary", err);
    if (rc)
        return rc;
    uint32_t per_kv = shape->n_heads / shape->n_kv_heads;
    split->head_begin = segments_begin(&split->heads) / hd;
    split->n_heads = segments_len(&split->heads) / hd;
    split->kv_begin = split->head_begin / per_kv;
    split->n_kv_heads = (split->head_begin + split->n_heads - 1) / per_kv - split->kv_begin + 1;
    split->layer_begin = rank->layer_begin;
    split->n_layers = n_layers;
    return 0;
}
