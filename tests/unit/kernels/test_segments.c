/* The 8 segments of the numerics contract and what each rank holds of them. */
#include <string.h>

#include "base/error.h"
#include "tests/unit/kernels/support/support_kernels.h"

static void test_segments_are_whole_units_and_ranks_partition_them(void **state)
{
    (void)state;
    static const struct {
        uint32_t dim, granule, bounds[N_SEGMENTS + 1];
    } cases[] = {
        {576, 64, {0, 64, 128, 192, 256, 320, 384, 448, 576}}, /* 9 heads: the last segment has 2 */
        {1536, 1, {0, 192, 384, 576, 768, 960, 1152, 1344, 1536}},
        {192, 64, {0, 0, 0, 64, 64, 64, 128, 128, 192}},     /* 3 units: segments are empty */
        {80 * 4, 80, {0, 0, 0, 0, 160, 160, 160, 160, 320}}, /* two heads of 80 make 160 = 5·32 */
        {100, 1, {0, 0, 32, 32, 64, 64, 96, 96, 100}},       /* a short last unit */
        {32, 1, {0, 0, 0, 0, 0, 0, 0, 0, 32}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (uint32_t tp = 1; tp <= 8; tp *= 2) {
            uint32_t at = 0;
            for (uint32_t index = 0; index < tp; index++) {
                struct segments seg;
                struct error err = {0};
                uint32_t first = index * 8 / tp, last = (index + 1) * 8 / tp;
                bool holds = cases[i].bounds[last] > cases[i].bounds[first];
                int rc = segments_init(&seg, cases[i].dim, cases[i].granule, tp, index, &err);
                assert_int_equal(rc, holds ? 0 : STATUS_INVALID_ARGUMENT);
                if (rc != 0) {
                    assert_true(strlen(err.message) > 0);
                    continue;
                }
                assert_memory_equal(seg.bounds, cases[i].bounds, sizeof(seg.bounds));
                assert_int_equal(segments_begin(&seg), at);
                at = segments_end(&seg);
            }
        }
}

static void test_segments_refuse_bad_arguments(void **state)
{
    (void)state;
    struct segments seg;
    struct error err = {0};
    assert_int_equal(segments_init(&seg, 0, 1, 1, 0, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(segments_init(&seg, 100, 64, 1, 0, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(segments_init(&seg, 576, 64, 3, 0, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(segments_init(&seg, 576, 64, 2, 2, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(segments_init(&seg, 576, 0, 1, 0, &err), STATUS_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_are_whole_units_and_ranks_partition_them),
        cmocka_unit_test(test_segments_refuse_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
