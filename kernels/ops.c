#include "kernels/ops.h"

#include "base/status.h"
#include "kernels/act_header.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/weight_header.h"

static bool is_f32(const struct tensor *t)
{
    return t->dtype == DTYPE_F32 && t->row_stride >= t->n_cols;
}

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
    return is_f32(a) && is_f32(b) && a->n_rows == b->n_rows && a->n_cols == b->n_cols;
}

static bool reads_act(const struct act *act, const struct weight *w)
{
    return w->magic == WEIGHT_MAGIC && (act->kinds & w->act_kind) != 0 && act->k == w->k_local;
}

int op_embed(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w)
{
    if (!is_f32(y) || w->magic != WEIGHT_MAGIC ||
        (w->role != WEIGHT_EMBEDDING && w->role != WEIGHT_LINEAR_COLUMN) || y->n_cols != w->k_local)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->embed(s, y, ids, w);
}

int op_rms_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                float eps)
{
    if (!same_shape(y, x) || w == NULL)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->rms_norm(s, y, x, w, 1, eps);
}

int op_layer_norm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                  const float *b, float eps)
{
    if (!same_shape(y, x) || w == NULL)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->layer_norm(s, y, x, w, b, 1, eps);
}

int op_norm_heads(struct stream *s, const struct tensor *x, uint32_t n_heads,
                  const struct norm_params *p)
{
    if (!is_f32(x) || n_heads == 0 || x->n_cols % n_heads != 0 || p->w == NULL ||
        x->row_stride != x->n_cols)
        return STATUS_INTERNAL;
    struct tensor heads = tensor_view(x->data, DTYPE_F32, x->n_rows * n_heads, x->n_cols / n_heads);
    if (heads.n_rows == 0)
        return 0;
    return p->is_centred ? s->ops->layer_norm(s, &heads, &heads, p->w, p->bias, n_heads, p->eps)
                         : s->ops->rms_norm(s, &heads, &heads, p->w, n_heads, p->eps);
}

int op_add(struct stream *s, struct tensor *y, const struct tensor *x)
{
    return op_add_scaled(s, y, x, 1.0f);
}

int op_add_scaled(struct stream *s, struct tensor *y, const struct tensor *x, float factor)
{
    if (!same_shape(y, x))
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->add(s, y, x, factor);
}

int op_add_bias(struct stream *s, struct tensor *y, const float *bias)
{
    if (!is_f32(y) || bias == NULL)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->add_bias(s, y, bias);
}

int op_scale(struct stream *s, struct tensor *x, const uint32_t *positions,
             const struct scale_params *params)
{
    const struct tensor *gate = params->gate;
    if (!is_f32(x) || params->softcap < 0.0f ||
        (params->by_position != NULL && (positions == NULL || params->period == 0)) ||
        (gate != NULL && (!is_f32(gate) || gate->n_rows != x->n_rows || gate->n_cols != 1)))
        return STATUS_INTERNAL;
    return x->n_rows == 0 ? 0 : s->ops->scale(s, x, positions, params);
}

int op_act_mul(struct stream *s, struct tensor *y, const struct tensor *gate,
               const struct tensor *up, enum activation kind)
{
    if (!same_shape(y, gate) || (up != NULL && !same_shape(y, up)) ||
        (unsigned)kind > ACTIVATION_IDENTITY || (up == NULL && kind == ACTIVATION_GATED_OAI))
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->act_mul(s, y, gate, up, kind);
}

static bool may_prepare(const struct act *act, const struct tensor *x, uint32_t kinds,
                        const struct segments *segments)
{
    return is_f32(x) && x->n_rows <= act->max_rows && x->n_cols <= act->max_k && x->n_cols > 0 &&
           kinds != 0 && (segments == NULL || segments_len(segments) == x->n_cols);
}

