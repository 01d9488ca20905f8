/* slot_device.c: the devices of a replica's process (slot.h). */
#include <string.h>

#include "base/clock.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/devices/device_hold.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

static bool in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

/* The devices given to the process decide. For an adopted process they are unknown, and its
 * status decides. Without a process, the device group decides. */
bool slot_is_on(const struct slot *slot, const char *device)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_status *status = slot->status;
    if (slot->is_parked_worker && slot->process_state == PROCESS_RUNNING &&
        device_name_is_gpu(device))
        return false; /* a parked worker has no GPU open, whatever it was given */
    if (slot->devices)
        return in_list(slot->devices, device);
    for (size_t i = 0; status && i < status->n_memory; i++)
        if (strcmp(status->memory[i]->device, device) == 0)
            return true;
    if (slot->process_state == PROCESS_RUNNING)
        return false;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_group *group = row ? catalog_group(catalog, row->device_group) : NULL;
    for (size_t i = 0; group && i < group->n_devices; i++)
        if (strcmp(group->devices[i], device) == 0)
            return true;
    return false;
}

bool slot_is_quarantined(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    if (slot->process_state != PROCESS_RUNNING)
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
