/* Tests of op_experts. The expected bits are those of single rows that go through plain ops, expert
 * by expert. Every format, kernel set, number of rows, threads, pairs at once and ranks gives these
 * bits. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const struct shape {
    uint32_t m, hidden, ff, n, n_used;
} shapes[] = {
    {1, 32, 32, 1, 1},   {1, 64, 96, 8, 2},    {3, 96, 33, 5, 3},  {7, 160, 64, 12, 4},
    {33, 64, 48, 3, 2},  {20, 288, 100, 4, 4}, {70, 96, 64, 6, 2}, {5, 256, 512, 40, 8},
    {2, 288, 64, 60, 2}, /* every chosen expert has one row */
};

struct variant {
    enum activation activation;
    bool has_gate, has_bias, weighs_input;
};

static const struct variant variants[] = {
    {ACTIVATION_SILU, true, false, false},
    {ACTIVATION_GATED_OAI, true, true, false},
    {ACTIVATION_RELU2, false, true, false},
    {ACTIVATION_SILU, true, false, true},
};

static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0,
                                   DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_MXFP4};

/* Raw tensors of a layer and the inputs of a step; the same for every set. */
struct layer {
    struct shape shape;
    struct variant variant;
    enum dtype up_type, down_type;
    uint8_t *gate, *up, *down; /* [n] matrices in sequence */
    float *gate_bias, *up_bias, *down_bias, *x, *logits;
};

static struct layer make_layer(struct random *r, const struct shape *s, const struct variant *v,
                               enum dtype up_type, enum dtype down_type)
{
    struct layer l = {.shape = *s, .variant = *v, .up_type = up_type, .down_type = down_type};
    l.gate = random_rows(r, up_type, s->n * s->ff, s->hidden);
    l.up = random_rows(r, up_type, s->n * s->ff, s->hidden);
    l.down = random_rows(r, down_type, s->n * s->hidden, s->ff);
    l.gate_bias = random_floats(r, (size_t)s->n * s->ff, 0.0f);
    l.up_bias = random_floats(r, (size_t)s->n * s->ff, 0.0f);
    l.down_bias = random_floats(r, (size_t)s->n * s->hidden, 0.0f);
    l.x = random_floats(r, (size_t)s->m * s->hidden, 0.02f);
    l.logits = random_floats(r, (size_t)s->m * s->n, 0.0f);
    return l;
}

static void free_layer(struct layer *l)
{
    free(l->gate);
    free(l->up);
    free(l->down);
    free(l->gate_bias);
    free(l->up_bias);
    free(l->down_bias);
    free(l->x);
    free(l->logits);
}

/* A rank's packed weights and its part of the biases. */
struct packed {
    struct segments segments;
    uint32_t ff;
    struct weight *gate[64], *up[64], *down[64];
    float *gate_bias, *up_bias;
    struct experts experts;
};

static float *part_of(const float *bias, uint32_t n, uint32_t width, const struct segments *seg)
{
    uint32_t begin = segments_begin(seg), len = segments_len(seg);
    float *part = malloc((size_t)n * len * sizeof(*part));
    assert_non_null(part);
    for (uint32_t e = 0; e < n; e++)
        memcpy(part + (size_t)e * len, bias + (size_t)e * width + begin, len * sizeof(*part));
    return part;
}

