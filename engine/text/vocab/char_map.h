/* char_map.h: maps code points to symbols. Private to engine/text. Not thread-safe while it is
 * filled; then immutable. */
#pragma once

#include <stdint.h>

struct error;

struct char_map_slot {
    uint32_t point_plus_1; /* 0: free */
    uint32_t symbol;
};

struct char_map {
    struct char_map_slot *slots; /* owned; open addressing */
    uint32_t n, mask;
    uint32_t ascii[128]; /* symbol + 1, or 0 */
};

/* A zeroed map is empty. Keeps the first symbol of a code point. */
int char_map_add(struct char_map *map, uint32_t point, uint32_t symbol, struct error *err);
void char_map_fini(struct char_map *map);

/* The symbol of a code point, or UINT32_MAX. */
uint32_t char_map_find(const struct char_map *map, uint32_t point);
