/* hash_map.h: byte-string keys to pointers, open addressing with linear probing. One thread
 * (callers lock). Keys are copied; values are borrowed and never freed by the map. Integer keys:
 * pass &n, sizeof n. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash_map_entry;

struct hash_map {
    struct hash_map_entry *entries;
    size_t n_entries;
    size_t n_slots;  /* power of two, or 0 before the first put */
    size_t n_used;   /* live + deleted slots */
    uint64_t key[2]; /* drawn at the first put: keys may be hostile */
};

/* A zeroed struct is a valid empty map. */
void hash_map_fini(struct hash_map *map);

/* Value of a key or NULL. */
void *hash_map_get(const struct hash_map *map, const void *key, size_t n_bytes);
/* Inserts or replaces (value must not be NULL). False, map unchanged, where memory is exhausted. */
bool hash_map_put(struct hash_map *map, const void *key, size_t n_bytes, void *value);
/* Removes a key; returns its value or NULL. */
void *hash_map_remove(struct hash_map *map, const void *key, size_t n_bytes);

void *hash_map_get_str(const struct hash_map *map, const char *key);
bool hash_map_put_str(struct hash_map *map, const char *key, void *value);
void *hash_map_remove_str(struct hash_map *map, const char *key);

/* Iteration in no order: start with *cursor = 0; returns the next value or NULL at the end. The map
 * must not change meanwhile, save for removal of the entry just returned. *out_key is borrowed
 * until it does; out_key may be NULL. */
void *hash_map_next(const struct hash_map *map, size_t *cursor, const void **out_key,
                    size_t *out_key_bytes);

/* A hash without a secret, the same in every process: 64 bits, FNV-1a folded by a final mix; not
 * for hostile keys in bulk. */
uint64_t hash_bytes(const void *bytes, size_t n_bytes, uint64_t seed);
