/* loader_rows.h: reads rows of a weight from the checkpoint. In the file's tensor they lie one
 * after the other, between the rows of other weights, or as columns. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/plan.h"

struct error;

/* Rows of a weight that are read together: about n_bytes, a multiple of WEIGHT_PACK_ROWS. A row of
 * the file gives one element of a transposed row, so as many rows are taken as most_bytes holds. */
uint32_t loader_rows_chunk(const struct weight_place *place, uint64_t n_bytes, uint64_t most_bytes);
/* True if the rows of both alternate one by one in the file, as gate and up of gpt-oss do. */
bool loader_rows_alternate(const struct weight_place *a, const struct weight_place *b);
/* Reads rows [begin, begin + n) of two places that alternate, and the file's bytes only once. */
int loader_rows_read_both(const struct checkpoint *ckpt, const struct weight_place *a,
                          const struct weight_place *b, uint32_t begin, uint32_t n,
                          unsigned char *dst_a, unsigned char *dst_b, struct error *err);
/* Reads the local rows [begin, begin + n) into dst: n × place->row_bytes. */
int loader_rows_read(const struct checkpoint *ckpt, const struct weight_place *place,
                     uint32_t begin, uint32_t n, unsigned char *dst, struct error *err);
/* Drops the rows' pages from the page cache. With rows that alternate one by one, the pages of the
 * rows between them go too. */
void loader_rows_drop(const struct checkpoint *ckpt, const struct weight_place *place,
                      uint32_t begin, uint32_t n);
