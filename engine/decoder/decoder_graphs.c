#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/decoder/decoder_private.h"

/* A decode step runs the same list of kernels for every batch of its bucket. So it is captured once
 * and replayed: the host queues one graph instead of hundreds of kernels. A bucket's first step
 * runs op by op, because libraries and kernels load then. Its second step is captured. */

enum {
    MAX_GRAPHS = 48,
    MAX_GRAPH_ROWS = 512,
    MIN_POSITIONS = 512,
    POSITIONS_GROWTH = 4,     /* a large factor, because each graph takes device memory */
    MOST_OPS_OF_A_LAYER = 18, /* quantized layers have up to 13; scales add up to 4 */
    OPS_OF_A_NORM = 2,        /* a head norm or post norm, and an add */
    OPS_OF_EXPERTS = 24,      /* beyond those of an MLP */
    OPS_OF_A_STATE = 12,      /* a recurrent mixer, beyond those of attention */
    OPS_OF_A_LATENT = 16, /* latent attention, beyond attention; heads may take several products */
    OPS_OF_AN_INPUT = 10, /* a per-layer input, and in embedding */
    MOST_OPS_BESIDE = 8,  /* in embedding and head */
    /* rows per sequence in the memory plan, for drafts; larger buckets share that memory */
    MOST_ROWS_OF_A_SEQUENCE = 4,
    STEPS_BY_OPS = 1024, /* steps until a capture that lacked memory is tried again */
};

struct step_graph {
    struct decoder_graph_key key;
    uint64_t used;       /* number of its last step; 0: entry is free */
    uint64_t not_before; /* the capture lacked memory: runs op by op until this step */
    struct graph *graph; /* NULL: captured later, or runs op by op */
    uint64_t n_bytes;    /* device memory of the graph */
};

struct decoder_graphs {
    uint64_t n_steps;
    uint64_t n_bytes; /* sum over all graphs; at most the plan's graph_bytes */
    struct step_graph graphs[MAX_GRAPHS];
};

int decoder_graphs_create(struct decoder *dec, struct error *err)
{
    if (!dec->stream->device->ops->capture_begin || dec->comm)
        return 0;
    dec->graphs = calloc(1, sizeof(*dec->graphs));
    if (!dec->graphs)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for captured steps");
    return 0;
}

static void drop_graph(struct decoder *dec, struct step_graph *g)
{
    if (g->graph)
        dec->stream->device->ops->graph_destroy(g->graph);
    dec->graphs->n_bytes -= g->n_bytes;
    *g = (struct step_graph){.used = 0};
}

void decoder_graphs_destroy(struct decoder *dec)
{
    if (!dec->graphs)
        return;
    for (uint32_t i = 0; i < MAX_GRAPHS; i++)
        drop_graph(dec, &dec->graphs->graphs[i]);
    free(dec->graphs);
    dec->graphs = NULL;
}

/* Buckets: 1, 2, 4, 8, then multiples of 8, of 16 beyond 64, of 32 beyond 256. */
static uint32_t rows_bucket(uint32_t n)
{
    uint32_t step = n > 256 ? 32 : n > 64 ? 16 : 8;
    if (n <= 8) {
        uint32_t bucket = 1;
        while (bucket < n)
            bucket *= 2;
        return bucket;
    }
    return (n + step - 1) / step * step;
}

/* The context of the bucket that holds n_positions. */
static uint32_t positions_bucket(const struct step_sizes *steps, uint32_t n_positions)
{
    uint32_t capacity = steps->max_blocks_per_seq * steps->block_size, positions = MIN_POSITIONS;
    while (positions < n_positions && positions < capacity)
        positions *= POSITIONS_GROWTH;
    return positions < capacity ? positions : capacity;
}

/* Rows of the largest step that is captured. */
static uint32_t most_rows(const struct step_sizes *steps)
{
    uint32_t n = steps->max_rows < steps->max_logits ? steps->max_rows : steps->max_logits;
    return n < MAX_GRAPH_ROWS ? n : MAX_GRAPH_ROWS;
}

/* Ops that a weight brings beyond those of every layer. */
static uint32_t more_ops(enum arch_slot slot)
{
    if (slot == ARCH_ROUTER)
        return OPS_OF_EXPERTS;
    if (slot == ARCH_STATE_OUT)
        return OPS_OF_A_STATE;
    if (slot == ARCH_LATENT_KV_DOWN)
        return OPS_OF_A_LATENT;
    if (slot == ARCH_LAYER_EMBD || slot == ARCH_LAYER_GATE)
        return OPS_OF_AN_INPUT;
    if (slot == ARCH_LAYER_SCALE)
        return 1;
    return arch_slot_facts(slot)->is_norm && slot != ARCH_ATTN_NORM && slot != ARCH_FFN_NORM
               ? OPS_OF_A_NORM
               : 0;
}

/* Most device memory of one graph. */
static uint64_t most_bytes_of_a_graph(const struct rank_plan *plan)
{
    uint64_t n_ops = (uint64_t)plan->split.n_layers * MOST_OPS_OF_A_LAYER + MOST_OPS_BESIDE;
    for (uint32_t i = 0; i < plan->n_places; i++)
        if (plan->places[i].slot >= ARCH_FIRST_LAYER_SLOT ||
            plan->places[i].slot == ARCH_LAYER_EMBD)
            n_ops += more_ops(plan->places[i].slot);
    return n_ops * GRAPH_OP_BYTES;
}

