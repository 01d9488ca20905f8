/* Tests of ops that one kernel does instead of several, on CUDA's dense weights. Gate, up and the
 * rounding of their product; the residual sum of a product; a norm and its rounding. The results
 * have the bits of the plain ops one after the other. The shapes cross tiles and end within them.
 * The same tests run on an emulated GPU and on a real one. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/segments.h"
#include "tests/gpu/support/support_dense.h"
#include "tests/gpu/support/support_seed.h"

enum { M = 131, HIDDEN = 352, FFN = 196 };

/* Rows of activations are padded to 64 columns; one width needs padding, one does not. */
static const uint32_t ffns[] = {FFN, 192};

static const struct role_run prompts[] = {{0, M, false}};
static const struct role_run generated[] = {{0, M, true}};
static const struct role_run prompts_first[] = {{0, 129, false}, {129, M - 129, true}};
static const struct role_run prompts_last[] = {{0, 3, true}, {3, M - 3, false}};
static const struct {
    const struct role_run *runs;
    uint32_t n;
    bool mixes;
} roles[] = {{prompts, 1, false},
             {generated, 1, false},
             {prompts_first, 2, false},
             {prompts_last, 2, false},
             {prompts_last, 2, true}};
enum { N_ROLES = sizeof(roles) / sizeof(roles[0]) };

/* An MLP: gate, up [n, HIDDEN], down [HIDDEN, n]; device memory. n is at most FFN. */
struct mlp {
    uint32_t n;
    struct dense_weight gate, up, down;
    struct act *act;
    float *x, *bias, *before; /* [M][HIDDEN], [HIDDEN], [M][HIDDEN] */
    float *gate_y, *up_y;     /* [M][FFN] */
    float *y, *sum;           /* [M][HIDDEN] */
    float *host, *wanted;     /* [M][HIDDEN] */
    struct segments ffn_segments;
};

static struct dense_weight weight_of(const struct dense_kind *kind, struct weight_desc desc,
                                     struct random *random)
{
    return dense_weight_make(kind, &desc,
                             random_rows(random, kind->type, desc.n_rows, desc.k_total));
}

static float *device_floats(struct random *random, uint32_t n)
{
    float *host = random_floats(random, n, 0.01f), *data = gpu_upload(host, n * sizeof(float));
    free(host);
    return data;
}

static void mlp_open(struct mlp *mlp, const struct dense_kind *kind, uint32_t n,
                     struct random *random)
{
    struct error err = {0};
    struct weight_desc down = row_desc(kind->type, HIDDEN, n, 1, 0);
    mlp->gate = weight_of(kind, column_desc(kind->type, n, HIDDEN), random);
    mlp->up = weight_of(kind, column_desc(kind->type, n, HIDDEN), random);
    mlp->down = weight_of(kind, down, random);
    mlp->n = n;
    mlp->ffn_segments = down.k_segments;
    assert_int_equal(gpu.module.op_table->act_create(gpu.device, M, HIDDEN, &mlp->act, &err), 0);
    mlp->x = device_floats(random, M * HIDDEN);
    mlp->bias = device_floats(random, HIDDEN);
    mlp->before = device_floats(random, M * HIDDEN);
    mlp->gate_y = gpu_upload(NULL, M * FFN * sizeof(float));
    mlp->up_y = gpu_upload(NULL, M * FFN * sizeof(float));
    mlp->y = gpu_upload(NULL, M * HIDDEN * sizeof(float));
    mlp->sum = gpu_upload(NULL, M * HIDDEN * sizeof(float));
    mlp->host = malloc(M * HIDDEN * sizeof(float));
    mlp->wanted = malloc(M * HIDDEN * sizeof(float));
}

static void mlp_close(struct mlp *mlp)
{
    float *data[] = {mlp->x, mlp->bias, mlp->before, mlp->gate_y, mlp->up_y, mlp->y, mlp->sum};
    for (size_t i = 0; i < sizeof(data) / sizeof(data[0]); i++)
        gpu_drop(data[i], 0);
    gpu.module.op_table->act_destroy(mlp->act);
    dense_weight_drop(&mlp->gate);
    dense_weight_drop(&mlp->up);
    dense_weight_drop(&mlp->down);
    free(mlp->host);
    free(mlp->wanted);
}

/* The tensors of a run with `extras`: bit 0 biases of gate and up, bit 1 of down, bit 2 a sum. */
struct run {
    struct tensor x, gate_y, up_y, y, sum;
    struct linear_part gate, up, down;
};

