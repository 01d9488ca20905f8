/* Compares the instructions of ptx.h with plain loops. Products run on random fragments in the
 * layout of ptx.h. Also tests ldmatrix, and the visibility of copies into shared memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/ptx_word.h"
#include "tests/simt/test/test_support.h"

static int launched(int code)
{
    return code != 0 ? code : (int)cudaDeviceSynchronize();
}

/* --- products --- */

/* A number format. value() decodes its bits by the test's own arithmetic. */
struct format {
    unsigned n_bytes;
    double (*value)(uint32_t bits);
    uint32_t (*draw)(uint32_t random); /* returns the bits of a finite number */
};

static double ieee(uint32_t bits, int exponent_bits, int fraction_bits)
{
    int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    int fraction = (int)bits & ((1 << fraction_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double x = exponent == 0
                   ? ldexp(fraction, 1 - bias - fraction_bits)
                   : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits >> (exponent_bits + fraction_bits) & 1 ? -x : x;
}

static const format bf16 = {2, [](uint32_t b) { return ieee(b, 8, 7); },
                            [](uint32_t r) { return (r & 0x83FF) | 0x3C00; }};
static const format f16 = {
    2, [](uint32_t b) { return ieee(b, 5, 10); },
    [](uint32_t r) { return (r & 0x7C00) == 0x7C00 ? r & 0x83FF : r & 0xFFFF; }};
static const format e4m3 = {1, [](uint32_t b) { return ieee(b, 4, 3); },
                            [](uint32_t r) { return (r & 0x7F) == 0x7F ? r & 0x87 : r & 0xFF; }};
static const format s8 = {1, [](uint32_t b) { return (double)(int8_t)b; },
                          [](uint32_t r) { return r & 0xFF; }};
static const format u8 = {1, [](uint32_t b) { return (double)(uint8_t)b; },
                          [](uint32_t r) { return r & 0xFF; }};

enum product { BF16, F16, E4M3, S8, U8S8 };

struct fragments {
    uint32_t a[4], b[2], d[4]; /* d: floats or int32 */
};

static __global__ void multiply_fragments(struct fragments *f, int product)
{
    struct fragments own = f[threadIdx.x];
    float d[4];
    int32_t i[4];
    memcpy(d, own.d, sizeof(d));
    memcpy(i, own.d, sizeof(i));
    if (product == BF16)
        mma_m16n8k16_bf16(d, own.a, own.b);
    else if (product == F16)
        mma_m16n8k16_f16(d, own.a, own.b);
    else if (product == E4M3)
        mma_m16n8k32_e4m3(d, own.a, own.b);
    else if (product == S8)
        mma_m16n8k32_s8(i, own.a, own.b);
    else
        mma_m16n8k32_u8s8(i, own.a, own.b);
    if (product >= S8)
        memcpy(own.d, i, sizeof(i));
    else
        memcpy(own.d, d, sizeof(d));
    f[threadIdx.x] = own;
}

/* Place of element (row, k) of A by the tables of ptx.h: lane, register, byte. */
struct place {
    unsigned lane, index, byte;
};

static place place_of_a(unsigned row, unsigned k, unsigned n_bytes)
{
    unsigned n = 4 / n_bytes; /* elements of a register */
    return {row % 8 * 4 + k % (4 * n) / n, row / 8 + k / (4 * n) * 2, k % n * n_bytes};
}

static place place_of_b(unsigned k, unsigned column, unsigned n_bytes)
{
    unsigned n = 4 / n_bytes;
    return {column * 4 + k % (4 * n) / n, k / (4 * n), k % n * n_bytes};
}

static void put(uint32_t *word, const place &p, uint32_t bits)
{
    word[p.index] |= bits << (8 * p.byte);
}

/* Runs one product. Returns how many of the 128 sums equal those of the plain loop. `misplaced`
 * swaps two rows of A, which must show. */
static int count_sound(enum product product, const format &fa, const format &fb,
                       random_numbers &random, bool misplaced)
{
    unsigned n_k = 32 / fa.n_bytes;
    std::vector<struct fragments> f(32);
    memset(f.data(), 0, f.size() * sizeof(f[0]));
    std::vector<double> a(16 * n_k), b(n_k * 8), d(16 * 8);
    for (unsigned m = 0; m < 16; m++)
        for (unsigned k = 0; k < n_k; k++) {
            uint32_t bits = fa.draw(random.next());
            place p = place_of_a(misplaced ? m ^ 1 : m, k, fa.n_bytes);
            a[m * n_k + k] = fa.value(bits);
            put(f[p.lane].a, p, bits);
        }
    for (unsigned k = 0; k < n_k; k++)
        for (unsigned n = 0; n < 8; n++) {
            uint32_t bits = fb.draw(random.next());
            place p = place_of_b(k, n, fb.n_bytes);
            b[k * 8 + n] = fb.value(bits);
            put(f[p.lane].b, p, bits);
        }
    for (unsigned m = 0; m < 16; m++)
        for (unsigned n = 0; n < 8; n++) {
            int32_t start = (int32_t)(random.next() % 2001) - 1000;
            uint32_t *at = &f[m % 8 * 4 + n / 2].d[m / 8 * 2 + n % 2];
            d[m * 8 + n] = start;
            *at = product >= S8 ? (uint32_t)start : __float_as_uint((float)start);
        }
    on_device<struct fragments> device(f);
    assert_int_equal(
        launched(CUDA_LAUNCH(multiply_fragments, 1, 32, 0, NULL, device.data, (int)product)), 0);
    f = device.fetch();
    int n_sound = 0;
    for (unsigned m = 0; m < 16; m++)
        for (unsigned n = 0; n < 8; n++) {
            double sum = d[m * 8 + n], size = fabs(sum);
            for (unsigned k = 0; k < n_k; k++) {
                sum += a[m * n_k + k] * b[k * 8 + n];
                size += fabs(a[m * n_k + k] * b[k * 8 + n]);
            }
            uint32_t bits = f[m % 8 * 4 + n / 2].d[m / 8 * 2 + n % 2];
            double found = product >= S8 ? (double)(int32_t)bits : (double)__uint_as_float(bits);
            /* the emulation promises a single rounding; a tensor core promises less */
            n_sound += fabs(found - sum) <= (product >= S8 ? 0.0 : size * 0x1p-24);
        }
    return n_sound;
}

static void test_products_are_the_plain_loops(void **)
{
    static const struct {
        enum product product;
        const format &a, &b;
    } products[] = {
        {BF16, bf16, bf16}, {F16, f16, f16}, {E4M3, e4m3, e4m3}, {S8, s8, s8}, {U8S8, u8, s8}};
    random_numbers random = {5};
    for (const auto &p : products)
        for (int round = 0; round < 20; round++) {
            assert_int_equal(count_sound(p.product, p.a, p.b, random, false), 128);
            assert_true(count_sound(p.product, p.a, p.b, random, true) < 64);
        }
}

/* Factors that widen int8 weights: 128 + (q & 127) less 128 or 256. */
static void test_sums_of_bf16_pairs_are_rounded_once(void **)
{
    for (int q = -128; q < 128; q++) {
        uint32_t low = 0x4300u | ((uint32_t)q & 0x7F), high = 0xC300u | ((uint32_t)q & 0x80);
        uint32_t sum = add_bf16x2(low << 16 | 0x3F80, high << 16 | 0x3F80);
        assert_true(ieee(sum >> 16, 8, 7) == q);
        assert_int_equal(sum & 0xFFFF, 0x4000); /* the other half adds 1 + 1 */
    }
    /* the sum 128.5 rounds to the even neighbour */
    assert_int_equal(add_bf16x2(0x4300, 0x3F00), 0x4300);
    assert_int_equal(add_bf16x2(0x4301, 0x3F00), 0x4302);
}

/* The largest sums of a product fit 32 bits. Beyond 32 bits an integer sum wraps. */
static void test_integer_sums_are_exact_and_wrap(void **)
{
    std::vector<struct fragments> f(32);
    for (auto &x : f)
        x = {{0x80808080u, 0x80808080u, 0x80808080u, 0x80808080u},
             {0x80808080u, 0x80808080u},
             {0x7FFFFFFFu, 0, 0, 0}};
    on_device<struct fragments> device(f);
    assert_int_equal(
        launched(CUDA_LAUNCH(multiply_fragments, 1, 32, 0, NULL, device.data, (int)S8)), 0);
    f = device.fetch();
    assert_int_equal(f[9].d[0], 0x7FFFFFFFu + 32 * 128 * 128);
    assert_int_equal(f[9].d[3], 32 * 128 * 128);
}

/* --- ldmatrix --- */

enum { ROW_BYTES = 48 }; /* three times 16 bytes: rows need not be adjacent */

static __global__ void load_matrices(uint32_t *out, uint32_t *out_trans)
{
    CUDA_SHARED(shared);
    for (unsigned i = threadIdx.x; i < 32 * 8; i += blockDim.x) { /* element: row · 256 + column */
        uint16_t x = (uint16_t)(i / 8 * 256 + i % 8);
        memcpy(shared + i / 8 * ROW_BYTES + i % 8 * 2, &x, sizeof(x));
    }
    __syncthreads();
    uint32_t r[4];
    ldmatrix_x4(r, shared + threadIdx.x * ROW_BYTES);
    memcpy(out + threadIdx.x * 4, r, sizeof(r));
    ldmatrix_x4_trans(r, shared + threadIdx.x * ROW_BYTES);
    memcpy(out_trans + threadIdx.x * 4, r, sizeof(r));
}

/* Rounds to nearest even, as the GPU does. An f16 beyond its range is infinite. */
static void test_pairs_are_rounded_and_widened(void **)
{
    float back[2];
    assert_int_equal(pack_bf16x2(1.0f, -2.0f), 0xC0003F80u);
    /* halfway cases go to even */
    assert_int_equal(pack_bf16x2(1.00390625f, 1.01171875f), 0x3F823F80u);
    assert_int_equal(pack_f16x2(1.0f, -2.0f), 0xC0003C00u);
    assert_int_equal(pack_f16x2(65504.0f, 65520.0f), 0x7C007BFFu);
    assert_int_equal(pack_f16x2(0x1p-24f, 0x1p-26f), 0x00000001u);
    unpack_f16x2(back, 0x0001BC00u);
    assert_true(back[0] == -1.0f && back[1] == 0x1p-24f);
    assert_int_equal(sub_f16x2(0x64FF6400u, 0x64806480u), 0x57F0D800u); /* 127, −128 */
}

static void test_ldmatrix_gives_rows_or_columns(void **)
{
    on_device<uint32_t> out(128), out_trans(128);
    assert_int_equal(
        launched(CUDA_LAUNCH(load_matrices, 1, 32, 32 * ROW_BYTES, NULL, out.data, out_trans.data)),
        0);
    std::vector<uint32_t> rows = out.fetch(), columns = out_trans.fetch();
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            unsigned g = lane / 4, t = lane % 4;
            unsigned row = (m * 8 + g) * 256, other = (m * 8 + 2 * t) * 256;
            assert_int_equal(rows[lane * 4 + m], (row + 2 * t) | (row + 2 * t + 1) << 16);
            assert_int_equal(columns[lane * 4 + m], (other + g) | (other + 256 + g) << 16);
        }
}

/* --- copies into shared memory --- */

enum waiting { WAITS, WAITS_FOR_ALL_BUT_ONE, COMMITS_ONLY, WAITS_WITHOUT_COMMIT };

/* Copies two groups, and stores the bytes that it finds after its wait. */
static __global__ void copy_then_look(const uint4 *in, uint4 *out, int how)
{
    CUDA_SHARED(shared);
    uint4 *own = (uint4 *)(void *)shared + threadIdx.x * 2;
    own[0] = own[1] = make_uint4(1, 1, 1, 1);
    cp_async_16(&own[0], &in[threadIdx.x], true);
    if (how != WAITS_WITHOUT_COMMIT)
        cp_async_commit();
    cp_async_16(&own[1], threadIdx.x % 2 ? NULL : &in[threadIdx.x], threadIdx.x % 2 == 0);
    if (how != WAITS_WITHOUT_COMMIT)
        cp_async_commit();
    if (how == WAITS || how == WAITS_WITHOUT_COMMIT)
        cp_async_wait<0>();
    else if (how == WAITS_FOR_ALL_BUT_ONE)
        cp_async_wait<1>();
    out[threadIdx.x * 2] = own[0];
    out[threadIdx.x * 2 + 1] = own[1];
}

static void test_copies_are_seen_after_their_wait_alone(void **)
{
    enum { N = 64 };
    std::vector<uint4> in(N);
    for (unsigned i = 0; i < N; i++)
        in[i] = make_uint4(i, i + 1, i + 2, i + 3);
    on_device<uint4> device(in), out(2 * N);
    for (int how = WAITS; how <= WAITS_WITHOUT_COMMIT; how++) {
        assert_int_equal(
            launched(CUDA_LAUNCH(copy_then_look, 1, N, 32 * N, NULL, device.data, out.data, how)),
            0);
        std::vector<uint4> found = out.fetch();
        bool first = how == WAITS || how == WAITS_FOR_ALL_BUT_ONE, second = how == WAITS;
        for (unsigned i = 0; i < N; i++) {
            uint4 poison = make_uint4(~0u, ~0u, ~0u, ~0u), zero = make_uint4(0, 0, 0, 0);
            uint4 wanted[2] = {first ? in[i] : poison, !second ? poison : i % 2 ? zero : in[i]};
            assert_memory_equal(&found[i * 2], wanted, sizeof(wanted));
        }
    }
}

/* Each thread copies a word to a place of its own, and stores the place before and after its wait.
 */
static __global__ void copy_words(const uint32_t *in, uint32_t *out)
{
    CUDA_SHARED(shared);
    uint32_t *own = (uint32_t *)(void *)shared + threadIdx.x;
    *own = 1;
    cp_async_4(own, in + threadIdx.x);
    cp_async_commit();
    out[threadIdx.x * 2] = *own;
    cp_async_wait<0>();
    out[threadIdx.x * 2 + 1] = *own;
}

static void test_words_are_seen_after_their_wait_alone(void **)
{
    enum { N = 64 };
    std::vector<uint32_t> in(N);
    for (unsigned i = 0; i < N; i++)
        in[i] = i * 7 + 2;
    on_device<uint32_t> device(in), out(2 * N);
    assert_int_equal(launched(CUDA_LAUNCH(copy_words, 1, N, 4 * N, NULL, device.data, out.data)),
                     0);
    std::vector<uint32_t> found = out.fetch();
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(found[i * 2], ~0u);
        assert_int_equal(found[i * 2 + 1], in[i]);
    }
}

