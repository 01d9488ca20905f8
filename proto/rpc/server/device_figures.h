/* device_figures.h: what NVML tells of a GPU as sluice.v1.DeviceFigures, for the manager and for
 * the worker's probe, which keep messages in memory of their own kinds. Any thread. */
#pragma once

#include "sluice/v1/common.pb-c.h"

struct nvml_figures;

/* Every number; throttle_reasons are the caller's, who has somewhere to put texts. */
void device_figures_fill(Sluice__V1__DeviceFigures *message, const struct nvml_figures *figures);
