/* bench_prefix_cache: the share of prompt tokens that the prefix cache finds. Cells vary the
 * cache's size and how many blocks are proven (kv_cache.h; 0: plain LRU). The trace is that of a
 * chat service: shared system prompts, chats with pauses, and texts that come once. All cells use
 * the same trace, from a fixed seed.
 *
 *     bench_prefix_cache [REQUESTS] */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"

enum {
    BLOCK = 16,       /* tokens; the trace has one id per block */
    MAX_BLOCKS = 512, /* blocks of a sequence */
    MAX_CHATS = 4096, /* chats that may have a next turn */
    N_SYSTEMS = 12,   /* system prompts; the i-th is used 1 / (i + 1) as often as the first */
    N_RUNNING = 16,   /* requests that hold their blocks at once */
    PAUSE = 60,       /* requests that come between two turns of a chat, on average */
};

struct sequence {
    uint32_t n_prompt, n_all; /* blocks of the prompt, and of prompt and answer */
    uint32_t ids[MAX_BLOCKS];
};

struct chat {
    double due;
    struct sequence so_far;
};

struct trace {
    double shared, chats; /* shares of requests: with a system prompt; first turns of chats */
    uint64_t rng;
    uint32_t next_id, n_chats;
    double now;
    struct chat *waiting; /* [MAX_CHATS] */
};

static double uniform(struct trace *t)
{
    t->rng = t->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(t->rng >> 11) / 9007199254740992.0;
}

static uint32_t between(struct trace *t, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(uniform(t) * (high - low + 1));
}

static void add_new(struct trace *t, struct sequence *s, uint32_t n)
{
    for (uint32_t i = 0; i < n && s->n_all < MAX_BLOCKS; i++)
        s->ids[s->n_all++] = t->next_id++;
}

static void add_system(struct trace *t, struct sequence *s)
{
    static const uint32_t lengths[N_SYSTEMS] = {16, 40, 8, 16, 80, 4, 32, 16, 40, 8, 64, 16};
    double total = 0, at;
    uint32_t i = 0;
    if (uniform(t) >= t->shared)
        return;
    for (uint32_t k = 0; k < N_SYSTEMS; k++)
        total += 1.0 / (k + 1);
    for (at = uniform(t) * total; i + 1 < N_SYSTEMS && at >= 1.0 / (i + 1); i++)
        at -= 1.0 / (i + 1);
    for (uint32_t k = 0; k < lengths[i]; k++)
        s->ids[s->n_all++] = 1 + i * 1000 + k;
}

/* Appends a question and its answer to *s. Three of four chats have another turn later. */
static void take_turn(struct trace *t, struct sequence *s)
{
    add_new(t, s, between(t, 1, 12));
    s->n_prompt = s->n_all;
    add_new(t, s, between(t, 4, 24));
    if (uniform(t) >= 0.75 || t->n_chats == MAX_CHATS || s->n_all + 40 > MAX_BLOCKS)
        return;
    struct chat *chat = &t->waiting[t->n_chats++];
    chat->due = t->now - PAUSE * log(1 - uniform(t));
    chat->so_far = *s;
}

static void next_request(struct trace *t, struct sequence *out)
{
    static const uint32_t lengths[] = {4, 8, 16, 32, 128, 256};
    t->now++;
    for (uint32_t i = 0; i < t->n_chats; i++)
        if (t->waiting[i].due <= t->now) {
            *out = t->waiting[i].so_far;
            t->waiting[i] = t->waiting[--t->n_chats];
            take_turn(t, out);
            return;
        }
    out->n_all = 0;
    add_system(t, out);
    if (uniform(t) < t->chats) {
        take_turn(t, out);
        return;
    }
    add_new(t, out, lengths[between(t, 0, 5)]);
    out->n_prompt = out->n_all;
    add_new(t, out, between(t, 4, 16));
}

/* --- the cache, as the scheduler uses it --- */

struct pool {
    struct kv_cache *kv;
    struct prefix_cache *prefix;
    uint64_t n_found, n_asked;
};

