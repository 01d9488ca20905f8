/* slot_device.c: the devices of a replica's process (slot.h). */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/devices/device_hold.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

size_t slot_list_devices(const struct slot *slot, struct device_names *out_devices)
{
    size_t n = 0;
    for (const char *at = slot->run.devices; at && *at && n < DEVICES_MAX;) {
        size_t n_bytes = strcspn(at, ",");
        snprintf(out_devices->names[n++], DEVICE_NAME_BYTES, "%.*s", (int)n_bytes, at);
        at += n_bytes + (at[n_bytes] == ',');
    }
    for (size_t i = 0; !slot->run.devices && slot->run.status && i < slot->run.status->n_memory;
         i++)
        if (n < DEVICES_MAX)
            snprintf(out_devices->names[n++], DEVICE_NAME_BYTES, "%s",
                     slot->run.status->memory[i]->device);
    out_devices->n_names = n;
    return n;
}

/* The devices given to the process decide. For an adopted process they are unknown, and its
 * status decides. Without a process, the device group decides. */
bool slot_is_on(const struct slot *slot, const char *device)
{
    struct device_names devices;
    if (slot_is_parked_worker(slot) && slot_runs(slot) && device_name_is_gpu(device))
        return false; /* a parked worker has no GPU open, whatever it was given */
    size_t n = slot_list_devices(slot, &devices);
    for (size_t i = 0; i < n; i++)
        if (strcmp(devices.names[i], device) == 0)
            return true;
    if (slot->run.devices || slot_runs(slot))
        return false;
    const pb_group *group = slot_group(slot);
    for (size_t i = 0; group && i < group->n_devices; i++)
        if (strcmp(group->devices[i], device) == 0)
            return true;
    return false;
}

bool slot_is_quarantined(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    if (!slot_runs(slot))
        return false;
    for (size_t i = 0; catalog_hold_at(catalog, i); i++) {
        const pb_hold *hold = catalog_hold_at(catalog, i);
        if ((int)hold->state != DEVICE_QUARANTINED)
            continue;
        for (size_t j = 0; catalog_device_at(catalog, j); j++)
            if (device_hold_find(catalog, catalog_device_at(catalog, j)->name) == hold &&
                slot_is_on(slot, catalog_device_at(catalog, j)->name))
                return true;
    }
    return false;
}
