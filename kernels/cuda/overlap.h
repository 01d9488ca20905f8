/* overlap.h: kernels that are launched while the op queued before them still runs (CUDA's
 * programmatic dependent launch, compute capability 9.0 and above). Between two ops of a stream a
 * GPU drains and fills again, a microsecond or more each time; here the next kernel's blocks come
 * as soon as those of the one before have all begun, fetch what no op writes, and wait for the rest
 * (cuda_op_begin(), thread.h). In streams and in captured steps alike; ops that are no kernels of
 * ours, and the kernel after one, are ordered as ever. Which bits come out does not change. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/index.h"

/* What overlap_probe.cu makes of a word: ops in another order have another result. */
CUDA_HD uint32_t overlap_probe_next(uint32_t word, uint32_t add)
{
    return 3 * word + add;
}

#ifdef __cplusplus
extern "C" {
#endif

struct error;

/* Whether this thread's launches overlap: as it chose last, as it chooses the device. */
bool overlap_of_thread(void);
void overlap_set_thread(bool on);

/* Whether launches of device `index`, which is current, should overlap. SLUICE_CUDA_OVERLAP: "auto"
 * (default) where the device has it and a few ops, captured and replayed, show that the driver
 * takes it and keeps their order; "off". *out_why_not (static; NULL where *out_on) says what is
 * missing. Fails for what the variable may not be, and where the device is lost. */
int overlap_open(uint32_t index, int major, bool *out_on, const char **out_why_not,
                 struct error *err);

/* overlap_probe.cu: overlap_probe_next() of n words. */
int cuda_launch_overlap_probe(void *stream, uint32_t *words, uint32_t n, uint32_t add);

#ifdef __cplusplus
}
#endif