int op_act_prepare(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                   const struct segments *segments, struct comm *comm)
{
    if (!may_prepare(act, x, kinds, segments))
        return STATUS_INTERNAL;
    return s->ops->act_prepare(s, act, x, kinds, segments, comm);
}

int op_norm_prepare(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                    const struct norm_params *p, uint32_t kinds)
{
    if (s->ops->norm_prepare == NULL || x->n_rows == 0) {
        int rc = p->is_centred ? op_layer_norm(s, y, x, p->w, p->bias, p->eps)
                               : op_rms_norm(s, y, x, p->w, p->eps);
        return rc == 0 ? op_act_prepare(s, act, y, kinds, NULL, NULL) : rc;
    }
    if (!same_shape(y, x) || p->w == NULL || !may_prepare(act, y, kinds, NULL))
        return STATUS_INTERNAL;
    return s->ops->norm_prepare(s, act, y, x, p, kinds);
}

int op_linear(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w)
{
    if (!is_f32(y) || !reads_act(act, w) || y->n_rows != act->n_rows || y->n_cols != w->n_rows ||
        (w->role == WEIGHT_LINEAR_ROW && w->k_local != w->k_total))
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->linear(s, y, act, w);
}

static bool part_is_sound(const struct act *act, const struct linear_part *part)
{
    return is_f32(part->y) && reads_act(act, part->w) && part->y->n_rows == act->n_rows &&
           part->y->n_cols == part->w->n_rows &&
           (part->w->role != WEIGHT_LINEAR_ROW || part->w->k_local == part->w->k_total) &&
           (part->sum == NULL || same_shape(part->sum, part->y));
}

static int parts_in_turn(struct stream *s, const struct act *act, const struct linear_part *parts,
                         uint32_t n_parts)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_parts; i++) {
        rc = op_linear(s, parts[i].y, act, parts[i].w);
        if (rc == 0 && parts[i].bias != NULL)
            rc = op_add_bias(s, parts[i].y, parts[i].bias);
        if (rc == 0 && parts[i].sum != NULL)
            rc = op_add_scaled(s, parts[i].sum, parts[i].y,
                               parts[i].sum_factor != 0.0f ? parts[i].sum_factor : 1.0f);
    }
    return rc;
}

int op_linear_parts(struct stream *s, const struct act *act, const struct linear_part *parts,
                    uint32_t n_parts)
{
    if (n_parts == 0 || n_parts > LINEAR_MAX_PARTS)
        return STATUS_INTERNAL;
    for (uint32_t i = 0; i < n_parts; i++)
        if (!part_is_sound(act, &parts[i]))
            return STATUS_INTERNAL;
    if (act->n_rows == 0)
        return 0;
    if (s->ops->linear_parts == NULL)
        return parts_in_turn(s, act, parts, n_parts);
    return s->ops->linear_parts(s, act, parts, n_parts);
}

static bool gate_is_sound(const struct act *act, const struct linear_part *gate,
                          const struct linear_part *up, enum activation kind)
{
    return part_is_sound(act, gate) && part_is_sound(act, up) && same_shape(gate->y, up->y) &&
           gate->sum == NULL && up->sum == NULL && (unsigned)kind < N_ACTIVATIONS;
}

int op_linear_gated(struct stream *s, const struct act *act, const struct linear_part *gate,
                    const struct linear_part *up, enum activation kind)
{
    if (!gate_is_sound(act, gate, up, kind))
        return STATUS_INTERNAL;
    if (act->n_rows == 0)
        return 0;
    if (s->ops->linear_gated != NULL)
        return s->ops->linear_gated(s, act, gate, up, kind);
    const struct linear_part parts[2] = {*gate, *up};
    int rc = op_linear_parts(s, act, parts, 2);
    return rc == 0 ? op_act_mul(s, gate->y, gate->y, up->y, kind) : rc;
}

