/* accuracy: how far the integer kernels and an int8 KV cache are from f32 on the sample model, and
 * f32 from transformers.
 *
 *     accuracy [--short]        SLUICE_MODEL names the file; --short: 2 windows, 4 prompts
 *
 * On tests/golden/perplexity.txt in windows of 512 tokens: perplexity, mean KL divergence,
 * top-1 agreement, relative logit error per row. On tests/golden/sample_greedy.bin: 64 greedy
 * tokens of 20 prompts against transformers', with the margin between the two best logits at the
 * first difference. Exits 1 where a bound is missed, 2 where it cannot run. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"
#include "engine/text/tokenizer.h"

enum { WINDOW = 512, ROWS = 64, BLOCK = 16, MAX_PROMPTS = 20, N_STEPS = 64, MAX_SEQ = 640 };

static const double MAX_PERPLEXITY_CHANGE = 0.005, MAX_ROW_ERROR_P99 = 5e-2;
static const double MAX_MEAN_KL = 0.005, MIN_TOP1 = 0.95, MAX_EXPLAINED_MARGIN = 1e-3;

struct runner {
    struct executor *ex;
    struct step_batch *batch;
    uint32_t vocab, stride;
};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "accuracy: %s: %s\n", what, err ? err->message : "failed");
    exit(2);
}

static const char *model_path(void)
{
    static char path[4096];
    const char *given = getenv("SLUICE_MODEL"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *file = "sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given && given[0])
        return given;
    if (cache && cache[0])
        snprintf(path, sizeof(path), "%s/%s", cache, file);
    else
        snprintf(path, sizeof(path), "%s/.cache/%s", home ? home : "", file);
    return path;
}

static unsigned char *read_file(const char *name, size_t *out_n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/%s", SLUICE_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        die(path, NULL);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    unsigned char *bytes = malloc((size_t)size + 1);
    if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        die(path, NULL);
    fclose(file);
    bytes[size] = 0;
    *out_n = (size_t)size;
    return bytes;
}

/* --- steps --- */

static void runner_open(struct runner *r, struct checkpoint *ckpt, const char *kernels,
                        enum dtype kv_dtype)
{
    struct error err = {0};
    struct executor_config cfg = {
        .kernels = kernels,
        .tp = 1,
        .kv_dtype = kv_dtype,
        .kv_block_size = BLOCK,
        .kv_tokens = (uint64_t)MAX_PROMPTS * MAX_SEQ,
        .max_rows = ROWS,
        .max_seqs = ROWS,
    };
    if (executor_open(ckpt, &cfg, NULL, NULL, NULL, &r->ex, &err) != 0)
        die(kernels, &err);
    r->vocab = executor_model_info(r->ex)->vocab_size;
    r->stride = (executor_actual(r->ex)->context_tokens + BLOCK - 1) / BLOCK;
    struct step_limits limits = {ROWS, ROWS, r->stride, 0, false};
    if (step_batch_create(&limits, &r->batch, &err) != 0)
        die("step", &err);
}

static void runner_close(struct runner *r)
{
    step_batch_destroy(r->batch);
    executor_close(r->ex);
}

/* Adds n tokens of sequence `seq` at `position`; each sequence has MAX_SEQ tokens of cache. */
static void push(struct runner *r, uint32_t seq, const uint32_t *ids, uint32_t position, uint32_t n)
{
    struct step_batch *b = r->batch;
    uint32_t s = b->n_seqs++, first = seq * (MAX_SEQ / BLOCK);
    b->seq_start[s] = b->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = b->n_rows++;
        b->token_ids[row] = ids[i];
        b->positions[row] = position + i;
        b->kv_slots[row] = first * BLOCK + position + i;
        b->seq_of_row[row] = s;
    }
    for (uint32_t i = 0; i < MAX_SEQ / BLOCK && i < r->stride; i++)
        b->block_tables[(size_t)s * r->stride + i] = first + i;
    b->seq_start[s + 1] = b->n_rows;
    step_batch_use_slot(b, s, seq, position == 0);
}

static void step(struct runner *r)
{
    struct error err = {0};
    if (executor_step(r->ex, r->batch, &err) != 0)
        die("step", &err);
    step_batch_clear(r->batch);
}

