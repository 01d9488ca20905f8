/* pack_int.h: one raw row onto integer multiples of its unit (block integers, weight_cpu.h). The
 * unit is taken from the whole row, so all ranks that hold parts of it agree. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct weight_cpu;

/* False where a value is not finite. `row` is local; raw is the whole raw row. */
bool pack_int4_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);
bool pack_int8_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);
bool pack_super_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw);

/* A lane's four codes of a line at once, whatever the order of bytes. */
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