static void pack_layer(struct packed *p, const struct op_table *ops, const struct layer *l,
                       uint32_t tp, uint32_t index)
{
    const struct shape *s = &l->shape;
    struct weight_desc down = row_desc(l->down_type, s->hidden, s->ff, tp, index);
    p->segments = down.k_segments;
    p->ff = segments_len(&p->segments);
    struct weight_desc up = column_desc(l->up_type, p->ff, s->hidden);
    size_t up_row = dtype_row_bytes(l->up_type, s->hidden),
           down_row = dtype_row_bytes(l->down_type, s->ff);
    for (uint32_t e = 0; e < s->n; e++) {
        size_t first = ((size_t)e * s->ff + segments_begin(&p->segments)) * up_row;
        p->gate[e] = pack_weight(ops, &up, l->gate + first);
        p->up[e] = pack_weight(ops, &up, l->up + first);
        p->down[e] = pack_weight(ops, &down, l->down + (size_t)e * s->hidden * down_row);
    }
    p->gate_bias = part_of(l->gate_bias, s->n, s->ff, &p->segments);
    p->up_bias = part_of(l->up_bias, s->n, s->ff, &p->segments);
    const struct variant *v = &l->variant;
    p->experts = (struct experts){
        .n = s->n,
        .gate = v->has_gate ? (const struct weight *const *)p->gate : NULL,
        .up = (const struct weight *const *)p->up,
        .down = (const struct weight *const *)p->down,
        .gate_bias = v->has_bias && v->has_gate ? p->gate_bias : NULL,
        .up_bias = v->has_bias ? p->up_bias : NULL,
        .down_bias = v->has_bias ? l->down_bias : NULL,
        .activation = v->activation,
        .weighs_input = v->weighs_input,
        .segments = &p->segments,
    };
}

static void unpack_layer(struct packed *p)
{
    for (uint32_t e = 0; e < p->experts.n; e++) {
        free(p->gate[e]);
        free(p->up[e]);
        free(p->down[e]);
    }
    free(p->gate_bias);
    free(p->up_bias);
}

static struct expert_routes route_step(const struct rig *rig, const struct layer *l)
{
    const struct shape *s = &l->shape;
    struct expert_routes routes;
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 256, experts_routes_bytes(s->m, s->n_used, s->n)), 0);
    experts_routes_init(&routes, memory, s->m, s->n_used, s->n);
    struct tensor logits = tensor_view(l->logits, DTYPE_F32, s->m, s->n);
    const struct router_params params = {
        .n_experts = s->n, .n_used = s->n_used, .renormalise = true, .scale = 1.0f};
    assert_int_equal(op_router_topk(rig->stream, &routes, &logits, &params), 0);
    return routes;
}

/* Computes y[m, hidden] with room for n_pairs pairs. */
static void run_experts(const struct rig *rig, const struct layer *l, const struct packed *p,
                        uint32_t n_pairs, struct comm *comm, float *y)
{
    const struct shape *s = &l->shape;
    uint32_t widest = p->ff > s->hidden ? p->ff : s->hidden, wide = p->ff + 3;
    struct expert_routes routes = route_step(rig, l);
    float *rows = poisoned((size_t)n_pairs * s->hidden), *gate = poisoned((size_t)n_pairs * wide),
          *up = poisoned((size_t)n_pairs * wide), *sums = poisoned((size_t)n_pairs * s->hidden);
    struct expert_work work = {.act = make_act(rig, n_pairs, widest),
                               .rows = tensor_view(rows, DTYPE_F32, n_pairs, s->hidden),
                               .gate = tensor_view(gate, DTYPE_F32, n_pairs, wide),
                               .up = tensor_view(up, DTYPE_F32, n_pairs, wide),
                               .partial = tensor_view(sums, DTYPE_F32, n_pairs, s->hidden)};
    struct tensor x = tensor_view(l->x, DTYPE_F32, s->m, s->hidden),
                  out = tensor_view(y, DTYPE_F32, s->m, s->hidden);
    assert_int_equal(op_experts(rig->stream, &out, &x, &routes, &p->experts, &work, comm), 0);
    rig->ops->act_destroy(work.act);
    free(routes.ids);
    free(rows);
    free(gate);
    free(up);
    free(sums);
}

