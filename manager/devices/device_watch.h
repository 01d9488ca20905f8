/* device_watch.h: the GPUs by NVML. A separate thread samples once a second and receives
 * critical errors (Xids), as a failing GPU may slow the driver. All functions are for the loop
 * thread. Without NVML one log line says so, and everything else works. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/system/nvml.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"

struct context;
struct device_holds;
struct device_watch;
struct arena;
struct error;

struct device_watch_config {
    struct context *context;
    struct device_holds *holds; /* receive each critical error */
    /* Called on the loop where workers on the device need new processes. */
    void (*on_failed)(void *arg, const char *device, uint64_t xid);
    void *arg; /* argument of on_failed */
};

/* Starts the thread. *out_watch is owned. */
int device_watch_create(const struct device_watch_config *config, struct device_watch **out_watch,
                        struct error *err);
/* The loop queue must still exist. NULL is accepted, here and below (nothing is known). */
void device_watch_destroy(struct device_watch *watch);

/* True where NVML is open. */
bool device_watch_is_up(struct device_watch *watch);
/* Why there are no figures; empty while unknown, or where there are figures. */
const char *device_watch_why_not(struct device_watch *watch);
/* Adds the known figures to a device's message in the arena. */
void device_watch_fill(struct device_watch *watch, struct arena *arena, pb_device *device);

enum { DEVICE_WATCH_MAX_XIDS = 16 };

/* The last known state of a device. */
struct device_view {
    bool sampled; /* the device answered */
    struct nvml_figures figures;
    int64_t sampled_unix_ns;
    char error[128]; /* why the device did not answer */
    uint64_t n_xids, last_xid;
    int64_t last_xid_unix_ns;
    struct {
        uint64_t xid, n;
    } xids[DEVICE_WATCH_MAX_XIDS]; /* count per Xid; Xids beyond the limit are counted under 0 */
};
/* False: nothing is known about the device. */
bool device_watch_view(struct device_watch *watch, const pb_device *device,
                       struct device_view *out_view);
