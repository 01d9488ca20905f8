/* device_watch.h: the GPUs as NVML tells of them. A thread of its own asks, once a second and for
 * each critical error (Xid), because the driver may take long to answer for a GPU that fails; the
 * rest is the loop thread's. Where there is no NVML that is said once, and everything else goes on.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/system/nvml.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"

struct context;
struct device_holds;
struct device_watch;
struct error;

struct device_watch_config {
    struct context *context;
    struct device_holds *holds; /* take each critical error */
    /* Called on the loop where workers on the device are to get new processes. */
    void (*on_failed)(void *arg, const char *device, uint64_t xid);
    void *arg; /* of on_failed */
};

/* Starts the thread. *out_watch is owned. */
int device_watch_create(const struct device_watch_config *config, struct device_watch **out_watch,
                        struct error *err);
/* The loop queue must still be there. NULL is accepted, here and below (nothing is known). */
void device_watch_destroy(struct device_watch *watch);

/* Whether NVML was opened. */
bool device_watch_is_up(struct device_watch *watch);
/* Why there are no figures; empty while it is not known, or where there are. */
const char *device_watch_why_not(struct device_watch *watch);
/* Adds what is known of a device. False where memory is exhausted. */
MESSAGE_CHECKED bool device_watch_fill(struct device_watch *watch, pb_device *device);

enum { DEVICE_WATCH_MAX_XIDS = 16 };

/* A device as it was seen last. */
struct device_view {
    bool sampled; /* the device answered */
    struct nvml_figures figures;
    int64_t sampled_unix_ns;
    char error[128]; /* why it did not answer */
    uint64_t n_xids, last_xid;
    int64_t last_xid_unix_ns;
    struct {
        uint64_t xid, n;
    } xids[DEVICE_WATCH_MAX_XIDS]; /* those that came; what does not fit is counted under 0 */
};
/* False: nothing is known of it. */
bool device_watch_view(struct device_watch *watch, const pb_device *device,
                       struct device_view *out_view);