/* --- perplexity --- */

struct sums {
    double nll_reference, nll_contract, kl, worst;
    uint32_t n_rows, n_predicted, n_top1;
    double *errors; /* [n_rows] */
};

static double log_sum_exp(const float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* Adds a row of logits of both models; `target` < 0: the window's last row predicts no token. */
static void add_row(struct sums *t, const float *ref, const float *got, uint32_t n, int64_t target)
{
    double z_ref = log_sum_exp(ref, n), z_got = log_sum_exp(got, n);
    double kl = 0, most = 0, scale = 0;
    uint32_t best_ref = 0, best_got = 0;
    for (uint32_t i = 0; i < n; i++) {
        double l_ref = (double)ref[i] - z_ref, l_got = (double)got[i] - z_got;
        kl += exp(l_ref) * (l_ref - l_got);
        most = fmax(most, fabs((double)ref[i] - (double)got[i]));
        scale = fmax(scale, fabs((double)ref[i]));
        best_ref = ref[i] > ref[best_ref] ? i : best_ref;
        best_got = got[i] > got[best_got] ? i : best_got;
    }
    t->kl += kl;
    t->n_top1 += best_ref == best_got;
    t->errors[t->n_rows++] = most / scale;
    t->worst = fmax(t->worst, most / scale);
    if (target >= 0) {
        t->nll_reference += z_ref - (double)ref[target];
        t->nll_contract += z_got - (double)got[target];
        t->n_predicted++;
    }
}

/* Configurations that are compared with f32: the kernels that serve, and an int8 cache, together
 * and alone. */
struct contender {
    const char *kernels;
    enum dtype kv_dtype;
    struct runner run;
    struct sums sums;
};

static void take_step(struct runner *r, const uint32_t *ids, uint32_t position, uint32_t n)
{
    push(r, 0, ids + position, position, n);
    for (uint32_t i = 0; i < n; i++)
        r->batch->sample_rows[r->batch->n_sample_rows++] = i;
    step(r);
}

static void run_window(struct runner *ref, struct contender *list, uint32_t n_list,
                       const uint32_t *ids, uint32_t n)
{
    for (uint32_t done = 0, m; done < n; done += m) {
        m = n - done < ROWS ? n - done : ROWS;
        take_step(ref, ids, done, m);
        for (uint32_t k = 0; k < n_list; k++) {
            take_step(&list[k].run, ids, done, m);
            for (uint32_t i = 0; i < m; i++) {
                uint32_t at = done + i;
                add_row(&list[k].sums, executor_logits(ref->ex, i),
                        executor_logits(list[k].run.ex, i), ref->vocab,
                        at + 1 < n ? (int64_t)ids[at + 1] : -1);
            }
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool within(const char *what, double value, double bound, bool at_least)
{
    bool good = at_least ? value >= bound : value <= bound;
    printf("  %-34s %-10.4g %s %-8.4g %s\n", what, value, at_least ? "≥" : "≤", bound,
           good ? "ok" : "MISSED");
    return good;
}

static double perplexity_of(double nll, const struct sums *t)
{
    return exp(nll / t->n_predicted);
}

static bool judge(struct contender *c)
{
    struct sums *t = &c->sums;
    qsort(t->errors, t->n_rows, sizeof(*t->errors), by_size);
    double ref = perplexity_of(t->nll_reference, t), got = perplexity_of(t->nll_contract, t);
    printf("%s against f32 on %u tokens in windows of %d\n", executor_numerics_id(c->run.ex),
           t->n_rows, WINDOW);
    printf("  perplexity %.4f, of f32 %.4f (%+.3f %%); relative logit error of a row: median %.4f, "
           "worst %.4f\n",
           got, ref, 100 * (got / ref - 1), t->errors[t->n_rows / 2], t->worst);
    bool good =
        within("perplexity, relative change", fabs(got / ref - 1), MAX_PERPLEXITY_CHANGE, false);
    good &= within("mean KL divergence", t->kl / t->n_rows, MAX_MEAN_KL, false);
    good &= within("top-1 agreement", (double)t->n_top1 / t->n_rows, MIN_TOP1, true);
    good &= within("relative logit error, 99 % of rows", t->errors[t->n_rows * 99 / 100],
                   MAX_ROW_ERROR_P99, false);
    return good;
}

static bool check_perplexity(struct checkpoint *ckpt, struct runner *ref, bool brief)
{
    struct contender list[] = {{.kernels = "auto", .kv_dtype = DTYPE_BF16},
                               {.kernels = "auto", .kv_dtype = DTYPE_I8},
                               {.kernels = "f32", .kv_dtype = DTYPE_I8}};
    enum { N = sizeof(list) / sizeof(list[0]) };
    struct error err = {0};
    struct tokenizer *tok;
    struct token_list text_ids = {0};
    size_t n_bytes;
    bool good = true;
    char *text = (char *)read_file("perplexity.txt", &n_bytes);
    if (tokenizer_open(ckpt, &tok, &err) != 0 ||
        tokenizer_encode(tok, text, n_bytes, 0, &text_ids, NULL, &err) != 0)
        die("tokenizer", &err);
    uint32_t n = (uint32_t)text_ids.n_ids;
    if (brief && n > 2 * WINDOW)
        n = 2 * WINDOW;
    for (int k = 0; k < N; k++) {
        list[k].sums.errors = calloc(n, sizeof(*list[k].sums.errors));
        if (!list[k].sums.errors)
            die("memory", NULL);
        runner_open(&list[k].run, ckpt, list[k].kernels, list[k].kv_dtype);
    }
    for (uint32_t at = 0; at < n; at += WINDOW)
        run_window(ref, list, N, text_ids.ids + at, n - at < WINDOW ? n - at : WINDOW);
    for (int k = 0; k < N; k++)
        good &= judge(&list[k]);
    double bf16 = perplexity_of(list[0].sums.nll_contract, &list[0].sums),
           int8 = perplexity_of(list[1].sums.nll_contract, &list[1].sums);
    printf("int8 cache against bf16: perplexity %+.3f %%\n", 100 * (int8 / bf16 - 1));
    good &=
        within("perplexity, relative change", fabs(int8 / bf16 - 1), MAX_PERPLEXITY_CHANGE, false);
    for (int k = 0; k < N; k++) {
        runner_close(&list[k].run);
        free(list[k].sums.errors);
    }
    free(text);
    token_list_fini(&text_ids);
    tokenizer_close(tok);
    return good;
}

/* --- greedy --- */

struct prompt {
    uint32_t n_ids, n_bytes;
    uint32_t ids[MAX_SEQ];
    uint32_t expected[N_STEPS], generated[N_STEPS];
    float margins[N_STEPS];
    float own_margins[N_STEPS];
};

static uint32_t read_prompts(struct prompt *prompts, bool brief)
{
    size_t n_bytes, at = 4;
    uint32_t head[2], sizes[2];
    unsigned char *bytes = read_file("sample_greedy.bin", &n_bytes);
    memcpy(head, bytes + at, sizeof(head));
    at += sizeof(head);
    if (memcmp(bytes, "SLGR", 4) != 0 || head[0] != MAX_PROMPTS || head[1] != N_STEPS)
        die("sample_greedy.bin is another file", NULL);
    for (uint32_t i = 0; i < MAX_PROMPTS; i++) {
        struct prompt *p = &prompts[i];
        memcpy(sizes, bytes + at, sizeof(sizes));
        at += sizeof(sizes) + sizes[0];
        p->n_ids = sizes[1];
        if (p->n_ids + N_STEPS > MAX_SEQ || at + p->n_ids * 4 + N_STEPS * 8 > n_bytes)
            die("sample_greedy.bin is cut", NULL);
        memcpy(p->ids, bytes + at, p->n_ids * 4);
        at += p->n_ids * 4;
        memcpy(p->expected, bytes + at, sizeof(p->expected));
        at += sizeof(p->expected);
        memcpy(p->margins, bytes + at, sizeof(p->margins));
        at += sizeof(p->margins);
    }
    free(bytes);
    return brief ? 4 : MAX_PROMPTS;
}

static void take_best(const float *logits, uint32_t n, uint32_t *out_id, float *out_margin)
{
    uint32_t best = 0;
    float second = -INFINITY;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    *out_id = best;
    *out_margin = logits[best] - second;
}

static void generate(struct runner *r, struct prompt *prompts, uint32_t n)
{
    for (uint32_t p = 0; p < n; p++) {
        uint32_t last = 0;
        for (uint32_t done = 0; done < prompts[p].n_ids; done += last) {
            uint32_t left = prompts[p].n_ids - done;
            last = left < ROWS ? left : ROWS;
            push(r, p, prompts[p].ids + done, done, last);
            if (last == left)
                r->batch->sample_rows[r->batch->n_sample_rows++] = last - 1;
            step(r);
        }
        take_best(executor_logits(r->ex, 0), r->vocab, &prompts[p].generated[0],
                  &prompts[p].own_margins[0]);
    }
    for (uint32_t i = 1; i < N_STEPS; i++) {
        for (uint32_t p = 0; p < n; p++) {
            push(r, p, &prompts[p].generated[i - 1], prompts[p].n_ids + i - 1, 1);
            r->batch->sample_rows[r->batch->n_sample_rows++] = p;
        }
        step(r);
        for (uint32_t p = 0; p < n; p++)
            take_best(executor_logits(r->ex, p), r->vocab, &prompts[p].generated[i],
                      &prompts[p].own_margins[i]);
    }
}

/* Prints each prompt's first difference; *out_unexplained counts those with a wide margin. */
static uint32_t count_agreeing(const struct prompt *prompts, uint32_t n, uint32_t *out_unexplained)
{
    uint32_t n_agree = 0;
    *out_unexplained = 0;
    for (uint32_t p = 0; p < n; p++) {
        uint32_t i = 0;
        while (i < N_STEPS && prompts[p].generated[i] == prompts[p].expected[i])
            i++;
        n_agree += i == N_STEPS;
        if (i == N_STEPS)
            continue;
        double margin = (double)prompts[p].margins[i];
        printf("  prompt %u differs at token %u: %u, expected %u; margin %.4g (own %.4g)\n", p, i,
               prompts[p].generated[i], prompts[p].expected[i], margin,
               (double)prompts[p].own_margins[i]);
        *out_unexplained += margin >= MAX_EXPLAINED_MARGIN;
    }
    return n_agree;
}

static bool check_greedy(struct checkpoint *ckpt, struct runner *ref, bool brief)
{
    static struct prompt prompts[MAX_PROMPTS];
    struct runner got;
    uint32_t n = read_prompts(prompts, brief), unexplained;
    printf("greedy, %u prompts × %d tokens, f32 against transformers\n", n, N_STEPS);
    generate(ref, prompts, n);
    uint32_t n_agree = count_agreeing(prompts, n, &unexplained);
    uint32_t least = n * 19 / 20;
    bool good = within("prompts that agree", n_agree, least, true);
    good &= within("differences not explained", unexplained, 0, false);
    printf("greedy, integer kernels against transformers (stated, no bound)\n");
    runner_open(&got, ckpt, "auto", DTYPE_BF16);
    generate(&got, prompts, n);
    printf("  %u of %u agree\n", count_agreeing(prompts, n, &unexplained), n);
    runner_close(&got);
    return good;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct checkpoint *ckpt = NULL;
    struct runner ref;
    bool brief = argc == 2 && strcmp(argv[1], "--short") == 0;
    int64_t started = clock_now_ns();
    if (argc > 2 || (argc == 2 && !brief)) {
        fprintf(stderr, "usage: accuracy [--short]\n");
        return 2;
    }
    if (checkpoint_open(model_path(), &ckpt, &err) != 0)
        die("the sample model (etc/fetch_model.sh gets it, SLUICE_MODEL names it)", &err);
    runner_open(&ref, ckpt, "f32", DTYPE_F32);
    bool good = check_perplexity(ckpt, &ref, brief);
    good &= check_greedy(ckpt, &ref, brief);
    runner_close(&ref);
    checkpoint_close(ckpt);
    printf("%s in %.1f s\n", good ? "within every bound" : "OUTSIDE A BOUND",
           (double)(clock_now_ns() - started) / 1e9);
    return good ? 0 : 1;
}