/* Computes an expert for one row by plain ops, without the weight of the pair. */
static void one_expert(const struct rig *rig, const struct packed *p, uint32_t e, float *x,
                       uint32_t hidden, float *out)
{
    const struct experts *experts = &p->experts;
    float *gate = poisoned(p->ff), *up = poisoned(p->ff);
    struct act *act = make_act(rig, 1, p->ff > hidden ? p->ff : hidden);
    struct tensor tx = tensor_view(x, DTYPE_F32, 1, hidden),
                  tg = tensor_view(gate, DTYPE_F32, 1, p->ff),
                  tu = tensor_view(up, DTYPE_F32, 1, p->ff),
                  ty = tensor_view(out, DTYPE_F32, 1, hidden);
    assert_int_equal(op_act_prepare(rig->stream, act, &tx, weight_act_kind(p->up[e]), NULL, NULL),
                     0);
    assert_int_equal(op_linear(rig->stream, &tu, act, p->up[e]), 0);
    if (experts->up_bias != NULL)
        assert_int_equal(op_add_bias(rig->stream, &tu, p->up_bias + (size_t)e * p->ff), 0);
    if (experts->gate != NULL)
        assert_int_equal(op_linear(rig->stream, &tg, act, p->gate[e]), 0);
    if (experts->gate_bias != NULL)
        assert_int_equal(op_add_bias(rig->stream, &tg, p->gate_bias + (size_t)e * p->ff), 0);
    assert_int_equal(op_act_mul(rig->stream, &tg, experts->gate != NULL ? &tg : &tu,
                                experts->gate != NULL ? &tu : NULL, experts->activation),
                     0);
    assert_int_equal(
        op_act_prepare(rig->stream, act, &tg, weight_act_kind(p->down[e]), &p->segments, NULL), 0);
    assert_int_equal(op_linear(rig->stream, &ty, act, p->down[e]), 0);
    if (experts->down_bias != NULL)
        assert_int_equal(op_add_bias(rig->stream, &ty, experts->down_bias + (size_t)e * hidden), 0);
    rig->ops->act_destroy(act);
    free(gate);
    free(up);
}

/* Computes the step row by row and expert by expert. */
static void run_plain(const struct rig *rig, const struct layer *l, const struct packed *p,
                      float *y)
{
    const struct shape *s = &l->shape;
    struct expert_routes routes = route_step(rig, l);
    float *x = poisoned(s->hidden), *out = poisoned(s->hidden);
    for (uint32_t row = 0; row < s->m; row++) {
        float *sum = y + (size_t)row * s->hidden;
        memset(sum, 0, s->hidden * sizeof(*sum));
        for (uint32_t j = row * s->n_used; j < (row + 1) * s->n_used; j++) {
            float w = routes.weights[j];
            for (uint32_t k = 0; k < s->hidden; k++)
                x[k] = l->x[(size_t)row * s->hidden + k] * (l->variant.weighs_input ? w : 1.0f);
            one_expert(rig, p, routes.ids[j], x, s->hidden, out);
            for (uint32_t k = 0; k < s->hidden; k++)
                sum[k] = fmaf(l->variant.weighs_input ? 1.0f : w, out[k], sum[k]);
        }
    }
    free(routes.ids);
    free(x);
    free(out);
}

static bool fits(enum dtype type, uint32_t k)
{
    return k % dtype_block_elems(type) == 0;
}

/* Integer and F32 weights give the bits of the first set; others those of their own set. */
static bool is_same_everywhere(const struct layer *l)
{
    return l->up_type != DTYPE_BF16 && l->down_type != DTYPE_BF16;
}

static void check_layer(const struct layer *l)
{
    const struct shape *s = &l->shape;
    size_t n = (size_t)s->m * s->hidden;
    float *first = NULL, *want = poisoned(n), *y = poisoned(n);
    char what[128];
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            struct rig rig = rig_open(*set, threads);
            struct packed p;
            pack_layer(&p, rig.ops, l, 1, 0);
            if (threads == 1)
                run_plain(&rig, l, &p, want);
            if (first == NULL) {
                first = malloc(n * sizeof(*first));
                memcpy(first, want, n * sizeof(*first));
            }
            const uint32_t least = s->m > EXPERTS_MIN_PAIRS ? s->m : EXPERTS_MIN_PAIRS,
                           rooms[] = {least, least + 5, s->m * s->n_used + 64};
            for (uint32_t i = 0; i < 3; i++) {
                snprintf(what, sizeof(what), "%s %s/%s m=%u h=%u ff=%u n=%u act %d room %u", *set,
                         dtype_name(l->up_type), dtype_name(l->down_type), s->m, s->hidden, s->ff,
                         s->n, (int)l->variant.activation, rooms[i]);
                run_experts(&rig, l, &p, rooms[i], NULL, y);
                assert_same_bits(want, y, n * sizeof(*y), what);
                if (is_same_everywhere(l))
                    assert_same_bits(first, y, n * sizeof(*y), what);
            }
            unpack_layer(&p);
            rig_close(&rig);
        }
    free(first);
    free(want);
    free(y);
}