static __global__ void read_once(const uint4 *in, uint4 *out)
{
    out[threadIdx.x] = load_once_16(&in[threadIdx.x]);
}

static void test_bytes_that_are_read_once_are_read(void **)
{
    std::vector<uint4> in(32);
    for (unsigned i = 0; i < 32; i++)
        in[i] = make_uint4(i * 5, 1, 2, ~i);
    on_device<uint4> device(in), out(32);
    assert_int_equal(launched(CUDA_LAUNCH(read_once, 1, 32, 0, NULL, device.data, out.data)), 0);
    assert_memory_equal(out.fetch().data(), in.data(), sizeof(uint4) * 32);
}

/* --- errors that a GPU reports --- */

static __global__ void load_from(const unsigned char *global, int how)
{
    CUDA_SHARED(shared);
    uint32_t r[4];
    if (how == 0)
        ldmatrix_x4(r, shared + threadIdx.x * 16 + 8);
    else if (how == 1)
        ldmatrix_x4(r, global);
    else if (how == 2)
        cp_async_16((void *)(uintptr_t)global, global, true);
    else if (how == 3)
        cp_async_16(shared, global + 4, true);
    else if (how == 4)
        load_once_16(global + 4);
    else
        cp_async_4(shared + 2, global);
}

static int load_badly(int how)
{
    on_device<unsigned char> x(1024);
    return launched(CUDA_LAUNCH(load_from, 1, 32, 1024, NULL, x.data, how));
}

