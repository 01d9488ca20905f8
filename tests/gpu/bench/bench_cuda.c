/* bench_cuda: speed of the GPU backend against the limits of the card. Warms the card and
 * measures its limits (bench_card.c). Then measures each kernel as a share of its bound, and
 * tokens/s of an 8B-Llama shape with random weights. Each part has a file bench_*.c. Prints
 * Markdown tables; tests/gpu/run.sh puts them into RESULTS.md. A time is a median, with the least
 * in brackets. There are 3 warm-ups, then 20 repeats or as many as 0.3 s hold.
 *
 *     bench_cuda [OPTIONS]
 *     bench_cuda --ab VARIABLE=a,b [--rounds N] [OPTIONS]    two choices alternately
 *     bench_cuda --write q8_0|bf16 FILE    the 8B shape without its bytes, for bench_between */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/bench/big_model.h"

static const char usage_text[] =
    "usage: bench_cuda [OPTIONS]\n"
    "       bench_cuda --ab VARIABLE=a,b [--rounds N] [OPTIONS]\n"
    "       bench_cuda --write q8_0|bf16 FILE\n"
    "\n"
    "  --parts LIST     of ceilings,linears,rows,states,paths,attention-decode,attention-prompt,\n"
    "                   attention-latent,sampler,pack,load,prefill,decode; attention names three,\n"
    "                   models two; default all\n"
    "  --models LIST    of bf16,q8_0,q4_k,fp8, in prefill and decode; default all\n"
    "  --formats LIST   formats of weights, in linears; default all\n"
    "  --rows LIST      numbers of rows, in linears; default 1,8,32,64,128,2048\n"
    "  --kv LIST        types of caches, in attention; default bf16,f16,f8_e4m3,i8\n"
    "  --outliers N     plant outliers in N % of the 64-column chunks, in linears and models;\n"
    "                   models of the field have 40 to 79 %; default: a normal distribution\n"
    "  --layers N       of the 8B shape; default 32\n"
    "  --warm MS        of products before anything is timed; default 2000\n"
    "  --repeat S       most time of a call's repeats, of which there are 20; default 0.3\n"
    "  --no-ceilings    do not measure the card's limits; tables have no shares\n"
    "  --ceilings FILE  take the card's limits from FILE, or measure them and write FILE\n"
    "  --record FILE    write KEY, median and least seconds, a line each, tabs between\n"
    "  --directory DIR  for files of models; default /tmp\n"
    "  --small          tiny shapes, once, to see that the bench runs, also on tests/simt\n"
    "  --once           each op once, under a profiler\n"
    "  --ab VARIABLE=a,b  runs the parts with VARIABLE=a and =b in turn, each in a process of its\n"
    "                   own, and prints ratios and their spread; an empty value unsets VARIABLE\n"
    "                   SLUICE_BENCH_PROGRAM=a,b compares two builds of this program\n"
    "  --rounds N       of --ab; default 3\n"
    "  --most S         of --ab: begin no run that may last beyond these seconds\n"
    "\n"
    "SLUICE_BENCH_PROMPTS=exact|f16 chooses the arithmetic of prompts with quantized weights; "
    "default f16\n";

static const char *const part_names[] = {
    "ceilings",         "linears",          "rows",      "paths",  "attention-decode",
    "attention-prompt", "attention-latent", "sampler",   "pack",   "load",
    "prefill",          "decode",           "attention", "models", "states"};

static bool has_part(const struct bench *b, const char *name)
{
    const char *group = strncmp(name, "attention-", 10) == 0                          ? "attention"
                        : strcmp(name, "prefill") == 0 || strcmp(name, "decode") == 0 ? "models"
                                                                                      : name;
    return bench_lists(b->parts, name) || bench_lists(b->parts, group);
}

/* A misspelt part would silently measure nothing. */
static bool knows_parts(const char *list)
{
    size_t n_items = *list != 0, n_known = 0;
    for (const char *at = list; *at; at++)
        n_items += *at == ',';
    for (size_t i = 0; i < sizeof(part_names) / sizeof(part_names[0]); i++)
        n_known += bench_lists(list, part_names[i]);
    return *list == 0 || n_known == n_items;
}

static int write_model(const struct bench *b, const char *format, const char *path)
{
    struct error err = {0};
    enum dtype type = strcmp(format, "bf16") == 0 ? DTYPE_BF16 : DTYPE_Q8_0;
    struct big_spec spec = b->small ? big_spec_small(type) : big_spec_8b(type);
    if (big_write(&spec, path, false, &err) != 0)
        bench_die(&err);
    return 0;
}

