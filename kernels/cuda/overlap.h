/* overlap.h: kernels that start while the previous op still runs (CUDA's programmatic dependent
 * launch, compute capability 9.0 and above). Between two ops of a stream a GPU normally drains and
 * refills, which takes a microsecond or more. With overlap, the next kernel's blocks start as soon
 * as all blocks of the previous kernel have started. They fetch data that no op writes, and then
 * wait for the rest (cuda_op_begin(), thread.h). This holds for streams and for captured steps. Ops
 * that are not our kernels, and the kernel after such an op, keep the normal order. Results do not
 * change. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/index.h"

/* The function that overlap_probe.cu applies to a word: another order of ops gives another
 * result. */
CUDA_HD uint32_t overlap_probe_next(uint32_t word, uint32_t add)
{
    return 3 * word + add;
}

#ifdef __cplusplus
extern "C" {
#endif

struct error;

/* True if launches of this thread overlap; set by the thread's last choice of a device. */
bool overlap_of_thread(void);
void overlap_set_thread(bool on);

/* Decides if launches of device `index`, which is current, should overlap. SLUICE_CUDA_OVERLAP
 * "auto" (default): yes if the device supports it and a test passes. The test captures and replays
 * a few ops, and shows that the driver keeps their order. "off": no. *out_why_not (static; NULL if
 * *out_on) names the reason. Fails for an invalid value of the variable, and if the device is
 * lost. */
int overlap_open(uint32_t index, int major, bool *out_on, const char **out_why_not,
                 struct error *err);

/* In overlap_probe.cu: applies overlap_probe_next() to n words. */
int cuda_launch_overlap_probe(void *stream, uint32_t *words, uint32_t n, uint32_t add);

#ifdef __cplusplus
}
#endif