static void run_open(struct run *run, const struct mlp *mlp, uint32_t extras)
{
    const float *bias = extras & 1 ? mlp->bias : NULL;
    *run = (struct run){.x = tensor_view(mlp->x, DTYPE_F32, M, HIDDEN),
                        .gate_y = tensor_view(mlp->gate_y, DTYPE_F32, M, mlp->n),
                        .up_y = tensor_view(mlp->up_y, DTYPE_F32, M, mlp->n),
                        .y = tensor_view(mlp->y, DTYPE_F32, M, HIDDEN),
                        .sum = tensor_view(mlp->sum, DTYPE_F32, M, HIDDEN)};
    run->gate = (struct linear_part){.y = &run->gate_y, .w = mlp->gate.w, .bias = bias};
    run->up = (struct linear_part){.y = &run->up_y, .w = mlp->up.w, .bias = bias};
    run->down = (struct linear_part){.y = &run->y,
                                     .w = mlp->down.w,
                                     .bias = extras & 2 ? mlp->bias : NULL,
                                     .sum = extras & 4 ? &run->sum : NULL};
    gpu.module.device_ops->copy(gpu.stream, mlp->sum, mlp->before, M * HIDDEN * sizeof(float));
    assert_int_equal(
        op_act_prepare(gpu.stream, mlp->act, &run->x, weight_act_kind(mlp->gate.w), NULL, NULL), 0);
}

static void linear_in_turn(const struct mlp *mlp, const struct linear_part *part)
{
    assert_int_equal(op_linear(gpu.stream, part->y, mlp->act, part->w), 0);
    if (part->bias)
        assert_int_equal(op_add_bias(gpu.stream, part->y, part->bias), 0);
    if (part->sum)
        assert_int_equal(op_add(gpu.stream, part->sum, part->y), 0);
}

static void mlp_in_turn(const struct mlp *mlp, enum activation kind, uint32_t extras)
{
    struct run run;
    run_open(&run, mlp, extras);
    linear_in_turn(mlp, &run.gate);
    linear_in_turn(mlp, &run.up);
    assert_int_equal(op_act_mul(gpu.stream, &run.gate_y, &run.gate_y, &run.up_y, kind), 0);
    assert_int_equal(op_act_prepare(gpu.stream, mlp->act, &run.gate_y, weight_act_kind(mlp->down.w),
                                    &mlp->ffn_segments, NULL),
                     0);
    linear_in_turn(mlp, &run.down);
    gpu_fetch(mlp->wanted, extras & 4 ? mlp->sum : mlp->y, M * HIDDEN * sizeof(float));
}

static void mlp_fused(const struct mlp *mlp, enum activation kind, uint32_t extras)
{
    struct run run;
    run_open(&run, mlp, extras);
    assert_int_equal(op_gated_prepare(gpu.stream, mlp->act, &run.gate, &run.up, kind,
                                      weight_act_kind(mlp->down.w), &mlp->ffn_segments, NULL),
                     0);
    assert_int_equal(op_linear_parts(gpu.stream, mlp->act, &run.down, 1), 0);
    gpu_fetch(mlp->host, extras & 4 ? mlp->sum : mlp->y, M * HIDDEN * sizeof(float));
}

static void check_mlp(const struct dense_kind *kind, uint32_t n, struct random *random)
{
    struct mlp mlp;
    mlp_open(&mlp, kind, n, random);
    for (uint32_t r = 0; r < N_ROLES; r++) {
        enum activation activation = (enum activation)(r % N_ACTIVATIONS);
        gpu.stream->roles = roles[r].runs;
        gpu.stream->n_roles = roles[r].n;
        gpu.stream->mix_products = roles[r].mixes;
        for (uint32_t extras = r % 2; extras < 8; extras += test_is_emulated() ? 5 : 1) {
            mlp_in_turn(&mlp, activation, extras);
            mlp_fused(&mlp, activation, extras);
            assert_same_bits(mlp.host, mlp.wanted, M * HIDDEN * sizeof(float), kind->name);
        }
        gpu.stream->n_roles = 0;
        gpu.stream->mix_products = false;
    }
    mlp_close(&mlp);
}

/* Symptom: the last columns of the activations were not zeroed, so every result was NaN. */
static void test_gated_and_summed_have_the_bits_of_ops_in_turn(void **state)
{
    (void)state;
    struct random random = test_random(301);
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t n = 0; dense_kind_runs(&dense_kinds[i]) && n < 2; n++)
            check_mlp(&dense_kinds[i], ffns[n], &random);
}

/* --- norms --- */

