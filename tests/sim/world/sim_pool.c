/* sim_pool.c: SQLite's own memory. Each start of a manager parses the schema again, in some
 * thousand small allocations. Here these come from a free list per size. Under a sanitizer the pool
 * is plain malloc(). */
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "tests/sim/sim.h"

#if defined(__SANITIZE_ADDRESS__)
enum { POOLED = false };
#else
enum { POOLED = true };
#endif
enum { GRAIN = 32, N_CLASSES = 64, HEAD = 16, CHUNK = 1 << 20 };

static struct piece {
    struct piece *next;
} * pieces[N_CLASSES + 1];
static char *chunk;
static size_t n_chunk;

static size_t class_of(size_t n)
{
    return (n + GRAIN - 1) / GRAIN;
}

static void *cut(size_t n)
{
    if (n_chunk < n) {
        chunk = malloc(CHUNK);
        n_chunk = chunk ? CHUNK : 0;
    }
    if (n_chunk < n)
        return NULL;
    char *at = chunk;
    chunk += n;
    n_chunk -= n;
    return at;
}

static int pool_round(int n)
{
    return (int)class_of((size_t)n) * GRAIN;
}

/* The HEAD bytes before a piece hold its size. */
static void *pool_malloc(int wanted)
{
    size_t n = (size_t)pool_round(wanted), class = n / GRAIN;
    bool in_manager = sim.in_manager;
    char *at;
    sim.in_manager = false; /* allocations of SQLite do not count as the manager's */
    if (class > N_CLASSES) {
        at = malloc(n + HEAD);
    } else if (pieces[class]) {
        at = (char *)pieces[class] - HEAD;
        pieces[class] = pieces[class]->next;
    } else {
        at = cut(n + HEAD);
    }
    sim.in_manager = in_manager;
    if (!at)
        return NULL;
    memcpy(at, &n, sizeof(n));
    return at + HEAD;
}

static int pool_size(void *at)
{
    size_t n;
    memcpy(&n, (char *)at - HEAD, sizeof(n));
    return (int)n;
}

static void pool_free(void *at)
{
    size_t class = at ? (size_t)pool_size(at) / GRAIN : 0;
    if (class > N_CLASSES) {
        free((char *)at - HEAD);
    } else if (at) {
        struct piece *piece = at;
        piece->next = pieces[class];
        pieces[class] = piece;
    }
}

static void *pool_realloc(void *at, int wanted)
{
    int had = pool_size(at);
    if (wanted <= had)
        return at;
    void *grown = pool_malloc(wanted);
    if (grown) {
        memcpy(grown, at, (size_t)had);
        pool_free(at);
    }
    return grown;
}

static int pool_init(void *unused)
{
    (void)unused;
    return SQLITE_OK;
}

static void pool_shutdown(void *unused)
{
    (void)unused;
}

int sim_pool_install(void)
{
    static const sqlite3_mem_methods methods = {
        .xMalloc = pool_malloc,
        .xFree = pool_free,
        .xRealloc = pool_realloc,
        .xSize = pool_size,
        .xRoundup = pool_round,
        .xInit = pool_init,
        .xShutdown = pool_shutdown,
    };
    return POOLED ? sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) : SQLITE_OK;
}
