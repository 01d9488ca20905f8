/* model_rows.h: what the files of a model share among themselves. Internal to engine/model. */
#pragma once

#include "engine/model/model.h"

/* The length of a dimension in the file. */
uint32_t model_file_dim(const struct model_shape *shape, uint32_t layer, enum arch_dim dim);
/* Rows of the slot's tensor before its own, which nothing uses. */
uint32_t model_unused_rows(const struct model *model, enum arch_slot slot);

/* model_info.c: fills model->info from the shape and the checkpoint. */
void model_fill_info(struct model *model);
