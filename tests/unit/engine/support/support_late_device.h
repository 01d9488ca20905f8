/* support_late_device.h: a simulated device that copies as late as allowed. A queued copy runs when
 * a later event is waited for or its stream is synchronised, and never without a wait. So a slice
 * that is reused too early shows in the bytes. A slice that is freed before its stream fails the
 * test. The device counts its allocations and fails on request. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/device.h"

/* Calls that can fail. As on devices, a stream reports a failed copy or mark when the stream is
 * synchronised. */
enum late_call {
    LATE_STREAM_CREATE,
    LATE_ALLOC_HOST,
    LATE_EVENT_CREATE,
    LATE_UPLOAD,
    LATE_DOWNLOAD,
    LATE_EVENT_RECORD,
    LATE_EVENT_WAIT,
    LATE_STREAM_SYNC,
    N_LATE_CALLS
};

struct late {
    int fail_at[N_LATE_CALLS]; /* the call of this number fails, counted from 1; 0: none fails */
    atomic_int n_calls[N_LATE_CALLS];
    atomic_int n_live;   /* live streams, events and host memory areas */
    atomic_int n_beside; /* copies of a slice that were queued while another slice was under way */
    size_t slice_bytes;  /* size of the last requested slice of host memory */
};

struct late_failure {
    int status;
    const char *text;
};

extern const struct late_failure late_failures[N_LATE_CALLS];
extern struct late late;
extern struct device late_device;

/* Call before each use. No object of the device may be live. */
void late_reset(void);
