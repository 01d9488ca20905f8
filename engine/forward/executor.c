#include "engine/forward/executor.h"

#include <stdlib.h>
#include <string.h>

#include "engine/forward/executor_private.h"
#include "engine/model/step.h"

const struct model_info *executor_model_info(const struct executor *ex)
{
    return &ex->model.info;
}

const struct executor_plan *executor_actual(const struct executor *ex)
{
    return &ex->actual;
}

uint64_t executor_graphs_taken(const struct executor *ex)
{
    uint64_t n_bytes = 0;
    for (uint32_t r = 0; r < ex->n_ranks; r++)
        n_bytes += decoder_graphs_taken(ex->decoders[r]);
    return n_bytes;
}

bool executor_gpu_memory(const struct executor *ex, uint64_t *out_total_bytes,
                         uint64_t *out_free_bytes)
{
    struct device_memory memory;
    struct error err;
    if (!ex->gpu || ex->gpu->ops->memory(ex->gpu, &memory, &err) != 0)
        return false;
    *out_total_bytes = memory.total_bytes;
    *out_free_bytes = memory.free_bytes;
    return true;
}

void executor_get_packed(const struct executor *ex, struct executor_packed *out_packed)
{
    *out_packed = (struct executor_packed){
        .n_ranks = ex->n_cpu_ranks,
        .mapped = ex->gpu ? ex->from_image : true,
        .why = ex->not_shared.status ? ex->not_shared.message : "",
    };
    for (uint32_t r = 0; r < ex->n_cpu_ranks; r++) {
        out_packed->fds[r] = ex->weights[r].fd;
        out_packed->n_bytes[r] = ex->weights[r].n_bytes;
        if (!ex->gpu && ex->weights[r].origin != LOADER_MAPPED)
            out_packed->mapped = false;
    }
}

bool executor_is_async(const struct executor *ex)
{
    return ex->gpu != NULL;
}

const char *executor_numerics_id(const struct executor *ex)
{
    return ex->numerics_id;
}

bool executor_mixes_roles(const struct executor *ex)
{
    return ex->gpu != NULL && ex->mix_roles;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- stepping --- */

/* Checks the slots of states: within the pool, and in the order that step.h states. */
static int check_states(const struct step_batch *batch, uint32_t n_slots, struct error *err)
{
    for (uint32_t s = 0; n_slots && s < batch->n_seqs; s++)
        for (uint32_t r = batch->seq_start[s]; r < batch->seq_start[s + 1]; r++) {
            uint32_t read = batch->state_reads[r], write = batch->state_writes[r];
            bool first = r == batch->seq_start[s], last = r + 1 == batch->seq_start[s + 1];
            bool reads =
                first ? read < n_slots || read == STEP_STATE_NONE : read == STEP_STATE_PREVIOUS;
            bool writes = write < n_slots || (write == STEP_STATE_NONE && !last);
            if (!reads || !writes)
                return error_set(err, STATUS_INTERNAL,
                                 "step: row %u reads state %u and writes state %u of %u", r, read,
                                 write, n_slots);
        }
    return 0;
}

/* Checks the blocks for windows: every entry of a table is a block. */
static int check_windows(const struct step_batch *batch, const struct step_sizes *steps,
                         struct error *err)
{
    uint32_t n = steps->n_window_blocks, n_slots = n * steps->block_size;
    if (!n)
        return 0;
    if (!batch->window_tables)
        return error_set(err, STATUS_INTERNAL, "step: no blocks for windows");
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        uint32_t last = batch->positions[batch->seq_start[s + 1] - 1] / steps->block_size;
        const uint32_t *table = batch->window_tables + (size_t)s * batch->limits.max_blocks_per_seq;
        for (uint32_t b = 0; b <= last; b++)
            if (table[b] >= n)
                return error_set(err, STATUS_INTERNAL, "step: sequence %u: window block %u of %u",
                                 s, table[b], n);
    }
    for (uint32_t r = 0; r < batch->n_rows; r++)
        if (batch->window_slots[r] >= n_slots)
            return error_set(err, STATUS_INTERNAL, "step: row %u: window slot %u of %u", r,
                             batch->window_slots[r], n_slots);
    return 0;
}