static const child_case cases[] = {
    {"ldmatrix askew", [] { return load_badly(0); }},
    {"ldmatrix global", [] { return load_badly(1); }},
    {"copy to global", [] { return load_badly(2); }},
    {"copy askew", [] { return load_badly(3); }},
    {"read askew", [] { return load_badly(4); }},
    {"word askew", [] { return load_badly(5); }},
};

static void test_addresses_that_a_gpu_refuses_are_refused(void **)
{
    expect_abort("ldmatrix askew", "is not 16-byte aligned");
    expect_abort("ldmatrix global", "is not in the block's shared memory");
    expect_abort("copy to global", "is not in the block's shared memory");
    expect_abort("copy askew", "is not 16-byte aligned");
    expect_abort("word askew", "is not 4-byte aligned");
    expect_abort("read askew", "kernel load_from, block (0,0,0) of (1,1,1), thread (0,0,0)");
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_the_plain_loops),
        cmocka_unit_test(test_sums_of_bf16_pairs_are_rounded_once),
        cmocka_unit_test(test_integer_sums_are_exact_and_wrap),
        cmocka_unit_test(test_pairs_are_rounded_and_widened),
        cmocka_unit_test(test_ldmatrix_gives_rows_or_columns),
        cmocka_unit_test(test_copies_are_seen_after_their_wait_alone),
        cmocka_unit_test(test_words_are_seen_after_their_wait_alone),
        cmocka_unit_test(test_bytes_that_are_read_once_are_read),
        cmocka_unit_test(test_addresses_that_a_gpu_refuses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
