/* support_family.h: the checks of a family's golden checkpoints (tests/golden/tiny), shared by the
 * tests of each group of families. A prompt and 32 steps go past window and original context. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A family's golden files: NAME/ is the folder, NAME.gguf the same weights. */
struct family {
    const char *name;
    bool has_gguf;
    uint32_t max_tp; /* ranks that the shapes allow */
};

/* The set f32 has the logits of transformers from the folder and from the GGUF. */
void family_check_logits(const struct family *families, size_t n);
/* The contract's sets have them within their bound. */
void family_check_contract(const struct family *families, size_t n);
/* Layers split over ranks, and prompts in pieces of any size, give the same bits. */
void family_check_bits(const struct family *families, size_t n);
/* The bits of a row do not depend on the rows beside it, nor on the pieces of its prompt. Runs
 * NAME.gguf: four sequences alone, whole, and then side by side in random pieces. The keys of every
 * second sequence are rotated by longrope's long table. */
void family_check_batches(const char *name);
