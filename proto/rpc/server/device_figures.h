/* device_figures.h: NVML's figures of a GPU as sluice.v1.DeviceFigures, for the manager and the
 * worker's probe, which allocate messages differently. Any thread. */
#pragma once

#include "sluice/v1/common.pb-c.h"

struct nvml_figures;

/* Fills every number; the caller fills throttle_reasons, which need memory for texts. */
void device_figures_fill(Sluice__V1__DeviceFigures *message, const struct nvml_figures *figures);
