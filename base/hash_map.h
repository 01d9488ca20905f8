/* hash_map.h: a map from byte strings to pointers: open addressing, linear probing. Not
 * thread-safe: callers lock. The map copies keys. Values are borrowed, and the map never frees
 * them. For an integer key pass &n, sizeof n. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash_map_entry;

struct hash_map {
    struct hash_map_entry *entries;
    size_t n_entries;
    size_t n_slots; /* power of two, or 0 before the first put */
    size_t n_used;  /* live + deleted slots */
    uint64_t
        key[2]; /* random, drawn at the first put, because clients may choose keys to collide */
};

/* A zeroed struct is a valid empty map. */
void hash_map_fini(struct hash_map *map);

/* Value of a key or NULL. */
void *hash_map_get(const struct hash_map *map, const void *key, size_t n_bytes);
/* Inserts or replaces a value (not NULL). False if memory is exhausted; the map is then
 * unchanged. */
bool hash_map_put(struct hash_map *map, const void *key, size_t n_bytes, void *value);
/* Removes a key; returns its value or NULL. */
void *hash_map_remove(struct hash_map *map, const void *key, size_t n_bytes);

void *hash_map_get_str(const struct hash_map *map, const char *key);
bool hash_map_put_str(struct hash_map *map, const char *key, void *value);
void *hash_map_remove_str(struct hash_map *map, const char *key);

/* Iterates in no order: start with *cursor = 0; returns the next value, or NULL at the end. The map
 * must not change during the iteration, except by removal of the entry just returned. *out_key is
 * borrowed until the entry is removed or the map changes; out_key may be NULL. */
void *hash_map_next(const struct hash_map *map, size_t *cursor, const void **out_key,
                    size_t *out_key_bytes);

/* Returns a 64-bit hash without a secret, equal in every process: FNV-1a with a final mix. Not for
 * many keys that a client can choose. */
uint64_t hash_bytes(const void *bytes, size_t n_bytes, uint64_t seed);
