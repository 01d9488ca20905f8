#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/pages.h"

/* malloc gives a chunk of this size or more fresh pages. They are populated at once, because the
 * arena is about to fill them. */
enum { TOUCH_BYTES = 256 * 1024 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t capacity;
    size_t used;
    _Alignas(16) unsigned char data[];
};

void arena_init(struct arena *arena, size_t chunk_bytes, size_t limit_bytes)
{
    *arena = (struct arena){.chunk_bytes = chunk_bytes ? chunk_bytes : 16384,
                            .limit_bytes = limit_bytes};
}

void arena_fini(struct arena *arena)
{
    struct arena_chunk *chunk = arena->head;
    while (chunk) {
        struct arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    *arena = (struct arena){0};
}

void arena_reset(struct arena *arena)
{
    struct arena_chunk *keep = arena->head;
    if (keep) {
        struct arena_chunk *rest = keep->next;
        while (rest) {
            struct arena_chunk *next = rest->next;
            free(rest);
            rest = next;
        }
        keep->next = NULL;
        keep->used = 0;
    }
    arena->used_bytes = 0;
    arena->exhausted = false;
}

static struct arena_chunk *chunk_with_room(struct arena *arena, size_t n_bytes)
{
    struct arena_chunk *head = arena->head;
    if (head && head->capacity - head->used >= n_bytes)
        return head;
    size_t capacity = n_bytes > arena->chunk_bytes ? n_bytes : arena->chunk_bytes;
    if (!capacity)
        capacity = 16384;
    struct arena_chunk *chunk = malloc(sizeof(*chunk) + capacity);
    if (!chunk)
        return NULL;
    if (capacity >= TOUCH_BYTES)
        pages_touch(chunk, sizeof(*chunk) + capacity);
    *chunk = (struct arena_chunk){.next = head, .capacity = capacity};
    arena->head = chunk;
    return chunk;
}

void *arena_alloc(struct arena *arena, size_t n_bytes)
{
    size_t rounded = (n_bytes + 15) & ~(size_t)15;
    struct arena_chunk *chunk = NULL;
    if (n_bytes <= SIZE_MAX / 2 &&
        (!arena->limit_bytes || arena->used_bytes + rounded <= arena->limit_bytes))
        chunk = chunk_with_room(arena, rounded);
    if (!chunk) {
        arena->exhausted = true;
        return NULL;
    }
    void *out = chunk->data + chunk->used;
    chunk->used += rounded;
    arena->used_bytes += rounded;
    memset(out, 0, rounded);
    return out;
}

void *arena_calloc(struct arena *arena, size_t n, size_t size)
{
    return arena_alloc(arena, size && n > SIZE_MAX / 2 / size ? SIZE_MAX : n * size);
}

bool arena_has_room(const struct arena *arena, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / 2 / size)
        return false;
    size_t rounded = (n * size + 15) & ~(size_t)15;
    return !arena->limit_bytes || arena->used_bytes + rounded <= arena->limit_bytes;
}

char *arena_strndup(struct arena *arena, const char *text, size_t n_bytes)
{
    char *copy = arena_alloc(arena, n_bytes < SIZE_MAX / 2 ? n_bytes + 1 : SIZE_MAX);
    if (copy && n_bytes)
        memcpy(copy, text, n_bytes);
    return copy;
}
