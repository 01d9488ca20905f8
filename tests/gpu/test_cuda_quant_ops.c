/* Compares other ops over quantized weights on the CUDA backend bit for bit with the kernel set
 * "ref". These are linears split over ranks, embeddings, and fused and gated linears. */
#include "kernels/comm.h"
#include "tests/gpu/support/support_quant.h"
#include "tests/gpu/support/support_seed.h"

/* Ranks that run one after the other. In the second pass, all_gather returns the figures that each
 * rank left in the first pass. */
struct fake_comm {
    struct comm base;
    float *stats[8];
    size_t n_bytes;
};

static int fake_all_gather(struct comm *comm, struct stream *s, void *dst, const void *src,
                           size_t n_bytes)
{
    struct fake_comm *fake = (struct fake_comm *)comm;
    (void)s;
    fetch(fake->stats[comm->index], src, n_bytes);
    for (uint32_t r = 0; r < comm->size; r++)
        module.device_ops->upload(stream, (uint8_t *)dst + r * n_bytes, fake->stats[r], n_bytes);
    sync_stream();
    return 0;
}

static void fake_destroy(struct comm *comm)
{
    (void)comm;
}

static const struct comm_ops fake_comm_ops = {
    .name = "fake", .destroy = fake_destroy, .all_gather = fake_all_gather};

/* Runs one rank: its columns of x, its partial sums and, from the sums of all ranks, its results.
 */
static void run_rank(struct fake_comm *fake, enum dtype type, const uint8_t *raw, const float *x,
                     uint32_t m, uint32_t n, uint32_t k, int32_t *low, int32_t *high, float *y)
{
    uint32_t index = fake->base.index;
    struct weight_desc desc = row_desc(type, n, k, fake->base.size, index);
    void *data;
    struct weight *w = upload_weight(&desc, raw, &data);
    uint32_t k_local = weight_k_local(w), begin = segments_begin(&desc.k_segments);
    float *own = malloc((size_t)m * k_local * sizeof(float));
    for (uint32_t r = 0; r < m; r++)
        memcpy(own + (size_t)r * k_local, x + (size_t)r * k + begin, k_local * sizeof(float));
    struct prepared p = prepare(own, m, k_local, &desc.k_segments, &fake->base);
    size_t n_bytes = (size_t)m * n * sizeof(float);
    void *device_low = poison_on_device((size_t)m * n);
    void *device_y = poison_on_device((size_t)m * n);
    struct tensor partial = tensor_view(device_low, DTYPE_I32, m, n);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, m, n);
    struct tensor th = tensor_view(device_y, DTYPE_I32, m, n);
    if (y == NULL) {
        assert_int_equal(module.op_table->linear_partial(stream, &partial, &th, p.act, w), 0);
        fetch(low, device_low, n_bytes);
        fetch(high, device_y, n_bytes);
    } else {
        module.device_ops->upload(stream, device_low, low, n_bytes);
        module.device_ops->upload(stream, device_y, high, n_bytes);
        assert_int_equal(module.op_table->linear_finish(stream, &ty, &partial, p.act, w), 0);
        fetch(y, device_y, n_bytes);
    }
    prepared_free(&p);
    weight_unbind(module.op_table, w);
    drop(data, 0);
    drop(device_low, n_bytes);
    drop(device_y, n_bytes);
    free(own);
}

/* Columns with fewer units than the 8 segments. The parts of some ranks begin inside a block of the
 * file. */
static void test_ranks_sums_give_the_whole(void **state)
{
    (void)state;
    enum { N = 21, M = 5, K = 3 * 256, SIZE = N * M };
    struct random random = test_random(53);
    for (size_t f = 0; f < N_FORMATS; f++)
        for (uint32_t tp = 2; tp <= 8; tp *= 2) {
            uint8_t *raw = random_rows(&random, formats[f], N, K);
            float *x = activations(&random, SOME_OUTLIERS, M, K), wanted[SIZE], y[SIZE];
            struct weight_desc whole = row_desc(formats[f], N, K, 1, 0);
            struct weight *w = pack_weight(cpu.ops, &whole, raw);
            struct act *act = make_act(&cpu, M, K);
            struct tensor tx = tensor_view(x, DTYPE_F32, M, K);
            struct tensor ty = tensor_view(wanted, DTYPE_F32, M, N);
            assert_int_equal(
                op_act_prepare(cpu.stream, act, &tx, ACT_INT8, &whole.k_segments, NULL), 0);
            assert_int_equal(op_linear(cpu.stream, &ty, act, w), 0);
            cpu.ops->act_destroy(act);
            free(w);
            struct fake_comm fake = {.base = {.ops = &fake_comm_ops, .size = tp}};
            int32_t low[SIZE], high[SIZE], low_sum[SIZE] = {0}, high_sum[SIZE] = {0};
            float stats[8][M * 2] = {{0}};
            for (uint32_t r = 0; r < 8; r++)
                fake.stats[r] = stats[r];
            /* the first round only collects the ranks' figures */
            for (int round = 0; round < 2; round++)
                for (uint32_t r = 0; r < tp; r++) {
                    fake.base.index = r;
                    run_rank(&fake, formats[f], raw, x, M, N, K, low, high, NULL);
                    for (uint32_t i = 0; round == 1 && i < SIZE; i++) {
                        low_sum[i] += low[i];
                        high_sum[i] = (int32_t)((uint32_t)high_sum[i] + (uint32_t)high[i]);
                    }
                }
            fake.base.index = tp - 1;
            run_rank(&fake, formats[f], raw, x, M, N, K, low_sum, high_sum, y);
            assert_same_bits(y, wanted, sizeof(y), dtype_name(formats[f]));
            free(raw);
            free(x);
        }
}