static void on_evict(void *ctx, uint32_t block)
{
    struct pool *pool = ctx;
    prefix_cache_remove(pool->prefix, block);
}

static const struct prefix_salt salt;

static const uint32_t *tokens_of(uint32_t id)
{
    static uint32_t tokens[BLOCK];
    for (uint32_t i = 0; i < BLOCK; i++)
        tokens[i] = id;
    return tokens;
}

static void serve(struct pool *pool, uint32_t slot, const struct sequence *s)
{
    uint64_t node = PREFIX_ROOT;
    uint32_t n = 0, block, known;
    kv_cache_clear(pool->kv, slot);
    while (n + 1 < s->n_prompt &&
           (block = prefix_cache_find(pool->prefix, &salt, node, tokens_of(s->ids[n]), &node)) !=
               KV_BLOCK_NONE) {
        kv_cache_attach(pool->kv, slot, block);
        n++;
    }
    pool->n_found += n;
    pool->n_asked += s->n_prompt;
    for (; n < s->n_all && kv_cache_grow(pool->kv, slot); n++) {
        uint32_t own = kv_cache_table(pool->kv, slot)[n];
        node = prefix_cache_insert(pool->prefix, &salt, node, tokens_of(s->ids[n]), own, &known);
        if (known == own)
            kv_cache_keep(pool->kv, own);
        else
            kv_cache_replace(pool->kv, slot, n, known);
    }
}

static double run(const struct trace *given, uint32_t n_requests, uint32_t n_blocks,
                  uint32_t max_proven)
{
    static struct sequence s;
    struct trace t = *given;
    struct pool pool = {0};
    struct error err;
    struct kv_cache_config cfg = {.n_blocks = n_blocks,
                                  .n_slots = N_RUNNING,
                                  .max_blocks_per_seq = MAX_BLOCKS,
                                  .max_proven = max_proven,
                                  .on_evict = on_evict,
                                  .ctx = &pool};
    t.waiting = calloc(MAX_CHATS, sizeof(*t.waiting));
    if (!t.waiting || kv_cache_create(&cfg, &pool.kv, &err) ||
        prefix_cache_create(n_blocks, BLOCK, &pool.prefix, &err)) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    for (uint32_t i = 0; i < n_requests; i++) {
        next_request(&t, &s);
        serve(&pool, i % N_RUNNING, &s);
    }
    kv_cache_destroy(pool.kv);
    prefix_cache_destroy(pool.prefix);
    free(t.waiting);
    return (double)pool.n_found / (double)pool.n_asked;
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {2048, 4096, 8192, 16384, 32768};
    static const uint32_t percents[] = {0, 25, 50, 75, 90};
    static const struct trace traces[] = {
        {.shared = 0.6, .chats = 0.5, .rng = 1, .next_id = 1 << 20},
        {.shared = 0.9, .chats = 0.2, .rng = 2, .next_id = 1 << 20},
        {.shared = 0.3, .chats = 0.8, .rng = 3, .next_id = 1 << 20}};
    uint32_t n_requests = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 10000;
    for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
        printf(
            "%u requests, %.0f %% with a system prompt, %.0f %% of new ones chats: prompt tokens "
            "found, %%; all there is: %.1f\n",
            n_requests, 100 * traces[i].shared, 100 * traces[i].chats,
            100 * run(&traces[i], n_requests, 4000000, 0));
        printf("%10s", "KV tokens");
        for (size_t p = 0; p < sizeof(percents) / sizeof(percents[0]); p++)
            printf("  proven %2u %%", percents[p]);
        putchar('\n');
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            printf("%10u", sizes[k] * BLOCK);
            for (size_t p = 0; p < sizeof(percents) / sizeof(percents[0]); p++)
                printf("%13.1f", 100 * run(&traces[i], n_requests, sizes[k],
                                           (uint32_t)((uint64_t)sizes[k] * percents[p] / 100)));
            putchar('\n');
        }
    }
    return 0;
}
