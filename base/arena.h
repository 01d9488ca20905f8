/* arena.h: memory that lives and dies together (a request, a step). One thread. Allocation never
 * moves earlier objects. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *head;
    size_t chunk_bytes; /* size of a fresh chunk */
    size_t used_bytes;  /* handed out since the last reset */
    size_t limit_bytes; /* 0 = none */
    bool exhausted; /* something was not to be had since it was made, reset or this was cleared */
};

/* chunk_bytes 0 takes 16 KiB. Nothing is allocated until the first use. */
void arena_init(struct arena *arena, size_t chunk_bytes, size_t limit_bytes);
void arena_fini(struct arena *arena);
/* Frees all objects but keeps one chunk for reuse. */
void arena_reset(struct arena *arena);

/* Aligned to 16 bytes, zeroed. NULL where memory or the limit is exhausted. */
void *arena_alloc(struct arena *arena, size_t n_bytes);
/* n × size with the overflow checked. */
void *arena_calloc(struct arena *arena, size_t n, size_t size);
/* Whether the limit, if there is one, lets n × size bytes more be had. */
bool arena_has_room(const struct arena *arena, size_t n, size_t size);
/* A NUL-terminated copy of n_bytes. */
char *arena_strndup(struct arena *arena, const char *text, size_t n_bytes);
