/* The host side of attention. Rows are split by their roles. Prompt rows run in tiles. Generated
 * rows run by split partitions, in passes whose results fit the scratch. Launches depend on
 * capacities alone, so a captured step serves any lengths. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/status.h"
#include "kernels/cuda/attention/attention_index.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/attention/attention_latent_index.h"
#include "kernels/cuda/attention/attention_maths.h"
#include "kernels/cuda/attention/attention_team_place.h"
#include "kernels/cuda/attention/attention_wgmma_index.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/table_cuda.h"

size_t attention_scratch_bytes_cuda(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim,
                                    uint64_t max_context)
{
    struct decode_plan plan =
        decode_plan_of(max_rows, n_heads, head_dim, 1, 1, DECODE_HEADS, max_context);
    /* With shorter contexts more rows run at once, up to the limit. */
    size_t all = plan.pass_rows < max_rows ? ATTENTION_SCRATCH_LIMIT : plan.scratch_bytes;
    return all > plan.scratch_bytes ? all : plan.scratch_bytes;
}

int attention_open_cuda(struct device_cuda *device, struct error *err)
{
    const char *wanted = getenv("SLUICE_CUDA_DECODE");
    bool can = device->major >= 9 && device->max_shared >= team_memory_of().n_bytes;
    bool teams = wanted != NULL && strcmp(wanted, "teams") == 0;
    if (wanted == NULL || wanted[0] == '\0') {
        device->decode_by_teams = can && device->major == 9; /* measured on H100 and H200 alone */
        return 0;
    }
    if (!teams && strcmp(wanted, "warps") != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "SLUICE_CUDA_DECODE: \"%s\" is invalid; give warps or teams", wanted);
    if (teams && !can)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "SLUICE_CUDA_DECODE=teams needs compute capability 9.0; cuda:%u has %d.x",
                         device->base.index, device->major);
    device->decode_by_teams = teams;
    return 0;
}

static int check(struct stream_cuda *s, const struct kv_layer *kv)
{
    if (kv->head_dim > CUDA_ATTENTION_MAX_KEY)
        return device_stream_fail(s, STATUS_UNIMPLEMENTED,
                                  "attention: a head's K has more than 576 elements");
    if (kv->v_dim > CUDA_ATTENTION_MAX_DIM)
        return device_stream_fail(s, STATUS_UNIMPLEMENTED,
                                  "attention: a head's V has more than 512 elements");
    if (kv->block_size > CUDA_PARTITION || (kv->block_size & (kv->block_size - 1)) != 0)
        return device_stream_fail(s, STATUS_INTERNAL,
                                  "attention: block_size is not a power of two up to 128");
    return 0;
}

static struct attention_cuda arguments(const struct tensor *y, const struct tensor *q,
                                       const struct kv_layer *kv, const struct attention_rows *rows,
                                       const struct attention_params *params)
{
    struct attention_cuda a = {
        .kv = {kv->k, kv->v != NULL ? kv->v : kv->k, kv->dtype, kv->n_blocks, kv->block_size,
               kv->n_kv_heads, kv->head_dim, kv->v_dim},
        .block_shift = attention_shift_of(kv->block_size),
        .q = q->data,
        .y = y->data,
        .q_stride = q->row_stride,
        .y_stride = y->row_stride,
        .positions = rows->positions,
        .seq_of_row = rows->seq_of_row,
        .block_tables = rows->block_tables,
        .table_stride = rows->table_stride,
        .n_seqs = rows->n_seqs,
        .n_heads = params->n_heads,
        .head_begin = params->head_begin,
        .kv_begin = params->kv_begin,
        .heads_per_kv = params->heads_per_kv,
        .window = params->window,
        .chunk = params->chunk,
        .factor = params->scale * ATTENTION_LOG2E,
        .softcap = params->softcap,
        .slopes = params->slopes,
        .sinks = params->sinks,
    };
    a.k = attention_plane_of(&a.kv, kv->head_dim);
    a.v = attention_plane_of(&a.kv, kv->v != NULL ? kv->v_dim : kv->head_dim);
    return a;
}

/* The kernels of a cache. */
enum cache_kernels {
    BY_PLAIN,  /* attention_plain_kernel.h, on both paths */
    BY_TILES,  /* attention_decode_kernel.h and those of prompts */
    BY_LATENT, /* attention_latent_kernel.h, on both paths */
};

static enum cache_kernels kernels_of(const struct attention_cuda *a)
{
    if (attention_is_latent(&a->kv))
        return latent_is_tiled(&a->kv) && a->slopes == NULL ? BY_LATENT : BY_PLAIN;
    return attention_is_tiled(&a->kv, a->heads_per_kv) ? BY_TILES : BY_PLAIN;
}