/* Checks every number that an op uses as an index. A bad number is a bug of the scheduler, and
 * would write out of bounds on every rank. */
static int check_batch(const struct executor *ex, const struct step_batch *batch, struct error *err)
{
    const struct step_sizes *steps = &ex->plans[0].steps;
    uint32_t n_slots = steps->n_blocks * steps->block_size;
    if (!batch->n_rows || batch->n_rows > steps->max_rows || !batch->n_seqs ||
        batch->n_seqs > steps->max_seqs || batch->n_sample_rows > steps->max_logits ||
        batch->limits.max_blocks_per_seq > steps->max_blocks_per_seq)
        return error_set(err, STATUS_INTERNAL,
                         "step: %u rows of %u sequences, %u sampled, tables of %u: limits %u, %u, "
                         "%u, %u",
                         batch->n_rows, batch->n_seqs, batch->n_sample_rows,
                         batch->limits.max_blocks_per_seq, steps->max_rows, steps->max_seqs,
                         steps->max_logits, steps->max_blocks_per_seq);
    if (batch->seq_start[0] != 0 || batch->seq_start[batch->n_seqs] != batch->n_rows)
        return error_set(err, STATUS_INTERNAL, "step: sequences cover rows %u..%u of %u",
                         batch->seq_start[0], batch->seq_start[batch->n_seqs], batch->n_rows);
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        uint32_t begin = batch->seq_start[s], end = batch->seq_start[s + 1];
        if (begin >= end || end > batch->n_rows ||
            batch->positions[end - 1] >= ex->actual.context_tokens)
            return error_set(err, STATUS_INTERNAL, "step: sequence %u: rows %u..%u", s, begin, end);
        uint32_t n_blocks = batch->positions[end - 1] / steps->block_size + 1;
        const uint32_t *table = batch->block_tables + (size_t)s * batch->limits.max_blocks_per_seq;
        for (uint32_t b = 0; b < n_blocks; b++)
            if (table[b] >= steps->n_blocks)
                return error_set(err, STATUS_INTERNAL, "step: sequence %u: block %u of %u", s,
                                 table[b], steps->n_blocks);
        for (uint32_t r = begin; r < end; r++)
            if (batch->seq_of_row[r] != s || batch->kv_slots[r] >= n_slots ||
                batch->token_ids[r] >= ex->model.shape.vocab_size ||
                batch->positions[r] != batch->positions[begin] + (r - begin))
                return error_set(err, STATUS_INTERNAL,
                                 "step: row %u: sequence %u, position %u, slot %u, token %u", r,
                                 batch->seq_of_row[r], batch->positions[r], batch->kv_slots[r],
                                 batch->token_ids[r]);
    }
    int rc = check_states(batch, steps->n_state_slots, err);
    if (!rc)
        rc = check_windows(batch, steps, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < batch->n_sample_rows; i++)
        if (batch->sample_rows[i] >= batch->n_rows)
            return error_set(err, STATUS_INTERNAL, "step: sample row %u of %u",
                             batch->sample_rows[i], batch->n_rows);
    return 0;
}

/* Checks the token ids, the only new inputs of a step that was checked ahead. */
static int check_ids(const struct executor *ex, const struct step_batch *batch, struct error *err)
{
    for (uint32_t r = 0; r < batch->n_rows; r++)
        if (batch->token_ids[r] >= ex->model.shape.vocab_size)
            return error_set(err, STATUS_INTERNAL, "step: row %u: token %u", r,
                             batch->token_ids[r]);
    return 0;
}

int executor_enter(const struct executor *ex, struct error *err)
{
    return ex->is_confined ? cpus_confine(&ex->first_cpus, err) : 0;
}

static int sync_head(struct executor *ex, struct error *err)
{
    uint32_t head = head_rank(ex);
    return rank_device(ex, head)->ops->stream_sync(ex->streams[head], err);
}

/* The rows of this step can be sampled from now on. */
static void open_logits(struct executor *ex, uint32_t n_sample_rows)
{
    ex->n_logits = n_sample_rows;
    ex->n_kept = min_u32(n_sample_rows, ex->plans[0].steps.n_logits);
    ex->i_kept = 0;
}

