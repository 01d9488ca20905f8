#include "tests/unit/engine/support/support_observe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_model.h"

struct checkpoint *observe_open(const char *golden)
{
    struct checkpoint *ckpt = NULL;
    struct error err = {0};
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), golden);
    if (checkpoint_open(path, &ckpt, &err) != 0)
        fail_msg("%s", err.message);
    return ckpt;
}

static void run_ids(struct executor *ex, struct observation *seen)
{
    struct step_limits limits = {OBSERVE_TOKENS, 1, 2, 0, false};
    struct step_batch *b;
    struct error err = {0};
    assert_int_equal(step_batch_create(&limits, &b, &err), 0);
    for (uint32_t i = 0; i < OBSERVE_TOKENS; i++) {
        b->token_ids[i] = (i * 37 + 5) % seen->vocab;
        b->positions[i] = b->kv_slots[i] = i;
        b->seq_of_row[i] = 0;
    }
    b->block_tables[1] = 1;
    b->n_rows = b->seq_start[1] = OBSERVE_TOKENS;
    b->n_seqs = b->n_sample_rows = 1;
    step_batch_use_slot(b, 0, 0, true);
    b->sample_rows[0] = OBSERVE_TOKENS - 1;
    if (executor_step(ex, b, &err) != 0)
        snprintf(seen->error, sizeof(seen->error), "%s", err.message);
    else
        memcpy(seen->logits, executor_logits(ex, 0), seen->vocab * sizeof(float));
    step_batch_destroy(b);
}

void observe(const struct arch *arch, struct checkpoint *ckpt, struct observation *seen)
{
    struct error err = {0};
    struct executor *ex = NULL;
    struct executor_config cfg = model_run_config("f32");
    memset(seen, 0, sizeof(*seen));
    cfg.n_threads = 1;
    cfg.max_rows = OBSERVE_TOKENS;
    cfg.max_seqs = 1;
    cfg.max_context_tokens = 32;
    cfg.kv_tokens = 32;
    if (executor_open_arch(ckpt, arch, &cfg, NULL, NULL, NULL, &ex, &err) != 0) {
        snprintf(seen->error, sizeof(seen->error), "%s", err.message);
        return;
    }
    seen->vocab = executor_model_info(ex)->vocab_size;
    assert_true(seen->vocab <= OBSERVE_MAX_VOCAB);
    run_ids(ex, seen);
    executor_close(ex);
}

bool observe_same(const struct observation *a, const struct observation *b)
{
    if (strcmp(a->error, b->error) != 0 || a->vocab != b->vocab)
        return false;
    return a->error[0] || model_relative_error(a->logits, b->logits, a->vocab) <= 2e-5;
}
