/* support_probe.h: opens the probes (tests/gpu/probe/probe.h): the library that SLUICE_GPU_PROBE
 * names, else libgpu_probe.so beside the program or in ../lib. */
#pragma once

#include "tests/gpu/probe/probe.h"

/* Returns NULL and a reason where no library opens. The reason is valid until the next call. */
const struct gpu_probe *support_probe_open(const char **out_why);