uint32_t executor_max_flights(const struct executor *ex)
{
    return ex->n_stages;
}

int executor_submit(struct executor *ex, const struct step_batch *batch, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_STEP, .batch = batch};
    bool is_checked = ex->has_ahead && batch->is_ahead;
    ex->has_ahead = false;
    if (ex->n_stages == 1)
        open_logits(ex, 0);
    int rc = is_checked ? check_ids(ex, batch, err) : check_batch(ex, batch, err);
    if (rc)
        return rc;
    if (ex->n_stages > 1) {
        executor_post_step(ex, batch);
        return 0;
    }
    rc = executor_run_job(&job, err);
    if (!rc && ex->gpu && !batch->n_sample_rows)
        rc = sync_head(ex, err);
    if (!rc)
        open_logits(ex, batch->n_sample_rows);
    return rc;
}

int executor_collect(struct executor *ex, struct error *err)
{
    uint32_t n_sample_rows;
    if (ex->n_stages == 1)
        return 0;
    open_logits(ex, 0);
    int rc = executor_await_step(ex, &n_sample_rows, err);
    if (!rc)
        open_logits(ex, n_sample_rows);
    return rc;
}

int executor_step(struct executor *ex, const struct step_batch *batch, struct error *err)
{
    executor_release(ex);
    int rc = executor_submit(ex, batch, err);
    return rc ? rc : executor_collect(ex, err);
}

/* Makes sure that `logits` holds the sample row, with as many rows behind it as fit. */
static int keep_logits(struct executor *ex, uint32_t row, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_LOGITS, .first_logits = row};
    if (row - ex->i_kept < ex->n_kept)
        return 0;
    job.n_logits = min_u32(ex->n_logits - row, ex->plans[0].steps.n_logits);
    ex->n_kept = 0;
    int rc = executor_run_job(&job, err);
    if (rc)
        return rc;
    ex->i_kept = row;
    ex->n_kept = job.n_logits;
    return 0;
}

int executor_step_ahead(struct executor *ex, const struct step_batch *batch, struct error *err)
{
    if (!ex->gpu)
        return 0;
    int rc = check_batch(ex, batch, err);
    if (!rc)
        rc = decoder_step_ahead(ex->decoders[head_rank(ex)], batch, err);
    ex->has_ahead = !rc;
    return rc;
}

const float *executor_logits(struct executor *ex, uint32_t i_sample_row)
{
    uint32_t vocab = ex->model.shape.vocab_size;
    struct error err;
    if (i_sample_row >= ex->n_logits || keep_logits(ex, i_sample_row, &err) != 0)
        return NULL;
    const float *logits = ex->logits + (size_t)(i_sample_row - ex->i_kept) * vocab;
    if (!ex->gpu)
        return logits;
    if (!ex->host_logits)
        ex->host_logits = malloc(vocab * sizeof(float));
    if (!ex->host_logits ||
        ex->gpu->ops->download(ex->streams[head_rank(ex)], ex->host_logits, logits,
                               vocab * sizeof(float)) != 0 ||
        sync_head(ex, &err) != 0)
        return NULL;
    return ex->host_logits;
}

uint64_t executor_progress_counter(const struct executor *ex)
{
    return atomic_load(&ex->progress);
}

int executor_queue_sample(struct executor *ex, uint32_t first, uint32_t n,
                          const struct sample_params *params, struct sample_result *results,
                          struct error *err)
{
    if (first > ex->n_logits || n > ex->n_logits - first)
        return error_set(err, STATUS_INTERNAL, "sampling %u rows from %u on, of %u", n, first,
                         ex->n_logits);
    uint32_t vocab = ex->model.shape.vocab_size;
    struct stream *stream = ex->streams[head_rank(ex)];
    int rc = 0;
    for (uint32_t i = 0, n_together; i < n && !rc; i += n_together) {
        rc = keep_logits(ex, first + i, err);
        if (rc)
            return rc;
        uint32_t at = first + i - ex->i_kept;
        /* Rows lie vocab elements apart. If fewer columns are sampled, rows are not contiguous:
         * each row is a tensor of its own. */
        n_together = ex->n_sampled == vocab ? min_u32(n - i, ex->n_kept - at) : 1;
        struct tensor logits =
            tensor_view(ex->logits + (size_t)at * vocab, DTYPE_F32, n_together, ex->n_sampled);
        rc = op_sample(stream, &logits, params + i, results + i);
    }
    if (!rc && ex->sampled)
        rc = stream->device->ops->event_record(stream, ex->sampled);
    /* The device's error is more precise than the op's. */
    if (rc && stream->device->ops->stream_sync(stream, err) == 0)
        error_set(err, rc, "sampling %u rows failed", n);
    return rc ? err->status : 0;
}

