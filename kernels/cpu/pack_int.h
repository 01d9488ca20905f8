/* pack_int.h: converts a raw row to integer multiples of a unit (block integers, weight_cpu.h). The
 * unit depends on the whole row, so all ranks that hold parts of the row use the same unit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct weight_cpu;

/* Returns false if a value is not finite. `row` is local; `raw` is the whole raw row. */
bool pack_int4_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);
bool pack_int8_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);
bool pack_super_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);

/* Loads or stores a lane's four codes at once; independent of byte order. */
static inline uint32_t pack_load32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}
static inline void pack_store32(uint8_t *at, uint32_t x)
{
    memcpy(at, &x, sizeof(x));
}

/* weight_at() of a PACK_SUPER weight. */
int pack_super_weight_at(const struct weight_cpu *w, uint32_t row, uint32_t k);
