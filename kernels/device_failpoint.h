/* device_failpoint.h: lets a test simulate a device failure without a GPU. Needs a build with
 * SLUICE_DEBUG_CHECKS and SLUICE_DEVICE_FAULT=FILE in the environment. FILE contains a driver's
 * error code, such as "700". The first step of any process that finds FILE deletes it and fails as
 * if device 0 had returned that code. In other builds the call is empty. Engine thread only. */
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