static const uint32_t widths[] = {1, 63, 196, 1024, 4100, 8224};
enum { NORM_M = 19, NORM_N = 9, MAX_WIDTH = 8224, BLOCK = 32 };

/* The rows of x are MAX_WIDTH apart. Returns y[NORM_M][NORM_N], the product of the normed rows. */
static void norm_product(const struct dense_weight *weight, const struct norm_params *p, float *x,
                         float *h, uint32_t n, bool fused, float *out)
{
    struct error err = {0};
    struct act *act = NULL;
    float *device_y = gpu_upload(NULL, NORM_M * NORM_N * sizeof(float));
    struct tensor from = tensor_view(x, DTYPE_F32, NORM_M, n);
    struct tensor to = tensor_view(h, DTYPE_F32, NORM_M, n);
    struct tensor y = tensor_view(device_y, DTYPE_F32, NORM_M, NORM_N);
    uint32_t kinds = weight_act_kind(weight->w);
    from.row_stride = MAX_WIDTH;
    assert_int_equal(gpu.module.op_table->act_create(gpu.device, NORM_M, n, &act, &err), 0);
    if (fused) {
        assert_int_equal(op_norm_prepare(gpu.stream, act, &to, &from, p, kinds), 0);
    } else {
        assert_int_equal(p->is_centred
                             ? op_layer_norm(gpu.stream, &to, &from, p->w, p->bias, p->eps)
                             : op_rms_norm(gpu.stream, &to, &from, p->w, p->eps),
                         0);
        assert_int_equal(op_act_prepare(gpu.stream, act, &to, kinds, NULL, NULL), 0);
    }
    assert_int_equal(op_linear(gpu.stream, &y, act, weight->w), 0);
    gpu_fetch(out, device_y, NORM_M * NORM_N * sizeof(float));
    gpu.module.op_table->act_destroy(act);
    gpu_drop(device_y, 0);
}

static void check_norm(const struct dense_kind *kind, uint32_t n, struct random *random)
{
    struct dense_weight weight = weight_of(kind, column_desc(kind->type, NORM_N, n), random);
    float *x = device_floats(random, NORM_M * MAX_WIDTH), *w = device_floats(random, n);
    float *h = gpu_upload(NULL, NORM_M * n * sizeof(float)), *bias = device_floats(random, n);
    float wanted[NORM_M * NORM_N], found[NORM_M * NORM_N];
    for (int form = 0; form < 3; form++) {
        const struct norm_params p = {
            .is_centred = form > 0, .w = w, .bias = form > 1 ? bias : NULL, .eps = 1e-5f};
        norm_product(&weight, &p, x, h, n, false, wanted);
        norm_product(&weight, &p, x, h, n, true, found);
        assert_same_bits(found, wanted, sizeof(found), kind->name);
    }
    gpu_drop(x, 0);
    gpu_drop(w, 0);
    gpu_drop(h, 0);
    gpu_drop(bias, 0);
    dense_weight_drop(&weight);
}

static void test_norms_and_their_rounding_have_the_bits_of_ops_in_turn(void **state)
{
    (void)state;
    struct random random = test_random(303);
    for (uint32_t i = 0; i < 5; i++)
        for (size_t n = 0;
             dense_kind_runs(&dense_kinds[i]) && n < sizeof(widths) / sizeof(widths[0]); n++)
            check_norm(&dense_kinds[i], widths[n], &random);
}

/* Quantized weights in 16 bit: rows of prompts take f16 with a scale. */
static void test_widened_weights_have_the_bits_of_ops_in_turn(void **state)
{
    (void)state;
    static const struct dense_kind kind = {"q8_0", DTYPE_Q8_0, WEIGHT_STORE_SOURCE};
    static const struct role_run rows = {0, NORM_M, false};
    struct random random = test_random(305);
    gpu.stream->prompts_f16 = true;
    check_mlp(&kind, ffns[1], &random);
    gpu.stream->roles = &rows;
    gpu.stream->n_roles = 1;
    for (size_t n = 0; n < sizeof(widths) / sizeof(widths[0]); n++)
        if (widths[n] % BLOCK == 0)
            check_norm(&kind, widths[n], &random);
    gpu.stream->n_roles = 0;
    gpu.stream->prompts_f16 = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gated_and_summed_have_the_bits_of_ops_in_turn),
        cmocka_unit_test(test_norms_and_their_rounding_have_the_bits_of_ops_in_turn),
        cmocka_unit_test(test_widened_weights_have_the_bits_of_ops_in_turn),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