int executor_wait(struct executor *ex, struct error *err)
{
    struct error ignored; /* the stream's error is more precise */
    if (!ex->sampled || ex->gpu->ops->event_wait(ex->sampled, &ignored) != 0)
        return sync_head(ex, err);
    return 0;
}

int executor_sample(struct executor *ex, uint32_t first, uint32_t n,
                    const struct sample_params *params, struct sample_result *results,
                    struct error *err)
{
    int rc = executor_queue_sample(ex, first, n, params, results, err);
    return rc ? rc : sync_head(ex, err);
}

int executor_alloc_results(struct executor *ex, uint32_t n, struct sample_result **out_results,
                           struct error *err)
{
    size_t n_bytes = n * sizeof(**out_results);
    void *memory = NULL;
    if (!ex->gpu)
        memory = malloc(n_bytes);
    else if (ex->gpu->ops->alloc_host(ex->gpu, n_bytes, &memory, err) != 0)
        return error_prefix(err, "results");
    if (!memory)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u results", n);
    memset(memory, 0, n_bytes);
    *out_results = memory;
    return 0;
}

void executor_free_results(struct executor *ex, struct sample_result *results, uint32_t n)
{
    struct error ignored;
    if (!ex->gpu) {
        free(results);
    } else if (results) {
        (void)sync_head(ex, &ignored); /* queued work may still write to the memory */
        ex->gpu->ops->free_host(ex->gpu, results, n * sizeof(*results));
    }
}

static int copy_block(struct step_job *job, uint32_t n_blocks, struct error *err)
{
    if (job->from >= n_blocks || job->to >= n_blocks)
        return error_set(err, STATUS_INTERNAL, "copy of KV block %u to %u of %u", job->from,
                         job->to, n_blocks);
    return executor_run_job(job, err);
}

int executor_copy_block(struct executor *ex, uint32_t from, uint32_t to, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_COPY_BLOCK, .from = from, .to = to};
    return copy_block(&job, ex->actual.n_blocks, err);
}

int executor_copy_window(struct executor *ex, uint32_t from, uint32_t to, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_COPY_WINDOW, .from = from, .to = to};
    return copy_block(&job, ex->actual.n_window_blocks, err);
}

uint64_t executor_state_bytes(const struct executor *ex)
{
    return ex->actual.state_slot_bytes;
}

static int run_states(struct step_job *job, struct error *err)
{
    uint32_t n_slots = job->ex->actual.n_state_slots;
    if (!n_slots)
        return 0;
    if (job->from >= n_slots || job->to >= n_slots)
        return error_set(err, STATUS_INTERNAL, "copy of state slot %u to %u of %u", job->from,
                         job->to, n_slots);
    return executor_run_job(job, err);
}

int executor_copy_state(struct executor *ex, uint32_t from, uint32_t to, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_COPY_STATE, .from = from, .to = to};
    return run_states(&job, err);
}

int executor_save_state(struct executor *ex, uint32_t slot, void *host, struct error *err)
{
    struct step_job job = {.ex = ex, .kind = JOB_SAVE_STATE, .from = slot, .host = host};
    return run_states(&job, err);
}

int executor_load_state(struct executor *ex, uint32_t slot, const void *host, struct error *err)
{
    struct step_job job = {
        .ex = ex, .kind = JOB_LOAD_STATE, .to = slot, .host = (unsigned char *)(uintptr_t)host};
    return run_states(&job, err);
}
