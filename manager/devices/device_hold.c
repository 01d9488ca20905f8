#include "manager/devices/device_hold.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"

enum { MAX_WAITING = 256 };
static const double retry_s = 0.5;

struct pending_report {
    struct device_holds *holds;
    struct pending_report *next;
    struct device_report report;
};

struct device_holds {
    struct context *context;
    struct pending_report *waiting; /* reports that the store refused, in order */
    size_t n_waiting;
    ev_timer retry_timer;
};

/* --- holds and replicas --- */

static const char *hold_key(const struct catalog *catalog, const char *device)
{
    const pb_device *row = catalog_device(catalog, device);
    return row && *row->uuid ? row->uuid : device;
}

const pb_hold *device_hold_find(const struct catalog *catalog, const char *device)
{
    struct row *row = catalog_get(catalog, TABLE_DEVICE_HOLD, hold_key(catalog, device));
    return row ? (const pb_hold *)row_message(row) : NULL;
}

size_t device_hold_choose(const struct catalog *catalog, const pb_group *group,
                          char *out_devices[DEVICES_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < group->n_devices && n < DEVICES_MAX; i++)
        if (!device_hold_find(catalog, group->devices[i]))
            out_devices[n++] = group->devices[i];
    return n;
}

int device_hold_check(const struct catalog *catalog, const pb_group *group, uint32_t n_ranks,
                      struct error *err)
{
    const pb_hold *hold = NULL;
    char *usable[DEVICES_MAX];
    size_t n_usable = device_hold_choose(catalog, group, usable);
    /* Ranks may share a device. Other checks make sure that the group is large enough. */
    size_t n_needed = n_ranks < group->n_devices ? n_ranks : group->n_devices;
    if (n_usable >= (n_needed ? n_needed : 1) || group->n_devices == 0)
        return 0;
    for (size_t i = 0; !hold && i < group->n_devices; i++)
        hold = device_hold_find(catalog, group->devices[i]);
    if (!hold) /* too few devices, but none of them is held */
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "device_group: %s of %s is quarantined (%s: %.256s); once repaired: sluice devices "
              "release %s",
              hold->device, group->name, hold->reason, hold->message, hold->device);
    return error_reason(err, REASON_DEVICE_QUARANTINED);
}

/* --- transactions --- */

/* The cause of a new or a worse hold. */
struct cause {
    const char *device;
    enum device_state state;
    const char *reason, *message, *resolution;
};

static bool fill_hold(pb_hold *hold, const char *key, const struct cause *cause)
{
    hold->state = (Sluice__Manager__V1__DeviceState)cause->state;
    return message_set(&hold->key, key) && message_set(&hold->device, cause->device) &&
           message_set(&hold->reason, cause->reason) &&
           message_set(&hold->message, cause->message) &&
           message_set(&hold->resolution, cause->resolution);
}

static int put_hold(struct txn *txn, const struct cause *cause, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_hold *old = device_hold_find(catalog, cause->device);
    bool begins = !old || (int)old->state < (int)cause->state;
    pb_hold *hold = old ? MESSAGE_COPY(pb_hold, old)
                        : MESSAGE_NEW(pb_hold, sluice__manager__v1__device_hold__descriptor);
    char key[TABLE_KEY_BYTES];
    snprintf(key, sizeof(key), "%s", old ? old->key : hold_key(catalog, cause->device));
    if (!hold || (begins && !fill_hold(hold, key, cause))) {
        if (hold)
            message_free(&hold->base);
        return error_no_memory(err);
    }
    hold->last_unix_ns = txn_now_unix_ns(txn);
    if (begins)
        hold->since_unix_ns = hold->last_unix_ns;
    hold->n_reports++;
    if (txn_put(txn, TABLE_DEVICE_HOLD, &hold->base, err) != 0 || !begins)
        return err->status;
    struct txn_event event = {.type = cause->state == DEVICE_QUARANTINED ? "device.quarantined"
                                                                         : "device.cordoned",
                              .device = cause->device,
                              .message = cause->message,
                              .reason = cause->reason};
    return txn_event(txn, &event, err);
}

