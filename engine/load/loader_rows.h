/* loader_rows.h: reads rows of a weight from the checkpoint. In the file's tensor they lie one
 * after the other, between the rows of other weights, or as columns. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/model/plan.h"

struct error;

/* Rows of a weight that are read together: about n_bytes, a multiple of WEIGHT_PACK_ROWS. */
uint32_t loader_rows_chunk(const struct weight_place *place, uint64_t n_bytes);
/* Reads the local rows [begin, begin + n) into dst: n × place->row_bytes. */
int loader_rows_read(const struct checkpoint *ckpt, const struct weight_place *place,
                     uint32_t begin, uint32_t n, unsigned char *dst, struct error *err);
/* Drops the rows' pages from the page cache. */
void loader_rows_drop(const struct checkpoint *ckpt, const struct weight_place *place,
                      uint32_t begin, uint32_t n);