static uint32_t tile_heads_of(const struct attention_cuda *a)
{
    switch (kernels_of(a)) {
    case BY_LATENT:
        return LATENT_QUERIES;
    case BY_TILES:
        return decode_tile_heads(a->heads_per_kv);
    default:
        return PLAIN_HEADS;
    }
}

/* Queues the kernel of generated rows; between warps and teams the choice changes no bits. */
static int launch_rows(struct stream_cuda *s, const struct attention_cuda *a,
                       const struct decode_plan *plan)
{
    if (kernels_of(a) == BY_PLAIN)
        return cuda_launch_attention_plain(s->handle, a, plan);
    if (kernels_of(a) == BY_LATENT)
        return cuda_launch_attention_latent(s->handle, a, plan);
    if (device_cuda(s->base.device)->decode_by_teams && team_is_possible(a))
        return cuda_launch_attention_team(s->handle, a, plan);
    return cuda_launch_attention_decode(s->handle, a, plan);
}

/* Computes rows [a->row_begin, + a->n_rows), each row by itself. */
static int run_rows(struct stream_cuda *s, const struct attention_cuda *a, uint64_t max_positions)
{
    struct decode_plan plan = decode_plan_of(a->n_rows, a->n_heads, a->kv.v_dim, a->kv.n_kv_heads,
                                             a->heads_per_kv, tile_heads_of(a), max_positions);
    struct attention_cuda pass = *a;
    int rc = device_stream_grow(s, &s->attention, plan.scratch_bytes, "attention's scratch");
    pass.n_groups = plan.n_groups;
    pass.parts = plan.scratch_bytes > 0 ? s->attention.data : NULL;
    for (uint32_t done = 0; rc == 0 && done < a->n_rows; done += pass.n_rows) {
        pass.row_begin = a->row_begin + done;
        pass.n_rows = a->n_rows - done < plan.pass_rows ? a->n_rows - done : plan.pass_rows;
        rc = device_stream_check(s, "attention", launch_rows(s, &pass, &plan));
        if (rc == 0 && pass.parts != NULL)
            rc = device_stream_check(s, "attention",
                                     cuda_launch_attention_combine(s->handle, &pass));
    }
    return rc;
}

/* Computes prompt rows [a->row_begin, + a->n_rows). The kernel depends on the device and the model
 * alone. */
static int run_prompt(struct stream_cuda *s, const struct attention_cuda *a)
{
    if (kernels_of(a) == BY_LATENT)
        return device_stream_check(s, "attention",
                                   cuda_launch_attention_latent_prompt(s->handle, a));
    bool by_wgmma = device_cuda(s->base.device)->attention == CUDA_ATTENTION_WGMMA && wga_takes(a);
    return device_stream_check(s, "attention",
                               by_wgmma ? cuda_launch_attention_wgmma(s->handle, a)
                                        : cuda_launch_attention_prefill(s->handle, a));
}

int attention_cuda(struct stream *stream, struct tensor *y, const struct tensor *q,
                   const struct kv_layer *kv, const struct attention_rows *rows,
                   const struct attention_params *params)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct role_run all = {.begin = 0, .n_rows = q->n_rows, .generated = true};
    const struct role_run *runs = stream->n_roles > 0 ? stream->roles : &all;
    uint32_t n_runs = stream->n_roles > 0 ? stream->n_roles : 1, next = 0;
    uint64_t max_positions = rows->max_positions > 0
                                 ? rows->max_positions
                                 : (uint64_t)rows->table_stride * kv->block_size;
    struct attention_cuda a = arguments(y, q, kv, rows, params);
    int rc = check(s, kv);
    if (rc == 0)
        rc = device_stream_enter(s);
    for (uint32_t i = 0; rc == 0 && i < n_runs; i++) {
        if (runs[i].begin != next || runs[i].n_rows > q->n_rows - next)
            return device_stream_fail(s, STATUS_INTERNAL,
                                      "attention: the roles do not cover exactly the rows");
        next += runs[i].n_rows;
        a.row_begin = runs[i].begin;
        a.n_rows = runs[i].n_rows;
        if (a.n_rows == 0)
            continue;
        rc = !runs[i].generated && kernels_of(&a) != BY_PLAIN ? run_prompt(s, &a)
                                                              : run_rows(s, &a, max_positions);
    }
    if (rc == 0 && next != q->n_rows)
        return device_stream_fail(s, STATUS_INTERNAL,
                                  "attention: the roles do not cover exactly the rows");
    return rc;
}
