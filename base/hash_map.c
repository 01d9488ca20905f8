#include "base/hash_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum { NEAR_BYTES = 8 };

struct hash_map_entry {
    uint64_t hash;
    union {
        uint8_t near[NEAR_BYTES]; /* keys of up to 8 bytes, such as integers, are stored inline: no
                                     second memory access */
        void *far;                /* a longer key; owned */
    } key;
    size_t n_bytes;
    void *value; /* NULL: never used, TOMBSTONE: deleted */
};

static char tombstone_object;
#define TOMBSTONE ((void *)&tombstone_object)

static bool is_live(const struct hash_map_entry *e)
{
    return e->value && e->value != TOMBSTONE;
}

static const void *key_of(const struct hash_map_entry *e)
{
    return e->n_bytes <= NEAR_BYTES ? e->key.near : e->key.far;
}

static void free_key(struct hash_map_entry *e)
{
    if (is_live(e) && e->n_bytes > NEAR_BYTES)
        free(e->key.far);
}

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

/* SipHash-1-3 (Aumasson, Bernstein 2012; one round per word, three at the end) with a random key
 * per map. So a client cannot choose keys that fall into one slot. */
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
        free_key(&map->entries[i]);
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
        if (is_live(e) && e->hash == hash && e->n_bytes == n_bytes &&
            (n_bytes == 0 || memcmp(key_of(e), key, n_bytes) == 0))
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
        if (!is_live(e))
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
    struct hash_map_entry entry = {.hash = hash, .n_bytes = n_bytes, .value = value};
    if (n_bytes > NEAR_BYTES && !(entry.key.far = malloc(n_bytes)))
        return false;
    memcpy(n_bytes > NEAR_BYTES ? entry.key.far : entry.key.near, key, n_bytes);
    size_t i = hash & (map->n_slots - 1);
    while (is_live(&map->entries[i]))
        i = (i + 1) & (map->n_slots - 1);
    if (!map->entries[i].value)
        map->n_used++;
    map->entries[i] = entry;
    map->n_entries++;
    return true;
}

void *hash_map_remove(struct hash_map *map, const void *key, size_t n_bytes)
{
    struct hash_map_entry *e = find(map, key, n_bytes, keyed_hash(map, key, n_bytes));
    if (!e)
        return NULL;
    void *value = e->value;
    free_key(e);
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
        if (!is_live(e))
            continue;
        if (out_key)
            *out_key = key_of(e);
        if (out_key_bytes)
            *out_key_bytes = e->n_bytes;
        return e->value;
    }
    return NULL;
}
