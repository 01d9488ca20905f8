/* Workers whose device is told to have failed. */
#include "base/clock.h"
#include "manager/slot.h"

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
