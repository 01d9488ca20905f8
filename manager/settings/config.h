/* config.h: a ModelConfig: its checks, its equality, and the merge of two. Any thread. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"

struct error;

/* Checks the value of every setting. INVALID_ARGUMENT, or UNIMPLEMENTED for a setting that is
 * not built yet, naming `field`.member. `config` may be NULL. */
int config_check(const char *field, const pb_config *config, struct error *err);
/* Compares the config with the model: a context length over the trained one is refused. */
int config_check_fits(const char *field, const pb_config *config, const pb_info *info,
                      struct error *err);
/* Refuses a value that works on a GPU only, on a group without GPUs. */
int config_check_devices(const char *field, const pb_config *config, const pb_group *group,
                         struct error *err);
/* True where both have the same settings; NULL equals no settings. */
bool config_equal(const pb_config *a, const pb_config *b);
/* Merges two configs: the settings of `over` where set, else those of `under`. Owned. NULL where
 * memory is exhausted. */
pb_config *config_merge(const pb_config *under, const pb_config *over);
/* True where the merge of two configs ignores the default sampling of the model's files. */
bool config_ignores_sampling(const pb_config *under, const pb_config *over);
