#include "base/hash_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

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

/* SipHash-1-3 (Aumasson, Bernstein 2012; one round per word, three at the end), keyed per map:
 * nobody outside can choose keys that fall into one slot. */
static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static uint64_t keyed_hash(const struct hash_map *map, const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes;
    uint64_t v[4] = {map->key[0] ^ 0x736f6d6570736575ULL, map->key[1] ^ 0x646f72616e646f6dULL,
                     map->key[0] ^ 0x6c7967656e657261ULL, map->key[1] ^ 0x7465646279746573ULL};
    uint64_t word = 0;
    size_t i = 0;
    for (; i + 8 <= n_bytes; i += 8) {
        memcpy(&word, p + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = (uint64_t)n_bytes << 56;
    for (size_t k = 0; i + k < n_bytes; k++)
        word |= (uint64_t)p[i + k] << (8 * k);
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    for (int round = 0; round < 3; round++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
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
        if (e->key && e->hash == hash && e->n_bytes == n_bytes &&
            (n_bytes == 0 || memcmp(e->key, key, n_bytes) == 0))
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
    struct hash_map_entry *e = find(map, key, n_bytes, keyed_hash(map, key, n_bytes));
    return e ? e->value : NULL;
}

bool hash_map_put(struct hash_map *map, const void *key, size_t n_bytes, void *value)
{
    if (!map->n_slots)
        rng_bytes(map->key, sizeof(map->key));
    uint64_t hash = keyed_hash(map, key, n_bytes);
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
    struct hash_map_entry *e = find(map, key, n_bytes, keyed_hash(map, key, n_bytes));
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
