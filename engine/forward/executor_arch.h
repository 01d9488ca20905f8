/* executor_arch.h: opening an executor with a given descriptor instead of the one that the file
 * names. For tests of descriptors; everyone else calls executor_open(). */
#pragma once

#include "engine/forward/executor.h"
#include "engine/model/arch/arch.h"

/* arch NULL: as executor_open(). `arch` is borrowed until close. */
int executor_open_arch(struct checkpoint *ckpt, const struct arch *arch,
                       const struct executor_config *cfg, executor_progress_fn *progress, void *ctx,
                       const atomic_bool *cancel, struct executor **out_executor,
                       struct error *err);
