#include "base/hash_map.h"

#include <stdlib.h>
#include <string.h>

struct hash_map_entry {
    uint64_t hash;
    void *key; /* owned; NULL with value NULL = never used, NULL with value TOMBSTONE = deleted */
    size_t n_bytes;
    void *value;
};

static char tombstone_object;
#define TOMBSTONE ((void *)&tombstone_object)

uint64_t hash_bytes(const void *bytes, size_t n_bytes, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325ULL ^ seed;
    for (size_t i = 0; i < n_bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3ULL;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    return h;
}

void hash_map_fini(struct hash_map *map)
{
    for (size_t i = 0; i < map->n_slots; i++)
        free(map->entries[i].key);
    free(map->entries);
    *map = (struct hash_map){0};
}

static struct hash_map_entry *find(const struct hash_map *map, const void *key, size_t n_bytes,
                                   uint64_t hash)
{
    if (!map->n_slots)
        return NULL;
    for (size_t i = hash & (map->n_slots - 1);; i = (i + 1) & (map->n_slots - 1)) {
        struct hash_map_entry *e = &map->entries[i];
        if (!e->value)
            return NULL;
        if (e->key && e->hash == hash && e->n_bytes == n_bytes && memcmp(e->key, key, n_bytes) == 0)
            return e;
    }
}

static bool rehash(struct hash_map *map, size_t n_slots)
{
    struct hash_map_entry *fresh = calloc(n_slots, sizeof(*fresh));
    if (!fresh)
        return false;
    for (size_t i = 0; i < map->n_slots; i++) {
        struct hash_map_entry *e = &map->entries[i];
        if (!e->key)
            continue;
        size_t j = e->hash & (n_slots - 1);
        while (fresh[j].value)
            j = (j + 1) & (n_slots - 1);
        fresh[j] = *e;
    }
    free(map->entries);
    map->entries = fresh;
    map->n_slots = n_slots;
    map->n_used = map->n_entries;
    return true;
}

void *hash_map_get(const struct hash_map *map, const void *key, size_t n_bytes)
{
    struct hash_map_entry *e = find(map, key, n_bytes, hash_bytes(key, n_bytes, 0));
    return e ? e->value : NULL;
}

bool hash_map_put(struct hash_map *map, const void *key, size_t n_bytes, void *value)
{
    uint64_t hash = hash_bytes(key, n_bytes, 0);
    struct hash_map_entry *old = find(map, key, n_bytes, hash);
    if (old) {
        old->value = value;
        return true;
    }
    if ((map->n_used + 1) * 4 > map->n_slots * 3) {
        size_t want = map->n_slots ? map->n_slots : 16;
        while ((map->n_entries + 1) * 2 > want)
            want *= 2;
        if (!rehash(map, want))
            return false;
    }
    void *copy = malloc(n_bytes ? n_bytes : 1);
    if (!copy)
        return false;
    memcpy(copy, key, n_bytes);
    size_t i = hash & (map->n_slots - 1);
    while (map->entries[i].value && map->entries[i].key)
        i = (i + 1) & (map->n_slots - 1);
    if (!map->entries[i].value)
        map->n_used++;
    map->entries[i] = (struct hash_map_entry){hash, copy, n_bytes, value};
    map->n_entries++;
    return true;
}

void *hash_map_remove(struct hash_map *map, const void *key, size_t n_bytes)
{
    struct hash_map_entry *e = find(map, key, n_bytes, hash_bytes(key, n_bytes, 0));
    if (!e)
        return NULL;
    void *value = e->value;
    free(e->key);
    *e = (struct hash_map_entry){.value = TOMBSTONE};
    map->n_entries--;
    return value;
}

void *hash_map_get_str(const struct hash_map *map, const char *key)
{
    return hash_map_get(map, key, strlen(key));
}

bool hash_map_put_str(struct hash_map *map, const char *key, void *value)
{
    return hash_map_put(map, key, strlen(key), value);
}

void *hash_map_remove_str(struct hash_map *map, const char *key)
{
    return hash_map_remove(map, key, strlen(key));
}

void *hash_map_next(const struct hash_map *map, size_t *cursor, const void **out_key,
                    size_t *out_key_bytes)
{
    while (*cursor < map->n_slots) {
        const struct hash_map_entry *e = &map->entries[(*cursor)++];
        if (!e->key)
            continue;
        if (out_key)
            *out_key = e->key;
        if (out_key_bytes)
            *out_key_bytes = e->n_bytes;
        return e->value;
    }
    return NULL;
}