static void test_embedding_rows_out_of_linear_weights(void **state)
{
    (void)state;
    enum { N = 35, M = 6 };
    static const uint32_t ids[M] = {0, 34, 15, 16, 31, N};
    struct random random = test_random(59);
    for (size_t f = 0; f < N_FORMATS; f++) {
        uint32_t k = dtype_block_elems(formats[f]) * 3;
        struct both w = random_both(&random, column_desc(formats[f], N, k));
        size_t n_bytes = (size_t)M * k * sizeof(float);
        float *wanted = poisoned((size_t)M * k), *y = poisoned((size_t)M * k);
        struct tensor tw = tensor_view(wanted, DTYPE_F32, M - 1, k);
        assert_int_equal(op_embed(cpu.stream, &tw, ids, w.cpu), 0);
        void *device_ids = on_device(ids, sizeof(ids)), *device_y = on_device(NULL, n_bytes);
        struct tensor ty = tensor_view(device_y, DTYPE_F32, M, k);
        assert_int_equal(op_embed(stream, &ty, device_ids, w.gpu), 0);
        fetch(y, device_y, n_bytes);
        assert_same_bits(y, wanted, n_bytes - k * sizeof(float), dtype_name(formats[f]));
        for (uint32_t i = 0; i < k; i++)
            assert_true(isnan(y[(size_t)(M - 1) * k + i]));
        both_free(&w);
        drop(device_ids, sizeof(ids));
        drop(device_y, n_bytes);
        free(wanted);
        free(y);
    }
}

/* Several linears computed as one, on the device or on the CPU. */
struct side {
    struct stream *stream;
    struct act *act;
    float *y[3], *sum[3];
    struct tensor ty[3], ts[3];
    struct linear_part parts[3];
};

enum { PARTS_N = 50 };

static void run_parts(struct side *side, const struct both w[3], float *const bias[3], bool on_gpu,
                      uint32_t m, bool gated)
{
    for (uint32_t p = 0; p < 3; p++) {
        uint32_t n = w[p].desc.n_rows;
        side->ty[p] = tensor_view(side->y[p], DTYPE_F32, m, n);
        side->ts[p] = tensor_view(side->sum[p], DTYPE_F32, m, n);
        side->parts[p] = (struct linear_part){.y = &side->ty[p],
                                              .w = on_gpu ? w[p].gpu : w[p].cpu,
                                              .bias = p == 1 ? NULL : bias[p],
                                              .sum = !gated && p != 2 ? &side->ts[p] : NULL};
    }
    int rc = gated ? op_linear_gated(side->stream, side->act, &side->parts[0], &side->parts[1],
                                     ACTIVATION_SILU)
                   : op_linear_parts(side->stream, side->act, side->parts, 3);
    assert_int_equal(rc, 0);
}

static void compare_parts(const struct both w[3], uint32_t m, uint32_t k, bool gated,
                          struct random *random)
{
    struct side gpu = {.stream = stream}, host = {.stream = cpu.stream};
    float *x = activations(random, SOME_OUTLIERS, m, k), *bias[3], *device_bias[3], *back;
    if (!gated)
        break_rows(x, m, k);
    struct tensor tx = tensor_view(x, DTYPE_F32, m, k);
    struct prepared p = prepare(x, m, k, NULL, NULL);
    gpu.act = p.act;
    host.act = make_act(&cpu, m, k);
    assert_int_equal(op_act_prepare(cpu.stream, host.act, &tx, ACT_INT8, NULL, NULL), 0);
    for (uint32_t i = 0; i < 3; i++) {
        size_t n = w[i].desc.n_rows;
        host.y[i] = poisoned(m * n);
        host.sum[i] = random_floats(random, m * n, 0.0f);
        bias[i] = random_floats(random, n, 0.0f);
        gpu.y[i] = poison_on_device(m * n);
        gpu.sum[i] = on_device(host.sum[i], m * n * sizeof(float));
        device_bias[i] = on_device(bias[i], n * sizeof(float));
    }
    run_parts(&host, w, bias, false, m, gated);
    run_parts(&gpu, w, device_bias, true, m, gated);
    for (uint32_t i = 0; i < 3; i++) {
        size_t n_bytes = (size_t)m * w[i].desc.n_rows * sizeof(float);
        back = malloc(n_bytes);
        fetch(back, gpu.y[i], n_bytes);
        if (!gated || i < 2)
            assert_same_bits(back, host.y[i], n_bytes, "y");
        fetch(back, gpu.sum[i], n_bytes);
        assert_same_bits(back, host.sum[i], n_bytes, "sum");
        free(back);
        drop(gpu.y[i], n_bytes);
        drop(gpu.sum[i], n_bytes);
        drop(device_bias[i], 0);
        free(host.y[i]);
        free(host.sum[i]);
        free(bias[i]);
    }
    cpu.ops->act_destroy(host.act);
    prepared_free(&p);
    free(x);
}