static void test_experts_equal_plain_ops_row_by_row(void **state)
{
    (void)state;
    struct random r = {31};
    size_t i = 0;
    for (size_t c = 0; c < sizeof(shapes) / sizeof(shapes[0]); c++)
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
            for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++, i++) {
                enum dtype down = fits(types[t], shapes[c].ff) ? types[t] : DTYPE_F16;
                if (!grid_takes(i))
                    continue;
                struct layer l = make_layer(&r, &shapes[c], &variants[v], types[t], down);
                check_layer(&l);
                free_layer(&l);
            }
}

struct rank_job {
    const char *set;
    const struct layer *layer;
    uint32_t tp, index, n_pairs;
    struct comm *comm;
    float *y;
};

static void *run_rank(void *arg)
{
    struct rank_job *job = arg;
    struct rig rig = rig_open(job->set, 1);
    struct packed p;
    pack_layer(&p, rig.ops, job->layer, job->tp, job->index);
    run_experts(&rig, job->layer, &p, job->n_pairs, job->comm, job->y);
    unpack_layer(&p);
    rig_close(&rig);
    return NULL;
}

static void check_ranks(const char *set, const struct layer *l, uint32_t tp, const float *want)
{
    struct comm *comms[8] = {NULL};
    struct rank_job jobs[8];
    pthread_t threads[8];
    struct error err = {0};
    size_t n = (size_t)l->shape.m * l->shape.hidden;
    assert_int_equal(comm_shm_create(tp, 4096, comms, &err), 0);
    for (uint32_t i = 0; i < tp; i++) {
        jobs[i] = (struct rank_job){set, l, tp, i, EXPERTS_MIN_PAIRS + 3, comms[i], poisoned(n)};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < tp; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < tp; i++) {
        assert_same_bits(want, jobs[i].y, n * sizeof(float), set);
        comm_destroy(comms[i]);
        free(jobs[i].y);
    }
}

static void test_experts_over_ranks_equal_one_rank(void **state)
{
    (void)state;
    static const struct shape shape = {9, 64, 512, 6, 3};
    static const enum dtype split[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q5_1};
    struct random r = {8};
    size_t n = (size_t)shape.m * shape.hidden;
    float *want = poisoned(n);
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (size_t t = 0; t < sizeof(split) / sizeof(split[0]); t++) {
            struct layer l = make_layer(&r, &shape, &variants[t % 2], split[t], split[t]);
            struct rank_job alone = {*set, &l, 1, 0, experts_max_pairs(shape.m), NULL, want};
            run_rank(&alone);
            for (uint32_t tp = 2; tp <= 8; tp *= 2)
                check_ranks(*set, &l, tp, want);
            free_layer(&l);
        }
    free(want);
}

/* A row's result must not depend on its neighbours. */
static void test_a_row_alone_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct shape shape = {37, 96, 64, 7, 3};
    struct random r = {12};
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
            struct layer l = make_layer(&r, &shape, &variants[1], types[t], types[t]);
            float *all = poisoned((size_t)shape.m * shape.hidden), *one = poisoned(shape.hidden);
            struct rig rig = rig_open(*set, 2);
            struct packed p;
            pack_layer(&p, rig.ops, &l, 1, 0);
            run_experts(&rig, &l, &p, shape.m, NULL, all);
            for (uint32_t row = 0; row < shape.m; row += 5) {
                struct layer alone = l;
                alone.shape.m = 1;
                alone.x += (size_t)row * shape.hidden;
                alone.logits += (size_t)row * shape.n;
                run_experts(&rig, &alone, &p, EXPERTS_MIN_PAIRS, NULL, one);
                assert_same_bits(all + (size_t)row * shape.hidden, one,
                                 shape.hidden * sizeof(float), *set);
            }
            unpack_layer(&p);
            rig_close(&rig);
            free(all);
            free(one);
            free_layer(&l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_equal_plain_ops_row_by_row),
        cmocka_unit_test(test_experts_over_ranks_equal_one_rank),
        cmocka_unit_test(test_a_row_alone_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
