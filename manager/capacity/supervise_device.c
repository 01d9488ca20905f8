/* Which devices a worker is on, and workers whose device is told to have failed. */
#include <string.h>

#include "base/clock.h"
#include "base/system/device_name.h"
#include "manager/capacity/device_hold.h"
#include "manager/replicas/slot.h"

static bool in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

/* A process says what it is on; before that, what it was given is known, save of one that was
 * started by a manager before. */
bool slot_is_on(const struct slot *slot, const char *device)
{
    const struct catalog *catalog = &slot->supervisor->manager->catalog;
    const pb_status *status = slot->status;
    if (slot->keeps && slot->process_state == PROCESS_RUNNING && device_name_is_gpu(device))
        return false; /* it has none open, whichever it was given */
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
    const struct catalog *catalog = &slot->supervisor->manager->catalog;
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

void supervisor_blamed(struct supervisor *supervisor, const struct slot *blamed, const char *device)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = hash_map_next(&supervisor->slots, &cursor, NULL, NULL)))
        if (slot != blamed && slot_is_on(slot, device))
            slot->fault_ns = 0;
}

void supervisor_device_failed(struct supervisor *supervisor, const char *device, uint64_t xid)
{
    int64_t now_ns = supervisor_now_ns(supervisor);
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = hash_map_next(&supervisor->slots, &cursor, NULL, NULL)))
        if (slot->blamed_ns && now_ns - slot->blamed_ns < supervisor->config.fault_grace_ns &&
            slot_is_on(slot, device))
            return; /* the word of the driver came second */
    cursor = 0;
    while ((slot = hash_map_next(&supervisor->slots, &cursor, NULL, NULL))) {
        if (slot->process_state != PROCESS_RUNNING || slot->fault_ns || !slot_is_on(slot, device))
            continue;
        slot->fault_ns = now_ns;
        slot->fault_xid = xid;
    }
    supervisor_kick(supervisor);
}