int op_gated_prepare(struct stream *s, struct act *act, const struct linear_part *gate,
                     const struct linear_part *up, enum activation kind, uint32_t kinds,
                     const struct segments *segments, struct comm *comm)
{
    if (s->ops->gated_prepare == NULL || act->n_rows == 0) {
        int rc = op_linear_gated(s, act, gate, up, kind);
        return rc == 0 ? op_act_prepare(s, act, gate->y, kinds, segments, comm) : rc;
    }
    if (!gate_is_sound(act, gate, up, kind) || !may_prepare(act, gate->y, kinds, segments))
        return STATUS_INTERNAL;
    return s->ops->gated_prepare(s, act, gate, up, kind, kinds, segments, comm);
}

void op_will_read(struct stream *s, const struct weight *const *weights, uint32_t n)
{
    if (s->ops->will_read != NULL && n <= LINEAR_MAX_PARTS)
        s->ops->will_read(s, weights, n);
}

int op_linear_row(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w,
                  struct tensor *partial, struct comm *comm)
{
    if (comm == NULL || comm->size == 1)
        return op_linear(s, y, act, w);
    if (!is_f32(y) || !reads_act(act, w) || w->role != WEIGHT_LINEAR_ROW ||
        y->n_rows != act->n_rows || y->n_cols != w->n_rows || partial->n_rows != y->n_rows ||
        partial->n_cols != y->n_cols || partial->row_stride < partial->n_cols)
        return STATUS_INTERNAL;
    if (y->n_rows == 0)
        return 0;
    bool integer = w->act_kind == ACT_INT8;
    struct tensor sums = *partial, high = *y;
    sums.dtype = integer ? DTYPE_I32 : DTYPE_F32;
    high.dtype = DTYPE_I32;
    int rc = s->ops->linear_partial(s, &sums, &high, act, w);
    if (rc == 0)
        rc = comm_all_reduce(comm, s, &sums, integer ? COMM_SUM_I32 : COMM_SUM_TREE_F32);
    if (rc == 0 && w->n_partial_planes == 2)
        rc = comm_all_reduce(comm, s, &high, COMM_SUM_I32);
    if (rc == 0)
        rc = s->ops->linear_finish(s, y, &sums, act, w);
    return rc;
}

static bool router_is_sound(const struct expert_routes *routes, const struct tensor *logits,
                            const struct router_params *p)
{
    uint32_t groups = p->n_groups > 1 ? p->n_groups : 1,
             used_groups = groups > 1 ? p->n_used_groups : 1;
    return is_f32(logits) && logits->n_cols == p->n_experts && p->n_experts > 0 &&
           p->n_experts <= EXPERTS_MAX && p->n_used > 0 && p->n_used <= EXPERTS_MAX_USED &&
           groups <= EXPERTS_MAX_GROUPS && p->n_experts % groups == 0 && used_groups > 0 &&
           used_groups <= groups && p->n_used <= p->n_experts / groups * used_groups &&
           logits->n_rows <= routes->max_rows && p->n_used <= routes->max_used &&
           p->n_experts <= routes->max_experts && (unsigned)p->score <= ROUTER_SQRT_SOFTPLUS;
}

int op_router_topk(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                   const struct router_params *params)
{
    if (!router_is_sound(routes, logits, params))
        return STATUS_INTERNAL;
    if (params->expert_scale != NULL && !s->ops->has_expert_scale)
        return STATUS_UNIMPLEMENTED;
    routes->n_rows = logits->n_rows;
    routes->n_used = params->n_used;
    routes->n_experts = params->n_experts;
    return logits->n_rows == 0 ? 0 : s->ops->router_topk(s, routes, logits, params);
}

static bool expert_weights_are_sound(const struct weight *const *w, enum weight_role role,
                                     uint32_t n_rows, uint32_t k)
{
    const struct weight *first = w[0];
    return first->magic == WEIGHT_MAGIC && first->act_kind != 0 && first->role == role &&
           first->n_rows == n_rows && first->k_local == k;
}