/* Cordons the machine's other devices of the kind: nothing new starts on them. */
static int cordon_others(struct txn *txn, const struct cause *cause, struct error *err)
{
    char message[ERROR_MESSAGE_BYTES];
    const struct catalog *catalog = txn_catalog(txn);
    snprintf(message, sizeof(message), "%s: %.400s", cause->device, cause->message);
    for (size_t i = 0; catalog_device_at(catalog, i); i++) {
        const pb_device *device = catalog_device_at(catalog, i);
        if (device->kind != SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA ||
            strcmp(device->name, cause->device) == 0)
            continue;
        struct cause its = *cause;
        its.device = device->name;
        its.state = DEVICE_CORDONED;
        its.message = message;
        if (put_hold(txn, &its, err) != 0)
            return err->status;
    }
    return 0;
}

static struct device_verdict verdict_of(const struct device_report *report)
{
    return report->xid ? device_policy_xid(report->xid) : device_policy_fault(report->fault);
}

static void reason_of(const struct device_report *report, char out[40])
{
    if (report->xid)
        snprintf(out, 40, "XID_%" PRIu64, report->xid);
    else
        snprintf(out, 40, "%s", reason_name(device_policy_reason(report->fault)));
}

static int run_report(struct txn *txn, void *arg, struct error *err)
{
    const struct device_report *report = &((const struct pending_report *)arg)->report;
    struct device_verdict verdict = verdict_of(report);
    char reason[40], message[ERROR_MESSAGE_BYTES];
    error_clear(err);
    failpoint("hold.before_commit");
    reason_of(report, reason);
    snprintf(message, sizeof(message), "%s: %s%s%s", reason, verdict.text,
             *report->message ? "; worker: " : "", report->message);
    struct txn_event event = {.type = report->xid ? "device.xid" : "device.fault",
                              .device = report->device,
                              .replica_id = report->replica_id,
                              .message = message,
                              .reason = reason,
                              .stage = device_action_name(verdict.action)};
    if (txn_event(txn, &event, err) != 0)
        return err->status;
    struct cause cause = {.device = report->device,
                          .state = DEVICE_QUARANTINED,
                          .reason = reason,
                          .message = verdict.text,
                          .resolution = verdict.resolution};
    if (verdict.action < DEVICE_QUARANTINE)
        return 0;
    if (put_hold(txn, &cause, err) != 0)
        return err->status;
    return verdict.action == DEVICE_DRAIN_NODE ? cordon_others(txn, &cause, err) : 0;
}

int device_hold_release(struct txn *txn, const char *device, pb_hold **out_hold, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_hold *hold = device_hold_find(catalog, device);
    for (size_t i = 0; !hold && !catalog_device(catalog, device) && catalog_hold_at(catalog, i);
         i++) /* a device that is gone, by its earlier name */
        if (strcmp(catalog_hold_at(catalog, i)->device, device) == 0)
            hold = catalog_hold_at(catalog, i);
    if (!hold && !catalog_device(catalog, device)) {
        error_set(err, STATUS_NOT_FOUND, "device: this machine has no %.96s", device);
        return error_reason(err, REASON_DEVICE_NOT_FOUND);
    }
    if (!hold) {
        error_set(err, STATUS_FAILED_PRECONDITION, "device: %.96s is not quarantined", device);
        return error_reason(err, REASON_DEVICE_NOT_HELD);
    }
    pb_hold *copy = MESSAGE_COPY(pb_hold, hold);
    if (!copy)
        return error_no_memory(err);
    struct txn_event event = {.type = "device.released",
                              .device = copy->device,
                              .message = copy->reason,
                              .reason = copy->reason};
    if (txn_delete(txn, TABLE_DEVICE_HOLD, copy->key, err) != 0 ||
        txn_event(txn, &event, err) != 0) {
        message_free(&copy->base);
        return err->status;
    }
    *out_hold = copy;
    return 0;
}