static void test_parts_and_gates_equal_the_cpus(void **state)
{
    (void)state;
    static const enum dtype types[][3] = {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q4_K},
                                          {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
                                          {DTYPE_Q6_K, DTYPE_Q6_K, DTYPE_Q8_0},
                                          {DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q4_0}};
    static const uint32_t rows[] = {1, 5, 20, 70, 129};
    struct random random = test_random(61);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            for (int gated = 0; gated < 2; gated++) {
                struct both w[3];
                uint32_t k = i == 3 ? 2048 : 512;
                for (uint32_t p = 0; p < 3; p++)
                    w[p] = random_both(
                        &random, column_desc(types[t][p], gated ? PARTS_N : PARTS_N - 17 * p, k));
                compare_parts(w, rows[i], k, gated, &random);
                for (uint32_t p = 0; p < 3; p++)
                    both_free(&w[p]);
            }
}

/* Computes y[M, N] = W · norm(x), and h = norm(x). Norm and integers take one op or two. */
static void run_normed(const struct weight *w, const struct norm_params *p, bool as_one,
                       float *dev_x, uint32_t m, uint32_t n, uint32_t k, float *y, float *h)
{
    struct error err = {0};
    struct act *act = NULL;
    struct op_table apart = *module.op_table;
    const struct op_table *ops = stream->ops;
    size_t y_bytes = (size_t)m * n * sizeof(float), h_bytes = (size_t)m * k * sizeof(float);
    void *dev_y = poison_on_device((size_t)m * n), *dev_h = poison_on_device((size_t)m * k);
    struct tensor tx = tensor_view(dev_x, DTYPE_F32, m, k),
                  th = tensor_view(dev_h, DTYPE_F32, m, k);
    struct tensor ty = tensor_view(dev_y, DTYPE_F32, m, n);
    apart.norm_prepare = NULL;
    assert_non_null(module.op_table->norm_prepare);
    assert_int_equal(module.op_table->act_create(device, m, k, &act, &err), 0);
    stream->ops = as_one ? module.op_table : &apart;
    assert_int_equal(op_norm_prepare(stream, act, &th, &tx, p, ACT_INT8), 0);
    stream->ops = ops;
    assert_int_equal(op_linear(stream, &ty, act, w), 0);
    fetch(y, dev_y, y_bytes);
    fetch(h, dev_h, h_bytes);
    module.op_table->act_destroy(act);
    drop(dev_y, y_bytes);
    drop(dev_h, h_bytes);
}

/* Rows that share a block of the norm, and rows of one or several chunks. Both norms have outliers.
 */
static void test_norm_and_integers_as_one_op_have_the_bits_of_two(void **state)
{
    (void)state;
    enum { M = 9, N = 35 };
    static const uint32_t widths[] = {64, 256, 576, 2048, 8224};
    struct random random = test_random(83);
    for (size_t i = 0; i < 2 * sizeof(widths) / sizeof(widths[0]); i++) {
        uint32_t k = widths[i / 2];
        float *x = activations(&random, SOME_OUTLIERS, M, k), *w = random_floats(&random, k, 0.1f);
        uint8_t *raw = random_rows(&random, DTYPE_Q8_0, N, k);
        struct weight_desc desc = column_desc(DTYPE_Q8_0, N, k);
        void *data, *dev_x = on_device(x, (size_t)M * k * sizeof(float));
        void *dev_w = on_device(w, k * sizeof(float));
        struct weight *weight = upload_weight(&desc, raw, &data);
        struct norm_params p = {i % 2 != 0, dev_w, i % 2 != 0 ? dev_w : NULL, 1e-5f};
        size_t h_bytes = (size_t)M * k * sizeof(float);
        float one[M * N], two[M * N], *h_one = malloc(h_bytes), *h_two = malloc(h_bytes);
        run_normed(weight, &p, true, dev_x, M, N, k, one, h_one);
        run_normed(weight, &p, false, dev_x, M, N, k, two, h_two);
        assert_same_bits(h_one, h_two, h_bytes, "the norm");
        assert_same_bits(one, two, sizeof(one), "what a linear makes of it");
        weight_unbind(module.op_table, weight);
        drop(data, 0);
        drop(dev_x, h_bytes);
        drop(dev_w, k * sizeof(float));
        free(h_one);
        free(h_two);
        free(raw);
        free(x);
        free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_sums_give_the_whole),
        cmocka_unit_test(test_norm_and_integers_as_one_op_have_the_bits_of_two),
        cmocka_unit_test(test_embedding_rows_out_of_linear_weights),
        cmocka_unit_test(test_parts_and_gates_equal_the_cpus),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
