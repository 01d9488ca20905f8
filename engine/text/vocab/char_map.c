#include "engine/text/vocab/char_map.h"

#include <stdlib.h>

#include "engine/text/facts/text_facts.h"

/* Code points are no secrets: a multiplicative hash spreads ranges well enough. */
static struct char_map_slot *slot_of(const struct char_map *map, uint32_t point)
{
    uint32_t i = (point * 0x9E3779B1U >> 7) & map->mask;
    while (map->slots[i].point_plus_1 && map->slots[i].point_plus_1 != point + 1)
        i = (i + 1) & map->mask;
    return &map->slots[i];
}

static int widen(struct char_map *map, struct error *err)
{
    uint32_t n_slots = map->slots ? 2 * (map->mask + 1) : 1024;
    struct char_map wider = {calloc(n_slots, sizeof(*wider.slots)), 0, n_slots - 1, {0}};
    if (!wider.slots)
        return text_facts_no_memory(err);
    for (uint32_t i = 0; map->slots && i <= map->mask; i++)
        if (map->slots[i].point_plus_1)
            *slot_of(&wider, map->slots[i].point_plus_1 - 1) = map->slots[i];
    free(map->slots);
    map->slots = wider.slots;
    map->mask = wider.mask;
    return 0;
}

int char_map_add(struct char_map *map, uint32_t point, uint32_t symbol, struct error *err)
{
    if (!map->slots || 2 * map->n > map->mask) {
        int rc = widen(map, err);
        if (rc)
            return rc;
    }
    struct char_map_slot *slot = slot_of(map, point);
    if (slot->point_plus_1)
        return 0;
    *slot = (struct char_map_slot){point + 1, symbol};
    map->n++;
    if (point < 128)
        map->ascii[point] = symbol + 1;
    return 0;
}

uint32_t char_map_find(const struct char_map *map, uint32_t point)
{
    if (point < 128)
        return map->ascii[point] - 1;
    if (!map->slots)
        return UINT32_MAX;
    const struct char_map_slot *slot = slot_of(map, point);
    return slot->point_plus_1 ? slot->symbol : UINT32_MAX;
}

void char_map_fini(struct char_map *map)
{
    free(map->slots);
    *map = (struct char_map){0};
}
