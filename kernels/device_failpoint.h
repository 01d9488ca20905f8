/* device_failpoint.h: where a test lets a device fail without one. SLUICE_DEVICE_FAULT=FILE in the
 * environment of a build with SLUICE_DEBUG_CHECKS: the first step of any process that finds FILE
 * (the error code of the driver, as "700") takes it away and fails as if device 0 had said so. In
 * other builds the call is empty. Engine thread only. */
#pragma once

struct error;

#if SLUICE_DEBUG_CHECKS
int device_failpoint(struct error *err);
#else
static inline int device_failpoint(struct error *err)
{
    (void)err;
    return 0;
}
#endif