uint64_t decoder_graphs_bytes(const struct rank_plan *plan)
{
    const struct step_sizes *steps = &plan->steps;
    uint32_t n_rows = 0, n_positions = 1, capacity = positions_bucket(steps, UINT32_MAX);
    uint64_t most = (uint64_t)steps->max_seqs * MOST_ROWS_OF_A_SEQUENCE;
    most = most < most_rows(steps) ? most : most_rows(steps);
    for (uint32_t n = 1; n <= most; n = rows_bucket(n + 1))
        n_rows++;
    for (uint32_t n = MIN_POSITIONS; n < capacity; n = positions_bucket(steps, n + 1))
        n_positions++;
    uint64_t n_graphs = (uint64_t)n_rows * n_positions;
    return (n_graphs < MAX_GRAPHS ? n_graphs : MAX_GRAPHS) * most_bytes_of_a_graph(plan);
}

bool decoder_graphs_key(const struct decoder *dec, const struct step_batch *batch,
                        struct decoder_graph_key *out_key)
{
    const struct step_sizes *steps = &dec->cfg.plan->steps;
    uint32_t n_rows = rows_bucket(batch->n_rows), last = 0;
    if (!dec->graphs || n_rows > most_rows(steps) || batch->n_sample_rows > n_rows)
        return false;
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        if (!batch->is_generated[r])
            return false;
        last = batch->positions[r] > last ? batch->positions[r] : last;
    }
    *out_key = (struct decoder_graph_key){n_rows, positions_bucket(steps, last + 1)};
    return true;
}

/* The bucket's entry; if there is none, the entry that was unused longest. */
static struct step_graph *find_graph(struct decoder *dec, const struct decoder_graph_key *key)
{
    struct step_graph *oldest = &dec->graphs->graphs[0];
    for (uint32_t i = 0; i < MAX_GRAPHS; i++) {
        struct step_graph *g = &dec->graphs->graphs[i];
        if (g->used && g->key.n_rows == key->n_rows && g->key.max_positions == key->max_positions)
            return g;
        oldest = g->used < oldest->used ? g : oldest;
    }
    drop_graph(dec, oldest);
    oldest->key = *key;
    return oldest;
}

/* Queues the bucket's step op by op. */
static int queue_bucket(struct decoder *dec, const struct decoder_graph_key *key)
{
    dec->stream->n_roles = 0; /* all rows are generated */
    return decoder_queue_step(dec, key->n_rows, key->n_rows, key->n_rows, key->max_positions);
}

static int capture(struct decoder *dec, struct step_graph *g, struct error *err)
{
    const struct device_ops *ops = dec->stream->device->ops;
    struct error second; /* the first failure is reported */
    int rc = ops->capture_begin(dec->stream, err);
    if (rc)
        return rc;
    rc = queue_bucket(dec, &g->key);
    int ended = ops->capture_end(dec->stream, &g->graph, rc ? &second : err);
    if (rc || ended)
        return rc ? rc : ended;
    g->n_bytes = ops->graph_n_ops(g->graph) * GRAPH_OP_BYTES;
    dec->graphs->n_bytes += g->n_bytes;
    return 0;
}

/* Drops the graphs that were unused longest, until the plan has room for one more. */
static void make_room(struct decoder *dec)
{
    uint64_t more = most_bytes_of_a_graph(dec->cfg.plan);
    while (dec->graphs->n_bytes + more > dec->cfg.plan->graph_bytes) {
        struct step_graph *oldest = NULL;
        for (uint32_t i = 0; i < MAX_GRAPHS; i++) {
            struct step_graph *g = &dec->graphs->graphs[i];
            if (g->graph && (!oldest || g->used < oldest->used))
                oldest = g;
        }
        if (!oldest)
            return;
        drop_graph(dec, oldest);
    }
}

/* Captures the step. A device without room for the graph can still run the step op by op. */
static int try_capture(struct decoder *dec, struct step_graph *g, struct error *err)
{
    make_room(dec);
    int rc = capture(dec, g, err);
    if (rc != STATUS_RESOURCE_EXHAUSTED)
        return rc;
    log_warn(LOG_EVENT("step not captured"), LOG_U64("rows", g->key.n_rows),
             LOG_STR("why", err->message));
    error_clear(err);
    g->not_before = dec->graphs->n_steps + STEPS_BY_OPS;
    return 0;
}

int decoder_graphs_run(struct decoder *dec, const struct decoder_graph_key *key, struct error *err)
{
    struct step_graph *g = find_graph(dec, key);
    bool is_first = g->used == 0;
    int rc = 0;
    g->used = ++dec->graphs->n_steps;
    if (is_first || (!g->graph && g->used < g->not_before))
        return queue_bucket(dec, key);
    if (!g->graph)
        rc = try_capture(dec, g, err);
    else if (dec->cfg.progress)
        atomic_fetch_add(dec->cfg.progress, dec->split.n_layers);
    if (rc)
        return rc;
    return g->graph ? dec->stream->device->ops->graph_launch(dec->stream, g->graph)
                    : queue_bucket(dec, key);
}

uint64_t decoder_graphs_taken(const struct decoder *dec)
{
    return dec->graphs ? dec->graphs->n_bytes : 0;
}
