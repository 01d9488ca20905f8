/* support_observe.h: what a table makes of a golden checkpoint: a refusal, or logits. Tests change
 * a table in one place and expect another result. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model/arch/arch.h"

struct checkpoint;

enum { OBSERVE_MAX_VOCAB = 320, OBSERVE_TOKENS = 24 };

/* Result for one checkpoint: a refusal's text, or the logits of its last token. */
struct observation {
    char error[ERROR_MESSAGE_BYTES];
    float logits[OBSERVE_MAX_VOCAB];
    uint32_t vocab;
};

/* Opens a golden below tests/golden/tiny; the caller closes it. */
struct checkpoint *observe_open(const char *golden);
/* Runs the same tokens in f32. */
void observe(const struct arch *arch, struct checkpoint *ckpt, struct observation *seen);
/* True for equal refusals, or for logits that agree within 2e-5. */
bool observe_same(const struct observation *a, const struct observation *b);