static bool holds_rows(const struct tensor *t, uint32_t n_rows, uint32_t n_cols)
{
    return t->row_stride >= n_cols && t->n_cols >= n_cols && t->n_rows >= n_rows;
}

int op_experts(struct stream *s, struct tensor *y, const struct tensor *x,
               const struct expert_routes *routes, const struct experts *e,
               const struct expert_work *work, struct comm *comm)
{
    uint32_t hidden = x->n_cols, ff = e->segments != NULL ? segments_len(e->segments) : 0,
             n_pairs = work->act->max_rows;
    if (!same_shape(y, x) || y->data == x->data || routes->n_rows != x->n_rows ||
        routes->n_experts != e->n || e->n == 0 || ff == 0 ||
        (unsigned)e->activation >= N_ACTIVATIONS ||
        (e->gate == NULL && e->activation == ACTIVATION_GATED_OAI) ||
        (e->gate != NULL && !expert_weights_are_sound(e->gate, WEIGHT_LINEAR_COLUMN, ff, hidden)) ||
        !expert_weights_are_sound(e->up, WEIGHT_LINEAR_COLUMN, ff, hidden) ||
        !expert_weights_are_sound(e->down, WEIGHT_LINEAR_ROW, hidden, ff) || n_pairs < x->n_rows ||
        n_pairs < EXPERTS_MIN_PAIRS || work->act->max_k < (ff > hidden ? ff : hidden) ||
        !holds_rows(&work->rows, n_pairs, hidden) ||
        (e->gate != NULL && !holds_rows(&work->gate, n_pairs, ff)) ||
        !holds_rows(&work->up, n_pairs, ff) ||
        (comm != NULL && comm->size > 1 && !holds_rows(&work->partial, n_pairs, hidden)))
        return STATUS_INTERNAL;
    return x->n_rows == 0 ? 0 : s->ops->experts(s, y, x, routes, e, work, comm);
}

int op_experts_bind(const struct op_table *ops, struct experts *experts, struct error *err)
{
    return ops->experts_bind != NULL ? ops->experts_bind(experts, err) : 0;
}

static bool rope_is_sound(const struct tensor *x, const struct rope_params *params)
{
    return params->style == ROPE_NONE ||
           (is_f32(x) && params->head_dim != 0 && x->n_cols % params->head_dim == 0 &&
            params->n_rot <= params->head_dim && params->n_rot % 2 == 0 &&
            (params->style == ROPE_INTERLEAVED || params->style == ROPE_HALF));
}

int op_rope(struct stream *s, struct tensor *x, const uint32_t *positions,
            const struct rope_params *params)
{
    if (!rope_is_sound(x, params))
        return STATUS_INTERNAL;
    if (params->style == ROPE_NONE)
        return 0;
    return x->n_rows == 0 || params->n_rot == 0 ? 0 : s->ops->rope(s, x, positions, params);
}

size_t ops_kv_vector_bytes(enum dtype type, uint32_t dim)
{
    if (dim == 0)
        return 0;
    if (type == DTYPE_I8 ||
        type == DTYPE_F8_E4M3) /* codes padded to a multiple of 4 bytes, then an f32 scale */
        return (((size_t)dim + 3) & ~(size_t)3) + sizeof(float);
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        return (size_t)dim * dtype_block_bytes(type);
    return 0;
}

static bool kv_is_sound(const struct stream *s, const struct kv_layer *kv)
{
    return (unsigned)kv->dtype < N_DTYPES && (s->ops->kv_dtypes >> kv->dtype & 1) != 0 &&
           ops_kv_vector_bytes(kv->dtype, kv->head_dim) > 0 &&
           ops_kv_vector_bytes(kv->dtype, kv->v_dim) > 0 && kv->block_size > 0 &&
           kv->n_kv_heads > 0;
}