/* --- reports --- */

static void submit(struct pending_report *pending);

static bool quarantines(const struct device_report *report)
{
    return verdict_of(report).action >= DEVICE_QUARANTINE;
}

/* True where the report may wait. A report that quarantines waits once per device and reason and
 * is never lost. Other reports wait while there is room. */
static bool may_wait(struct device_holds *holds, const struct device_report *report)
{
    if (!quarantines(report))
        return holds->n_waiting < MAX_WAITING;
    for (const struct pending_report *other = holds->waiting; other; other = other->next)
        if (strcmp(other->report.device, report->device) == 0 && other->report.xid == report->xid &&
            other->report.fault == report->fault)
            return false;
    return true;
}

static void add_waiting(struct pending_report *pending, const struct error *why)
{
    struct device_holds *holds = pending->holds;
    if (why->status == STATUS_CANCELLED || !may_wait(holds, &pending->report)) {
        free(pending);
        return;
    }
    if (holds->n_waiting == 0 || quarantines(&pending->report))
        log_error(LOG_EVENT("device report not recorded"),
                  LOG_STR("device", pending->report.device), LOG_STR("why", why->message));
    struct pending_report **tail = &holds->waiting;
    while (*tail)
        tail = &(*tail)->next;
    pending->next = NULL;
    *tail = pending;
    holds->n_waiting++;
    ev_timer_stop(holds->context->loop, &holds->retry_timer);
    ev_timer_set(&holds->retry_timer, retry_s, 0.);
    ev_timer_start(holds->context->loop, &holds->retry_timer);
}

static void on_retry(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct device_holds *holds = timer->data;
    struct pending_report *pending = holds->waiting;
    (void)loop;
    (void)events;
    holds->waiting = NULL;
    holds->n_waiting = 0;
    while (pending) {
        struct pending_report *next = pending->next;
        submit(pending);
        pending = next;
    }
}

static void end_report(void *arg, const struct error *status)
{
    struct pending_report *pending = arg;
    struct context *context = pending->holds->context;
    if (status->status != 0) {
        add_waiting(pending, status);
        return;
    }
    free(pending);
    failpoint("hold.after_commit");
    change_hub_notify(&context->changes, NULL);
}

static void submit(struct pending_report *pending)
{
    struct error err;
    if (store_submit_seen(pending->holds->context->store, run_report, end_report, pending, &err) !=
        0)
        add_waiting(pending, &err);
}

enum device_action device_holds_report(struct device_holds *holds,
                                       const struct device_report *report)
{
    struct device_verdict verdict = verdict_of(report);
    struct pending_report *pending = calloc(1, sizeof(*pending));
    char reason[40];
    reason_of(report, reason);
    log_warn(LOG_EVENT("device failed"), LOG_STR("device", report->device),
             LOG_STR("reason", reason), LOG_STR("action", device_action_name(verdict.action)),
             LOG_STR("resolution", verdict.resolution), LOG_STR("what", verdict.text),
             LOG_STR("replica", report->replica_id));
    if (pending) {
        pending->holds = holds;
        pending->report = *report;
        submit(pending);
    }
    return verdict.action;
}

int device_holds_create(struct context *context, struct device_holds **out_holds, struct error *err)
{
    struct device_holds *holds = calloc(1, sizeof(*holds));
    if (!holds)
        return error_no_memory(err);
    holds->context = context;
    ev_timer_init(&holds->retry_timer, on_retry, retry_s, 0.);
    holds->retry_timer.data = holds;
    *out_holds = holds;
    return 0;
}

void device_holds_destroy(struct device_holds *holds)
{
    if (!holds)
        return;
    ev_timer_stop(holds->context->loop, &holds->retry_timer);
    while (holds->waiting) {
        struct pending_report *next = holds->waiting->next;
        free(holds->waiting);
        holds->waiting = next;
    }
    free(holds);
}
