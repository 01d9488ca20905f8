#include "manager/slots/fleet.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/slots/slot.h"

/* Two reads of the clock are at most one tick apart. A longer gap means that this process did
 * not run (stopped, suspended, starved). The time beyond a tick does not count. */
static const int64_t tick_ns = NS_PER_S / 2;
static const int64_t pause_ns = NS_PER_S * 5 / 4;

void fleet_init(struct fleet *fleet, struct context *context)
{
    *fleet = (struct fleet){.context = context};
}

void fleet_fini(struct fleet *fleet)
{
    size_t cursor = 0;
    struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        slot_destroy(slot);
    hash_map_fini(&fleet->slots);
    fleet->slots = (struct hash_map){0};
}

struct slot *fleet_next(const struct fleet *fleet, size_t *cursor)
{
    return hash_map_next(&fleet->slots, cursor, NULL, NULL);
}

int64_t fleet_tick_ns(void)
{
    return tick_ns;
}

int64_t fleet_now_ns(struct fleet *fleet)
{
    int64_t now_ns = clock_now_ns();
    int64_t gap_ns = fleet->looked_ns ? now_ns - fleet->looked_ns : 0;
    if (gap_ns > pause_ns && !seeded_bug("I2_counts_its_own_pause")) {
        fleet->paused_ns += gap_ns - tick_ns;
        log_warn(LOG_EVENT("manager was paused"), LOG_I64("ms", gap_ns / NS_PER_MS));
    }
    fleet->looked_ns = now_ns;
    return now_ns - fleet->paused_ns;
}

bool fleet_is_settled(const struct fleet *fleet)
{
    size_t cursor = 0;
    const struct slot *slot;
    if (fleet->settled_timeout)
        return true;
    while ((slot = fleet_next(fleet, &cursor)))
        if (slot->run.adopted && !slot->settled)
            return false;
    return true;
}

void fleet_count_cpu_users(const struct fleet *fleet, const char *but_id, uint16_t *n_users)
{
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor))) {
        if (slot->phase == SLOT_EMPTY || strcmp(slot->id, but_id) == 0)
            continue;
        for (uint32_t cpu = cpus_next(&slot->run.cpus, 0); cpu < CPUS_MAX;
             cpu = cpus_next(&slot->run.cpus, cpu + 1))
            n_users[cpu]++;
    }
}
