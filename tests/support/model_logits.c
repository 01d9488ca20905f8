/* model_logits: computes logits of a model, for comparison with other programs.
 *
 *   model_logits [-k KERNELS] [-t RANKS] [-c TOKENS] PATH
 *
 * PATH is a GGUF file or a Hugging Face folder. Standard input has the ids of one sequence (u32
 * each). Standard output has the logits of every position (f32, one row of the vocabulary each).
 * The sequence is computed in steps of -c tokens (16). A refusal is printed to standard error as
 * "STATUS: text", and the program ends with 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"

enum { BLOCK = 16, MAX_IDS = 4096, REFUSED = 3 };

static void refuse(const struct error *err)
{
    fprintf(stderr, "%s: %s\n", status_name(err->status), err->message);
    exit(REFUSED);
}

/* Adds the next n tokens of the only sequence. Its blocks are in order. */
static void fill(struct step_batch *b, const uint32_t *ids, uint32_t done, uint32_t n)
{
    step_batch_clear(b);
    for (uint32_t i = 0; i < n; i++) {
        b->token_ids[i] = ids[done + i];
        b->positions[i] = b->kv_slots[i] = done + i;
        b->seq_of_row[i] = b->is_generated[i] = 0;
        b->sample_rows[i] = i;
    }
    for (uint32_t i = 0; i <= (done + n - 1) / BLOCK; i++)
        b->block_tables[i] = i;
    b->seq_start[0] = 0;
    b->seq_start[1] = b->n_rows = b->n_sample_rows = n;
    b->n_seqs = 1;
    step_batch_use_slot(b, 0, 0, done == 0);
}

static void run(struct executor *ex, const struct executor_config *cfg, const uint32_t *ids,
                uint32_t n_ids)
{
    uint32_t vocab = executor_model_info(ex)->vocab_size, chunk = cfg->max_rows;
    uint32_t n_blocks = (executor_actual(ex)->context_tokens + BLOCK - 1) / BLOCK;
    struct step_limits limits = {chunk, 1, n_blocks, cfg->n_score_rows, false};
    struct step_batch *batch;
    struct error err = {0};
    if (step_batch_create(&limits, &batch, &err))
        refuse(&err);
    for (uint32_t done = 0; done < n_ids; done += chunk) {
        uint32_t n = n_ids - done < chunk ? n_ids - done : chunk;
        fill(batch, ids, done, n);
        if (executor_step(ex, batch, &err))
            refuse(&err);
        for (uint32_t i = 0; i < n; i++)
            fwrite(executor_logits(ex, i), sizeof(float), vocab, stdout);
    }
    step_batch_destroy(batch);
}

int main(int argc, char **argv)
{
    static uint32_t ids[MAX_IDS];
    struct error err = {0};
    struct checkpoint *ckpt;
    struct executor *ex;
    struct executor_config cfg = {.kernels = "f32",
                                  .tp = 1,
                                  .kv_dtype = DTYPE_F32,
                                  .kv_block_size = BLOCK,
                                  .max_rows = 16,
                                  .max_seqs = 1};
    for (int option; (option = getopt(argc, argv, "k:t:c:")) >= 0;) {
        if (option == 'k')
            cfg.kernels = optarg;
        else if (option == 't')
            cfg.tp = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 'c')
            cfg.max_rows = (uint32_t)strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    if (optind + 1 != argc || !cfg.max_rows)
        return 2;
    uint32_t n_ids = (uint32_t)fread(ids, sizeof(ids[0]), MAX_IDS, stdin);
    cfg.n_threads = cfg.tp;
    cfg.kv_tokens = n_ids;
    cfg.n_score_rows = cfg.max_rows;
    if (checkpoint_open(argv[optind], &ckpt, &err) ||
        executor_open(ckpt, &cfg, NULL, NULL, NULL, &ex, &err))
        refuse(&err);
    run(ex, &cfg, ids, n_ids);
    executor_close(ex);
    checkpoint_close(ckpt);
    return 0;
}