static int usage(int status)
{
    fputs(usage_text, status ? stderr : stdout);
    return status;
}

static void run_kernels(struct bench *b)
{
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } parts[] = {{"linears", bench_linears},
                 {"rows", bench_row_ops},
                 {"states", bench_states},
                 {"paths", bench_paths},
                 {"attention-decode", bench_decode_attention},
                 {"attention-prompt", bench_prompt_attention},
                 {"attention-latent", bench_latent_attention},
                 {"sampler", bench_sampler},
                 {"pack", bench_pack},
                 {"load", bench_load}};
    bench_card(b);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (has_part(b, parts[i].name))
            parts[i].run(b);
}

static int run(struct bench *b)
{
    struct error err = {0};
    bool prefill = has_part(b, "prefill"), decode = has_part(b, "decode");
    const char *prompts = getenv("SLUICE_BENCH_PROMPTS");
    b->prompts_f16 = !prompts || strcmp(prompts, "exact") != 0;
    if (backend_cuda(&b->module, &err) != 0 ||
        b->module.device_ops->open(0, &b->device, &err) != 0 ||
        b->module.device_ops->stream_create(b->device, 1, &b->stream, &err) != 0)
        bench_die(&err);
    b->stream->prompts_f16 = b->prompts_f16;
    run_kernels(b);
    b->module.device_ops->stream_destroy(b->stream);
    b->module.device_ops->close(b->device);
    if (prefill || decode)
        bench_models(b, prefill, decode);
    return 0;
}

/* Options with a value. Returns false for others. */
static bool take_value(struct bench *b, const char *name, const char *value)
{
    const struct {
        const char *name, **to;
    } texts[] = {
        {"--parts", &b->parts},      {"--models", &b->models}, {"--formats", &b->formats},
        {"--rows", &b->row_counts},  {"--kv", &b->kv},         {"--directory", &b->directory},
        {"--ceilings", &b->ceilings}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(name, texts[i].name) == 0) {
            *texts[i].to = value;
            return true;
        }
    if (strcmp(name, "--outliers") == 0)
        b->outliers = strtod(value, NULL) / 100;
    else if (strcmp(name, "--layers") == 0)
        b->n_layers = (uint32_t)strtoul(value, NULL, 10);
    else if (strcmp(name, "--warm") == 0)
        b->warm_ms = (uint32_t)strtoul(value, NULL, 10);
    else if (strcmp(name, "--repeat") == 0)
        b->repeat_s = strtod(value, NULL);
    else if (strcmp(name, "--record") == 0)
        b->record = fopen(value, "w");
    else
        return false;
    return true;
}

static bool take_flag(struct bench *b, const char *name)
{
    if (strcmp(name, "--small") == 0)
        b->small = true;
    else if (strcmp(name, "--once") == 0)
        b->once = true;
    else if (strcmp(name, "--no-ceilings") == 0)
        b->no_ceilings = true;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct bench b = {.parts = "",
                      .models = "",
                      .formats = "",
                      .kv = "",
                      .row_counts = "",
                      .directory = "/tmp",
                      .outliers = -1.0,
                      .n_layers = 32,
                      .repeat_s = 0.3,
                      .warm_ms = 2000};
    const char *choice = NULL;
    uint32_t n_rounds = 3;
    double most_s = 1e6;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--help") == 0)
            return usage(0);
        if (strcmp(argv[i], "--write") == 0 && i + 2 < argc)
            return write_model(&b, argv[i + 1], argv[i + 2]);
        if (take_flag(&b, argv[i]))
            continue;
        if (has_value && strcmp(argv[i], "--ab") == 0)
            choice = argv[i + 1];
        else if (has_value && strcmp(argv[i], "--rounds") == 0)
            n_rounds = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (has_value && strcmp(argv[i], "--most") == 0)
            most_s = strtod(argv[i + 1], NULL);
        else if (!has_value || !take_value(&b, argv[i], argv[i + 1]))
            return usage(2);
        i++;
    }
    if (!knows_parts(b.parts) || b.n_layers < 1 || b.n_layers > 64 || n_rounds < 1)
        return usage(2);
    return choice ? bench_ab(choice, n_rounds, most_s, argc, argv) : run(&b);
}
