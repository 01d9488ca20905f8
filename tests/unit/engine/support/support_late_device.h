/* support_late_device.h: a device that is made up and copies as late as it may: what was queued is
 * copied when an event behind it is waited for or its stream is synchronised, and never where
 * nobody waits. So a slice that is used again too soon shows in the bytes; one that is given back
 * before its stream fails the test. It counts what it gave, and fails where it is told to. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/device.h"

/* What can fail. A stream tells of a copy or a mark that it did not take when it is synchronised,
 * as devices do. */
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
    int fail_at[N_LATE_CALLS]; /* that number of a call fails; 0: none */
    atomic_int n_calls[N_LATE_CALLS];
    atomic_int n_live;   /* streams, events, memory of the host */
    atomic_int n_beside; /* copies of a slice that were queued while another's was under way */
    size_t slice_bytes;  /* of the host memory that was asked for last */
};

struct late_failure {
    int status;
    const char *text;
};

extern const struct late_failure late_failures[N_LATE_CALLS];
extern struct late late;
extern struct device late_device;

/* Before each use; nothing of it may be live. */
void late_reset(void);