/* Returns true if k and v are rows of the cache's vectors. */
static bool suits_kv(const struct kv_layer *kv, const struct tensor *k, const struct tensor *v)
{
    if (!is_f32(k) || k->n_cols != kv->n_kv_heads * kv->head_dim || (v == NULL) != (kv->v == NULL))
        return false;
    return v == NULL ||
           (is_f32(v) && k->n_rows == v->n_rows && v->n_cols == kv->n_kv_heads * kv->v_dim);
}

/* 0 if the table can read V from the vectors of K, or need not. */
static int check_v_in_k(const struct stream *s, const struct kv_layer *kv)
{
    if (kv->v != NULL)
        return 0;
    if (kv->v_dim > kv->head_dim)
        return STATUS_INTERNAL;
    return s->ops->kv_v_in_k ? 0 : STATUS_UNIMPLEMENTED;
}

int op_kv_write(struct stream *s, const struct kv_layer *kv, const struct tensor *k,
                const struct tensor *v, const uint32_t *kv_slots)
{
    if (!kv_is_sound(s, kv) || !suits_kv(kv, k, v))
        return STATUS_INTERNAL;
    int rc = check_v_in_k(s, kv);
    return rc != 0 || k->n_rows == 0 ? rc : s->ops->kv_write(s, kv, k, v, kv_slots);
}

int op_rope_kv(struct stream *s, struct tensor *q, struct tensor *k, const struct tensor *v,
               const uint32_t *positions, const struct rope_params *params,
               const struct kv_layer *kv, const uint32_t *kv_slots)
{
    bool is_one = s->ops->rope_kv && params->style != ROPE_NONE && params->n_rot > 0 && v != NULL;
    if (!is_one) {
        int rc = op_rope(s, q, positions, params);
        if (rc == 0)
            rc = op_rope(s, k, positions, params);
        return rc == 0 ? op_kv_write(s, kv, k, v, kv_slots) : rc;
    }
    if (!rope_is_sound(q, params) || !rope_is_sound(k, params) || !kv_is_sound(s, kv) ||
        !suits_kv(kv, k, v) || params->head_dim != kv->head_dim || q->n_rows != k->n_rows)
        return STATUS_INTERNAL;
    return k->n_rows == 0 ? 0 : s->ops->rope_kv(s, q, k, v, positions, params, kv, kv_slots);
}

int op_attention(struct stream *s, struct tensor *y, const struct tensor *q,
                 const struct kv_layer *kv, const struct attention_rows *rows,
                 const struct attention_params *params)
{
    if (!kv_is_sound(s, kv) || !is_f32(y) || !is_f32(q) || params->n_heads == 0 ||
        params->heads_per_kv == 0 || q->n_rows != rows->n_rows || y->n_rows != q->n_rows ||
        q->n_cols != params->n_heads * kv->head_dim || y->n_cols != params->n_heads * kv->v_dim)
        return STATUS_INTERNAL;
    uint32_t first = params->head_begin / params->heads_per_kv,
             last = (params->head_begin + params->n_heads - 1) / params->heads_per_kv;
    if (first < params->kv_begin || last - params->kv_begin >= kv->n_kv_heads)
        return STATUS_INTERNAL;
    int rc = check_v_in_k(s, kv);
    return rc != 0 || q->n_rows == 0 ? rc : s->ops->attention(s, y, q, kv, rows, params);
}

int op_gather_rows(struct stream *s, struct tensor *y, const struct tensor *x,
                   const uint32_t *index)
{
    if (!is_f32(y) || !is_f32(x) || y->n_cols != x->n_cols)
        return STATUS_INTERNAL;
    return y->n_rows == 0 ? 0 : s->ops->gather_rows(s, y, x, index);
}

int op_sample(struct stream *s, const struct tensor *logits, const struct sample_params *params,
              struct sample_result *results)
{
    if (!is_f32(logits) || logits->n_cols == 0)
        return STATUS_INTERNAL;
    return logits->n_rows == 0 ? 0 : s->ops->sample(s, logits, params, results);
}
