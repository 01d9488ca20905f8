#include "manager/devices/device_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/loop_queue.h"
#include "manager/devices/device_hold.h"
#include "manager/store/catalog.h"
#include "proto/rpc/server/device_figures.h"

enum { SAMPLE_MS = 1000, WAIT_MS = 200, END_S = 2, STALE_S = 10 };

struct seen {
    struct nvml_identity identity;
    struct device_view view;
    int64_t sampled_ns; /* monotonic */
    bool logged_stale;
};

struct device_watch {
    struct device_watch_config config;
    pthread_t thread;
    atomic_int n_refs; /* references of the loop, of tasks posted to the loop, and of the thread,
                        * which may hang in the driver */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ending, ended; /* under the lock, as all below: end requested, and the thread has ended */
    bool up;            /* NVML is open */
    int64_t begin_ns;   /* monotonic */
    char why_not[320];  /* why there is no NVML */
    char why_not_copy[320]; /* the loop thread's copy */
    uint32_t n_seen;
    struct seen seen[NVML_MAX_DEVICES];
};

static void release(struct device_watch *watch)
{
    if (atomic_fetch_sub(&watch->n_refs, 1) != 1)
        return;
    pthread_cond_destroy(&watch->wake);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

/* --- identities --- */

static bool is_device(const struct nvml_identity *identity, uint32_t index, const pb_device *device)
{
    if (device->kind != SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA)
        return false;
    return nvml_is_device(identity, index, device->uuid, device->pci_bus_id, device->index);
}

/* --- the thread --- */

struct xid_post {
    struct device_watch *watch;
    uint32_t index;
    uint64_t xid;
};

static void note_xid(struct device_view *view, uint64_t xid)
{
    size_t i = 0;
    view->n_xids++;
    view->last_xid = xid;
    view->last_xid_unix_ns = clock_wall_ns();
    while (i < DEVICE_WATCH_MAX_XIDS - 1 && view->xids[i].n && view->xids[i].xid != xid)
        i++;
    if (i == DEVICE_WATCH_MAX_XIDS - 1)
        xid = 0;
    view->xids[i].xid = xid;
    view->xids[i].n++;
}

static void on_xid(void *arg)
{
    struct xid_post *post = arg;
    struct device_watch *watch = post->watch;
    const struct catalog *catalog = watch->config.context->catalog;
    struct nvml_identity identity = watch->seen[post->index].identity; /* never changes */
    struct device_report report = {.xid = post->xid};
    for (size_t i = 0; catalog_device_at(catalog, i); i++) {
        const pb_device *device = catalog_device_at(catalog, i);
        if (is_device(&identity, post->index, device))
            snprintf(report.device, sizeof(report.device), "%s", device->name);
    }
    if (!*report.device)
        log_warn(LOG_EVENT("Xid of a GPU that is not used"), LOG_U64("xid", post->xid),
                 LOG_STR("uuid", identity.uuid), LOG_STR("bus", identity.pci_bus_id));
    else if (device_holds_report(watch->config.holds, &report) == DEVICE_RESTART)
        watch->config.on_failed(watch->config.arg, report.device, post->xid);
    release(watch);
    free(post);
}

static void post_xid(struct device_watch *watch, uint32_t index, uint64_t xid)
{
    struct xid_post *post = index < watch->n_seen ? malloc(sizeof(*post)) : NULL;
    if (!post) {
        log_error(LOG_EVENT("Xid of an unknown GPU"), LOG_U64("xid", xid));
        return;
    }
    *post = (struct xid_post){watch, index, xid};
    pthread_mutex_lock(&watch->lock);
    note_xid(&watch->seen[index].view, xid);
    /* Under the lock: after the end is requested, nothing more is posted. A post holds its own
     * reference to the watch and may outlive the loop's. The loop queue exists until then. */
    bool posted =
        !watch->ending && loop_queue_post(watch->config.context->queue, on_xid, post) == 0;
    if (posted)
        atomic_fetch_add(&watch->n_refs, 1);
    pthread_mutex_unlock(&watch->lock);
    if (!posted)
        free(post);
}

static void sample(struct device_watch *watch, struct nvml *nvml)
{
    for (uint32_t i = 0; i < watch->n_seen; i++) {
        struct nvml_figures figures;
        struct error err;
        /* a process that ends during the sample may or may not be in it */
        int64_t now_unix_ns = clock_wall_ns();
        int rc = nvml_sample(nvml, i, &figures, &err);
        pthread_mutex_lock(&watch->lock);
        struct device_view *view = &watch->seen[i].view;
        bool first_failure = rc && !*view->error;
        view->sampled = !rc;
        view->sampled_unix_ns = now_unix_ns;
        watch->seen[i].sampled_ns = clock_now_ns();
        watch->seen[i].logged_stale = false;
        snprintf(view->error, sizeof(view->error), "%.127s", rc ? err.message : "");
        if (!rc)
            view->figures = figures;
        pthread_mutex_unlock(&watch->lock);
        if (first_failure)
            log_warn(LOG_EVENT("GPU does not answer"), LOG_STR("why", err.message));
    }
}

/* Returns true once the watch ends. */
static bool pause_for(struct device_watch *watch, int64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * NS_PER_MS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    pthread_mutex_lock(&watch->lock);
    if (!watch->ending && ms > 0)
        pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
    bool ending = watch->ending;
    pthread_mutex_unlock(&watch->lock);
    return ending;
}

static void watch_devices(struct device_watch *watch, struct nvml *nvml)
{
    int64_t sampled_ns = 0;
    bool said = false;
    while (!pause_for(watch, 0)) {
        struct error err;
        uint32_t index;
        uint64_t xid = 0;
        if (!sampled_ns || clock_now_ns() - sampled_ns >= SAMPLE_MS * NS_PER_MS) {
            sampled_ns = clock_now_ns();
            sample(watch, nvml);
        }
        int rc = nvml_wait_xid(nvml, WAIT_MS, &index, &xid, &err);
        if (!rc && xid)
            post_xid(watch, index, xid);
        if (!rc)
            continue;
        if (!said)
            log_warn(LOG_EVENT("no Xids"), LOG_STR("why", err.message));
        said = true;
        pause_for(watch, WAIT_MS); /* avoids a busy loop where the wait fails at once */
    }
}

static void record_devices(struct device_watch *watch, const struct nvml *nvml)
{
    uint32_t n = nvml_n_devices(nvml);
    log_info(LOG_EVENT("NVML opened"), LOG_U64("gpus", n),
             LOG_STR("driver", nvml_driver_version(nvml)));
    pthread_mutex_lock(&watch->lock);
    for (uint32_t i = 0; i < n; i++) {
        nvml_identify(nvml, i, &watch->seen[i].identity);
        watch->seen[i].sampled_ns = clock_now_ns();
    }
    watch->n_seen = n;
    watch->up = true;
    pthread_mutex_unlock(&watch->lock);
}

static void *run(void *arg)
{
    struct device_watch *watch = arg;
    struct nvml *nvml = NULL;
    struct error err;
    pthread_setname_np(pthread_self(), "sluice-nvml");
    if (nvml_open(NULL, &nvml, &err) != 0) {
        log_info(LOG_EVENT("no figures of GPUs"), LOG_STR("why", err.message));
        pthread_mutex_lock(&watch->lock);
        snprintf(watch->why_not, sizeof(watch->why_not), "%.319s", err.message);
        pthread_mutex_unlock(&watch->lock);
    } else {
        record_devices(watch, nvml);
        watch_devices(watch, nvml);
        nvml_close(nvml);
    }
    pthread_mutex_lock(&watch->lock);
    watch->ended = true;
    pthread_cond_signal(&watch->wake);
    pthread_mutex_unlock(&watch->lock);
    release(watch);
    return NULL;
}

/* --- queries --- */

bool device_watch_is_up(struct device_watch *watch)
{
    if (!watch)
        return false;
    pthread_mutex_lock(&watch->lock);
    bool up = watch->up;
    pthread_mutex_unlock(&watch->lock);
    return up;
}

const char *device_watch_why_not(struct device_watch *watch)
{
    if (!watch)
        return "";
    pthread_mutex_lock(&watch->lock);
    int64_t age_s = (clock_now_ns() - watch->begin_ns) / NS_PER_S;
    if (!watch->up && !*watch->why_not && age_s >= STALE_S) {
        snprintf(watch->why_not, sizeof(watch->why_not), "opening NVML hangs");
        log_warn(LOG_EVENT("no figures of GPUs"), LOG_STR("why", watch->why_not));
    }
    memcpy(watch->why_not_copy, watch->why_not, sizeof(watch->why_not_copy));
    pthread_mutex_unlock(&watch->lock);
    return watch->why_not_copy;
}

/* Under the lock. While a driver hangs, its last figures are out of date and left out. */
static void copy_view(struct seen *seen, struct device_view *out_view)
{
    int64_t age_s = (clock_now_ns() - seen->sampled_ns) / NS_PER_S;
    *out_view = seen->view;
    if (age_s < STALE_S)
        return;
    out_view->sampled = false;
    snprintf(out_view->error, sizeof(out_view->error), "NVML has not answered for %lld s",
             (long long)age_s);
    if (!seen->logged_stale)
        log_warn(LOG_EVENT("GPU does not answer"), LOG_STR("uuid", seen->identity.uuid),
                 LOG_STR("why", out_view->error));
    seen->logged_stale = true;
}

bool device_watch_view(struct device_watch *watch, const pb_device *device,
                       struct device_view *out_view)
{
    bool found = false;
    if (!watch)
        return false;
    pthread_mutex_lock(&watch->lock);
    for (uint32_t i = 0; !found && i < watch->n_seen; i++)
        if (is_device(&watch->seen[i].identity, i, device)) {
            copy_view(&watch->seen[i], out_view);
            found = out_view->sampled_unix_ns != 0 || *out_view->error;
        }
    pthread_mutex_unlock(&watch->lock);
    return found;
}

void device_watch_fill(struct device_watch *watch, struct arena *arena, pb_device *device)
{
    struct device_view view;
    if (!device_watch_view(watch, device, &view))
        return;
    Sluice__V1__DeviceFigures *figures =
        message_new_in(arena, &sluice__v1__device_figures__descriptor);
    if (!figures)
        return;
    device->figures = figures;
    figures->sampled_unix_ns = view.sampled_unix_ns;
    figures->n_xids = view.n_xids;
    figures->last_xid = view.last_xid;
    figures->last_xid_unix_ns = view.last_xid_unix_ns;
    if (!view.sampled) {
        figures->error = message_text_in(arena, view.error);
        return;
    }
    device_figures_fill(figures, &view.figures);
    for (uint32_t i = 0; i < NVML_N_THROTTLES; i++) {
        uint64_t bit;
        const char *name = nvml_throttle_name(i, &bit);
        if (view.figures.throttle & bit)
            message_append_text_in(arena, &figures->n_throttle_reasons, &figures->throttle_reasons,
                                   name);
    }
}

/* --- life --- */

int device_watch_create(const struct device_watch_config *config, struct device_watch **out_watch,
                        struct error *err)
{
    struct device_watch *watch = calloc(1, sizeof(*watch));
    pthread_condattr_t monotonic;
    if (!watch)
        return error_no_memory(err);
    watch->config = *config;
    watch->begin_ns = clock_now_ns();
    atomic_init(&watch->n_refs, 2);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = pthread_create(&watch->thread, NULL, run, watch);
    if (rc != 0) {
        atomic_store(&watch->n_refs, 1);
        release(watch);
        return error_errno(err, rc, "cannot start the thread that watches GPUs");
    }
    *out_watch = watch;
    return 0;
}

void device_watch_destroy(struct device_watch *watch)
{
    struct timespec until;
    if (!watch)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_S;
    pthread_mutex_lock(&watch->lock);
    watch->ending = true;
    pthread_cond_signal(&watch->wake);
    for (int rc = 0; !watch->ended && rc == 0;)
        rc = pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
    bool ended = watch->ended;
    pthread_mutex_unlock(&watch->lock);
    if (ended) {
        pthread_join(watch->thread, NULL);
    } else {
        log_warn(LOG_EVENT("GPU driver hangs at the end; its thread is abandoned"));
        pthread_detach(watch->thread);
    }
    release(watch);
}
