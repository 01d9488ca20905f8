/* Symptom: errors named "config.gpu_memory_bytes" to users of --gpu-memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/settings/options.h"
#include "base/strbuf.h"
#include "clients/cli/shell/flag_words.h"

static const struct option_spec specs[] = {
    {.name = "gpu-memory"}, {.name = "gpu-layers"},    {.name = "devices"},
    {.name = "kernels"},    {.name = "kv-tokens"},     {.name = "replicas"},
    {.name = "expires"},    {.name = "ttft-quantile"}, {.name = "steps"},
};

static void test_fields_are_told_as_the_flags_they_are(void **state)
{
    static const struct {
        const char *message, *told;
    } cases[] = {
        {"config.gpu_memory_bytes: 0 is not", "--gpu-memory: 0 is not"},
        {"gpu_memory_bytes: 0 is not", "--gpu-memory: 0 is not"},
        {"the version's config.gpu_layers: no", "the version's --gpu-layers: no"},
        {"lower gpu_layers, kv_tokens or context_length",
         "lower --gpu-layers, --kv-tokens or context_length"}, /* there is no such option */
        {"devices: \"gpu0\" is not", "--devices: \"gpu0\" is not"},
        {"device: \"gpu0\" is not", "--devices: \"gpu0\" is not"},
        {"the devices: none", "the devices: none"},
        {"kernels are slow", "kernels are slow"},
        {"config.kernels: is none of", "--kernels: is none of"},
        {"n_replicas: 0", "--replicas: 0"},
        {"expires_unix_ns: is past", "--expires: is past"},
        {"my_gpu_layers and gpu_layers_2", "my_gpu_layers and gpu_layers_2"},
        {"config.json", "config.json"},
        {"gates.ttft_quantile: 2 is not", "--ttft-quantile: 2 is not"},
        {"steps: the last one is 10, not 100", "--steps: the last one is 10, not 100"},
        {"the gates.max_ttft_ms", "the gates.max_ttft_ms"}, /* there is no such option */
        {"it is parked; WakeModelVersion wakes it", "it is parked; sluice wake wakes it"},
        {"no model \"kv_tokens\"", "no model \"kv_tokens\""},
        {"\"LoadModelVersion\" is loaded; kv_tokens: \"",
         "\"LoadModelVersion\" is loaded; --kv-tokens: \""},
        {"LoadModelVersions and config.LoadModelVersion",
         "LoadModelVersions and config.LoadModelVersion"},
        {"", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct strbuf out = {0};
        flag_words_add(specs, sizeof(specs) / sizeof(specs[0]), cases[i].message, &out);
        assert_string_equal(strbuf_str(&out), cases[i].told);
        strbuf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_are_told_as_the_flags_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
