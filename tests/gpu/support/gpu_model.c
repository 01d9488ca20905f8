#include "tests/gpu/support/gpu_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint32_t ids[MODEL_RUN_MAX_SEQS][N_TOKENS];

int make_ids(void **state)
{
    uint32_t x = 11;
    (void)state;
    for (uint32_t s = 0; s < MODEL_RUN_MAX_SEQS; s++)
        for (uint32_t i = 0; i < N_TOKENS; i++) {
            x = x * 1664525U + 1013904223U;
            ids[s][i] = (x >> 10) % VOCAB;
        }
    return 0;
}

struct executor_config gpu_config(void)
{
    struct executor_config cfg = model_run_config("f32");
    cfg.device = "cuda:0";
    return cfg;
}

float *run_alone(const struct tiny_spec *spec, const struct executor_config *cfg, uint32_t i_seq,
                 uint32_t chunk, bool generated)
{
    struct model_run run;
    float *out = malloc((size_t)N_TOKENS * VOCAB * sizeof(float));
    assert_non_null(out);
    model_run_open_ckpt(&run, tiny_open(spec), cfg);
    run.generated = generated;
    model_run_all(&run, ids[i_seq], N_TOKENS, chunk, false, out);
    model_run_close(&run);
    return out;
}

void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: logit %zu of row %zu is %.9g, expected %.9g", what, i % VOCAB, i / VOCAB,
                     (double)a[i], (double)b[i]);
}
