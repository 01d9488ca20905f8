/* arena.h: an allocator whose objects are freed together, for example at the end of a request or a
 * step. Single-threaded. Allocation never moves earlier objects. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *head;
    size_t chunk_bytes; /* size of a fresh chunk */
    size_t used_bytes;  /* handed out since the last reset */
    size_t limit_bytes; /* 0 = none */
    bool exhausted; /* an allocation failed since the arena was made or reset, or since the caller
                       cleared this flag */
};

/* chunk_bytes 0 means 16 KiB. The arena allocates nothing until the first use. */
void arena_init(struct arena *arena, size_t chunk_bytes, size_t limit_bytes);
void arena_fini(struct arena *arena);
/* Frees all objects but keeps one chunk for reuse. */
void arena_reset(struct arena *arena);

/* Returns n_bytes of zeroed memory, aligned to 16 bytes. NULL if memory or the limit is
 * exhausted. */
void *arena_alloc(struct arena *arena, size_t n_bytes);
/* Returns memory for n objects of `size` bytes. An overflow of n × size fails. */
void *arena_calloc(struct arena *arena, size_t n, size_t size);
/* Returns true if the limit allows n × size more bytes. True without a limit, unless n × size
 * overflows. */
bool arena_has_room(const struct arena *arena, size_t n, size_t size);
/* Returns a NUL-terminated copy of n_bytes. */
char *arena_strndup(struct arena *arena, const char *text, size_t n_bytes);
