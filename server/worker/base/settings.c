#include "server/worker/base/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/manual.h"
#include "base/strbuf.h"
#include "base/system/device_name.h"
#include "proto/config/model_config.h"
#include "server/worker/base/settings_record.h"

enum {
    GROUP_MODEL = 1,
    GROUP_RUN = 2,
    GROUP_SERVE = 4,
    GROUP_GENERATE = 8,
    GROUP_TOOL = 16,
    GROUP_BENCH = 32,
    GROUP_ALL = 64,
    GROUP_SIZE = 128, /* sizes of a server or a plan; a bench chooses its sizes itself */
    GROUP_TEXT = 256,
    GROUP_LOAD = 512, /* a row that stands for the flags of load_settings.c */
    GROUP_RECORD = 1024,
};

enum { FIRST_PACKED_FD = 3 }; /* for --packed-fds */

#define FIELD(name) offsetof(struct settings, name)

struct grouped_spec {
    unsigned groups;
    struct option_spec spec;
};

static const struct grouped_spec table[] = {
    {GROUP_RECORD,
     {"launch-fd", 0, OPTION_U64, FIELD(launch_fd), "0", "N",
      "inherited descriptor of a launch record, a sealed memfd with the settings that a manager "
      "chooses, in place of their flags; 0: none",
      0, 1 << 20}},
    {GROUP_MODEL,
     {"model", 'm', OPTION_STRING, FIELD(model), "", "PATH",
      "model: a GGUF file or a Hugging Face folder", 0, 0}},
    {GROUP_MODEL,
     {"digest", 0, OPTION_STRING, FIELD(digest), "", "HEX",
      "refuse a model file that has another digest", 0, 0}},
    {GROUP_RUN, {"tp", 0, OPTION_U64, FIELD(tp), "1", "N", "ranks that split each layer", 1, 8}},
    {GROUP_RUN,
     {"pp", 0, OPTION_U64, FIELD(pp), "1", "N", "stages that divide the layers, of --tp ranks each",
      1, 8}},
    {GROUP_RUN,
     {"devices", 0, OPTION_STRING, FIELD(devices), "cpu", "LIST",
      "devices, separated by commas: cpu:N is NUMA node N, cpu all nodes; or one GPU, cuda:N", 0,
      0}},
    {GROUP_LOAD, {.name = NULL}},
    {GROUP_RUN,
     {"draft-always", 0, OPTION_BOOL, FIELD(draft_always), "false", NULL,
      "draft even if it does not pay, to measure how often drafts are right", 0, 0}},
    {GROUP_SIZE,
     {"chat-template-file", 0, OPTION_STRING, FIELD(chat_template_file), "", "PATH",
      "chat template instead of the model's", 0, 0}},
    {GROUP_SIZE,
     {"max-template-steps", 0, OPTION_U64, FIELD(max_template_steps), "10000000", "N",
      "steps to render a chat template", 1000, 1ULL << 40}},
    {GROUP_SIZE,
     {"max-template-output-bytes", 0, OPTION_U64, FIELD(max_template_output), "4M", "N",
      "bytes of a rendered chat template", 1024, 1 << 28}},
    {GROUP_SERVE,
     {"socket", 0, OPTION_STRING, FIELD(socket), "", "PATH", "unix socket to serve on (mode 0600)",
      0, 0}},
    {GROUP_SERVE,
     {"exit-report", 0, OPTION_STRING, FIELD(exit_report), "", "PATH",
      "file for the report of how the process ended", 0, 0}},
    {GROUP_SERVE,
     {"replica", 0, OPTION_STRING, FIELD(replica), "", "ID", "name of this replica", 0, 0}},
    {GROUP_SERVE,
     {"epoch", 0, OPTION_U64, FIELD(epoch), "0", "N",
      "number of this start; older starts are refused", 0, UINT64_MAX}},
    {GROUP_SERVE,
     {"name", 0, OPTION_STRING, FIELD(name), "", "NAME", "name of the model for clients", 0, 0}},
    {GROUP_SERVE,
     {"version-id", 0, OPTION_STRING, FIELD(version_id), "", "ID", "version of the model", 0, 0}},
    {GROUP_SERVE,
     {"device-group", 0, OPTION_STRING, FIELD(device_group), "", "NAME", "name of the device group",
      0, 0}},
    {GROUP_SERVE,
     {"metrics", 0, OPTION_STRING, FIELD(metrics), "", "ADDRESS",
      "GET /metrics over HTTP, on unix:PATH or ADDR:PORT; empty: not served", 0, 0}},
    {GROUP_SERVE,
     {"packed-fds", 0, OPTION_U64, FIELD(packed_fds), "0", "N",
      "descriptors 3 to N+2 are memory for shared packed weights, one per rank; on a GPU the last "
      "is a copy of the GPU's weights",
      0, SETTINGS_MAX_PACKED}},
    {GROUP_SERVE,
     {"parked", 0, OPTION_BOOL, FIELD(parked), "false", NULL,
      "hold the memory of --packed-fds and load nothing until a Wake", 0, 0}},
    {GROUP_SERVE,
     {"drain-grace", 0, OPTION_MS, FIELD(drain_grace_ms), "60s", "TIME",
      "time for running requests to finish after SIGTERM", 0, 86400000}},
    {GROUP_SERVE,
     {"request-threads", 0, OPTION_U64, FIELD(request_threads), "2", "N",
      "threads for templates and tokenization", 1, 64}},
    {GROUP_SERVE,
     {"max-message-bytes", 0, OPTION_U64, FIELD(max_message_bytes), "16M", "N",
      "largest message from a server", 65536, 1 << 30}},
    {GROUP_SERVE,
     {"max-frame-bytes", 0, OPTION_U64, FIELD(max_frame_bytes), "64M", "N",
      "memory for the parts of answers in a frame to a server", 4096, 1 << 30}},
    {GROUP_GENERATE,
     {"max-tokens", 'n', OPTION_U64, FIELD(max_tokens), "256", "N", "most tokens to generate", 1,
      1 << 24}},
    {GROUP_GENERATE,
     {"temperature", 0, OPTION_F64, FIELD(temperature), "0", "X", "0: greedy", 0, 0}},
    {GROUP_GENERATE, {"seed", 0, OPTION_U64, FIELD(seed), "0", "N", "random seed", 0, UINT64_MAX}},
    {GROUP_GENERATE,
     {"top-k", 0, OPTION_U64, FIELD(top_k), "0", "N",
      "sample from the N most likely tokens; 0: off", 0, 1 << 24}},
    {GROUP_GENERATE, {"top-p", 0, OPTION_F64, FIELD(top_p), "1", "X", "in (0, 1]; 1: off", 0, 0}},
    {GROUP_GENERATE, {"min-p", 0, OPTION_F64, FIELD(min_p), "0", "X", "in [0, 1]; 0: off", 0, 0}},
    {GROUP_GENERATE,
     {"repetition-penalty", 0, OPTION_F64, FIELD(repetition_penalty), "1", "X", "1: off", 0, 0}},
    {GROUP_GENERATE,
     {"stop", 0, OPTION_STRING, FIELD(stop), NULL, "TEXT", "stop when this text appears", 0, 0}},
    {GROUP_GENERATE,
     {"system", 0, OPTION_STRING, FIELD(system), "", "TEXT", "system message of the chat", 0, 0}},
    {GROUP_GENERATE,
     {"chat", 0, OPTION_BOOL, FIELD(chat), "false", NULL,
      "render the chat template; default if the model has one", 0, 0}},
    {GROUP_GENERATE,
     {"raw", 0, OPTION_BOOL, FIELD(raw), "false", NULL, "continue the prompt as it is", 0, 0}},
    {GROUP_GENERATE,
     {"special", 0, OPTION_BOOL, FIELD(special), "false", NULL,
      "special tokens: parse them in a raw prompt, show them in the answer", 0, 0}},
    {GROUP_GENERATE,
     {"ids", 0, OPTION_BOOL, FIELD(ids), "false", NULL,
      "print token ids, one per line, in place of text", 0, 0}},
    {GROUP_GENERATE,
     {"stats", 0, OPTION_BOOL, FIELD(stats), "false", NULL, "print figures on standard error", 0,
      0}},
    {GROUP_TEXT,
     {"text", 0, OPTION_BOOL, FIELD(text), "false", NULL,
      "print text in place of a protobuf message (default on a terminal)", 0, 0}},
    {GROUP_TOOL,
     {"tensors", 0, OPTION_BOOL, FIELD(tensors), "false", NULL, "inspect: list every tensor", 0,
      0}},
    {GROUP_TOOL,
     {"metadata", 0, OPTION_BOOL, FIELD(metadata), "false", NULL, "inspect: list every key", 0, 0}},
    {GROUP_TOOL,
     {"verify", 0, OPTION_BOOL, FIELD(verify), "false", NULL, "inspect: hash the contents", 0, 0}},
    {GROUP_TOOL,
     {"plan", 0, OPTION_BOOL, FIELD(plan), "false", NULL,
      "inspect: also plan the memory of a load, as the mode plan does", 0, 0}},
    {GROUP_TOOL,
     {"split-groups", 0, OPTION_STRING, FIELD(groups), "", "LIST",
      "plan: divide the model over described groups of devices, like 8xh100 or 4xcpu", 0, 0}},
    {GROUP_TOOL,
     {"split-tp", 0, OPTION_U64, FIELD(group_tp), "0", "N",
      "with --split-groups: only this number of ranks that split each layer; 0: all", 0, 8}},
    {GROUP_TOOL,
     {"split-pp", 0, OPTION_U64, FIELD(group_pp), "0", "N",
      "with --split-groups: only this number of stages; 0: all", 0, 8}},
    {GROUP_TOOL,
     {"split-requests", 0, OPTION_U64, FIELD(group_requests), "32", "N",
      "with --split-groups: requests at once that the prediction assumes", 1, 1 << 16}},
    {GROUP_TOOL,
     {"split-depth", 0, OPTION_U64, FIELD(group_depth), "1024", "N",
      "with --split-groups: context tokens of each request that the prediction assumes", 1,
      1 << 24}},
    {GROUP_TOOL | GROUP_SERVE,
     {"replicas", 0, OPTION_U64, FIELD(replicas), "1", "N",
      "replicas that share the free memory, including this one", 1, 1 << 16}},
    {GROUP_TOOL | GROUP_SERVE,
     {"weights-shared", 0, OPTION_BOOL, FIELD(weights_shared), "false", NULL,
      "the replicas share one copy of the weights", 0, 0}},
    {GROUP_TOOL,
     {"weights-held", 0, OPTION_BOOL, FIELD(weights_held), "false", NULL,
      "plan: the shared copy is in memory already", 0, 0}},
    {GROUP_TOOL | GROUP_SERVE,
     {"memory-limit", 0, OPTION_U64, FIELD(memory_limit), "0", "BYTES",
      "most memory of the machine to use, even if more is free; 0: no limit", 0, UINT64_MAX}},
    {GROUP_TOOL | GROUP_SERVE,
     {"memory-promised", 0, OPTION_U64, FIELD(memory_promised), "0", "BYTES",
      "free memory that is promised to other replicas", 0, UINT64_MAX}},
    {GROUP_TOOL | GROUP_SERVE,
     {"gpu-promised", 0, OPTION_U64, FIELD(gpu_promised), "0", "BYTES",
      "GPU memory of other replicas, used or promised", 0, UINT64_MAX}},
    {GROUP_TOOL | GROUP_SERVE,
     {"gpu-held", 0, OPTION_U64, FIELD(gpu_held), "0", "BYTES",
      "part of --gpu-promised that is used already", 0, UINT64_MAX}},
    {GROUP_BENCH,
     {"threads", 't', OPTION_STRING, FIELD(bench_threads), "0", "LIST",
      "compute threads, separated by commas; 0: one per core, fewer if a cgroup limits the CPU "
      "time",
      0, 0}},
    {GROUP_BENCH,
     {"prompt", 'p', OPTION_STRING, FIELD(bench_prompt), "512", "LIST",
      "prompt tokens for prefill, separated by commas; 0: no prefill", 0, 0}},
    {GROUP_BENCH,
     {"generate", 'n', OPTION_STRING, FIELD(bench_generate), "128", "LIST",
      "tokens per sequence for decode, separated by commas; 0: no decode", 0, 0}},
    {GROUP_BENCH,
     {"batch", 'b', OPTION_STRING, FIELD(bench_batch), "1", "LIST",
      "sequences at once, separated by commas", 0, 0}},
    {GROUP_BENCH,
     {"depth", 'd', OPTION_STRING, FIELD(bench_depth), "0", "LIST",
      "context tokens of each sequence before the timing, separated by commas", 0, 0}},
    {GROUP_BENCH,
     {"repetitions", 'r', OPTION_U64, FIELD(repetitions), "5", "N", "measurements of each row", 1,
      1000}},
    {GROUP_BENCH,
     {"progress", 0, OPTION_BOOL, FIELD(progress), "false", NULL,
      "print progress on standard error", 0, 0}},
    {GROUP_ALL,
     {"no-sandbox", 0, OPTION_BOOL, FIELD(no_sandbox), "false", NULL,
      "run without the system call filter, for a kernel or debugger that cannot work with it", 0,
      0}},
    {GROUP_ALL,
     {"log-level", 0, OPTION_WORD, FIELD(log_level), "info", "debug|info|warn|error",
      "lowest level that is logged", 0, 0}},
    {GROUP_ALL,
     {"log-format", 0, OPTION_WORD, FIELD(log_format), "kv", "kv|json", "format of log lines", 0,
      0}},
    {GROUP_ALL, {"help", 'h', OPTION_BOOL, FIELD(help), "false", NULL, "print this text", 0, 0}},
};

enum { N_TABLE = sizeof(table) / sizeof(table[0]), MAX_SPECS = N_TABLE + LOAD_SETTINGS_MAX };

static const struct mode_info modes[N_MODES] = {
    [MODE_SERVE] = {"serve", "serve --launch-fd N | --socket PATH --model PATH [options]",
                    "load a model and serve it on a unix socket: a replica",
                    GROUP_RECORD | GROUP_MODEL | GROUP_RUN | GROUP_SIZE | GROUP_SERVE | GROUP_ALL},
    [MODE_GENERATE] = {"generate", "generate MODEL \"PROMPT\" [options]",
                       "answer a prompt on standard output",
                       GROUP_MODEL | GROUP_RUN | GROUP_SIZE | GROUP_GENERATE | GROUP_ALL},
    [MODE_INSPECT] = {"inspect", "inspect MODEL [options]", "print the contents of a model file",
                      GROUP_RECORD | GROUP_MODEL | GROUP_RUN | GROUP_SIZE | GROUP_TOOL |
                          GROUP_TEXT | GROUP_ALL},
    [MODE_PLAN] = {"plan", "plan MODEL [options]", "print the memory that a load would need",
                   GROUP_RECORD | GROUP_MODEL | GROUP_RUN | GROUP_SIZE | GROUP_TOOL | GROUP_TEXT |
                       GROUP_ALL},
    [MODE_PROBE] = {"probe", "probe [options]", "print the machine's devices",
                    GROUP_TOOL | GROUP_TEXT | GROUP_ALL},
    [MODE_BENCH] = {"bench", "bench MODEL [options]",
                    "measure tokens per second of prefill and decode",
                    GROUP_MODEL | GROUP_RUN | GROUP_BENCH | GROUP_TEXT | GROUP_ALL},
    [MODE_QUANTIZE] = {"quantize", "quantize", "not supported: answers UNIMPLEMENTED", GROUP_ALL},
};

const struct mode_info *settings_mode_info(enum settings_mode mode)
{
    return mode < N_MODES ? &modes[mode] : NULL;
}

enum settings_mode settings_find_mode(const char *word)
{
    int i = 0;
    while (i < N_MODES && strcmp(word, modes[i].name) != 0)
        i++;
    return (enum settings_mode)i;
}

/* The flags of a load that a mode takes, as a bit of enum load_user; 0: none. */
static unsigned load_user(enum settings_mode mode)
{
    unsigned groups = modes[mode].groups;
    return groups & GROUP_SIZE ? LOAD_WORKER : groups & GROUP_RUN ? LOAD_WORKER_BENCH : 0;
}

/* Collects the flags of a mode. */
static size_t mode_specs(enum settings_mode mode, struct option_spec out[MAX_SPECS])
{
    size_t n = 0;
    for (size_t i = 0; i < N_TABLE; i++) {
        if (table[i].groups == GROUP_LOAD && load_user(mode))
            n += load_settings_specs(load_user(mode), FIELD(load), out + n, LOAD_SETTINGS_MAX);
        else if (table[i].groups & modes[mode].groups)
            out[n++] = table[i].spec;
    }
    return n;
}

static int take_positionals(enum settings_mode mode, const struct options *options,
                            struct settings *s, struct error *err)
{
    size_t n = options_n_positionals(options);
    size_t n_max = mode == MODE_GENERATE ? 2 : (modes[mode].groups & GROUP_MODEL) ? 1 : 0;
    if (mode == MODE_QUANTIZE)
        return 0;
    if (s->launch)
        n_max = 0;
    if (n > n_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "\"%s\": unexpected argument; usage: "
                         "sluice-worker %s",
                         options_positional(options, n_max), modes[mode].usage);
    if (n > 0)
        s->model = options_positional(options, 0);
    if (n > 1)
        s->prompt = options_positional(options, 1);
    if (s->help || !(modes[mode].groups & GROUP_MODEL))
        return 0;
    if (!s->model[0])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--model: no model given; usage: "
                         "sluice-worker %s",
                         modes[mode].usage);
    if (mode == MODE_GENERATE && !s->prompt)
        return error_set(err, STATUS_INVALID_ARGUMENT, "no prompt given; usage: sluice-worker %s",
                         modes[mode].usage);
    if (mode == MODE_SERVE && !s->socket[0])
        return error_set(err, STATUS_INVALID_ARGUMENT, "--socket: no path given");
    /* On a GPU the last descriptor is the image of the device's weights. Descriptors for layers
     * on the CPU come before. */
    bool on_gpu = device_name_is_gpu(s->devices);
    uint64_t n_ranks = s->tp * s->pp;
    if (mode == MODE_SERVE && s->packed_fds &&
        (on_gpu ? s->packed_fds < n_ranks : s->packed_fds != n_ranks))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--packed-fds: %llu descriptors for %llu ranks",
                         (unsigned long long)s->packed_fds, (unsigned long long)n_ranks);
    if (mode == MODE_SERVE && s->parked && !s->packed_fds)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--parked: needs --packed-fds");
    if (mode == MODE_GENERATE && s->raw && s->chat)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--raw: not together with --chat");
    if (mode == MODE_GENERATE && s->stop && !s->stop[0])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--stop: the text is empty; leave the flag out for no stop text");
    return 0;
}

/* A flag that says "auto" where its field is absent. */
static int take_auto(const struct load_setting *row, const char *text, bool *out_is_auto,
                     uint64_t *out, struct error *err)
{
    char *end = NULL;
    *out_is_auto = strcmp(text, "auto") == 0;
    if (*out_is_auto)
        return 0;
    *out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || *out > row->max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: \"%s\" is neither auto nor a number from 0 to %llu", row->flag,
                         text, (unsigned long long)row->max);
    return 0;
}

/* Fills s->config, the message that RPCs use too, from the flags of a load. */
static int take_load(enum settings_mode mode, struct settings *s, struct error *err)
{
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        union load_value value = s->load[i];
        bool is_auto = false;
        if (!(row->users & load_user(mode)))
            continue;
        if ((row->traits & LOAD_ZERO) &&
            take_auto(row, s->load[i].text, &is_auto, &value.number, err) != 0)
            return err->status;
        if (!is_auto)
            model_config_set(&s->config, i, &value);
    }
    return 0;
}

/* Takes `record`; NULL: --launch-fd may name one. */
static int parse(enum settings_mode mode, int argc, char *const argv[], launch_record *record,
                 struct settings *out_settings, struct options **out_options, struct error *err)
{
    /* options.c keeps a pointer to this table; a process parses one table. */
    static struct option_spec specs[MAX_SPECS];
    struct settings s = {.launch = record,
                         .model = "",
                         .digest = "",
                         .socket = "",
                         .groups = "",
                         .config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT};
    struct options *options = NULL;
    size_t n = mode_specs(mode, specs);
    for (int i = 0; i < SETTINGS_MAX_PACKED; i++)
        s.packed_fd[i] = FIRST_PACKED_FD + i;
    int rc = options_parse("worker", specs, n, argc, argv, &s, &options, err);
    if (!rc && !s.launch && s.launch_fd && !s.help &&
        launch_record_read((int)s.launch_fd, &s.launch, err) != 0)
        rc = error_prefix(err, "--launch-fd");
    if (!rc && s.launch)
        rc = settings_record_lay(s.launch, specs, n, options, &s, err);
    if (!rc)
        rc = take_positionals(mode, options, &s, err);
    if (!rc)
        rc = take_load(mode, &s, err);
    if (!rc && s.launch)
        rc = settings_record_lay_config(s.launch, specs, n, options, &s, err);
    if (rc) {
        settings_free(&s, options);
        return rc;
    }
    *out_settings = s;
    *out_options = options;
    return 0;
}

int settings_parse(enum settings_mode mode, int argc, char *const argv[],
                   struct settings *out_settings, struct options **out_options, struct error *err)
{
    return parse(mode, argc, argv, NULL, out_settings, out_options, err);
}

int settings_parse_record(const launch_record *record, struct settings *out_settings,
                          struct options **out_options, struct error *err)
{
    static char mode[] = "serve";
    char *const argv[] = {mode, NULL};
    launch_record *copy = launch_record_copy(record);
    if (!copy)
        return error_no_memory(err);
    return parse(MODE_SERVE, 1, argv, copy, out_settings, out_options, err);
}

void settings_free(struct settings *settings, struct options *options)
{
    launch_record_free(settings->launch);
    settings->launch = NULL;
    options_destroy(options);
}

static void render(const struct manual *manual, bool roff, struct strbuf *out)
{
    if (roff)
        manual_roff(manual, SLUICE_DATE, out);
    else
        manual_help(manual, out);
}

void settings_manual(enum settings_mode mode, bool roff, struct strbuf *out)
{
    struct option_spec specs[MAX_SPECS];
    char program[48], page[48];
    const char *synopsis = modes[mode].usage + strlen(modes[mode].name);
    snprintf(program, sizeof(program), "sluice-worker %s", modes[mode].name);
    snprintf(page, sizeof(page), "sluice-worker-%s", modes[mode].name);
    struct manual manual = {
        .program = program,
        .page = page,
        .section = 8,
        .synopsis = synopsis + (synopsis[0] == ' '),
        .summary = modes[mode].what,
        .specs = specs,
        .n_specs = mode_specs(mode, specs),
        .see_also = "sluice-worker(8)",
    };
    render(&manual, roff, out);
}

void settings_overview(bool roff, struct strbuf *out)
{
    static const struct manual_example examples[] = {
        {"sluice-worker generate SmolLM2-135M-Instruct.Q4_1.gguf \"Why is the sky blue?\" --stats",
         NULL},
        {"sluice-worker inspect model.gguf --text --metadata", NULL},
        {"sluice-worker bench model.gguf --text --threads 1,2 --batch 1,8", NULL},
    };
    struct manual_item items[N_MODES];
    for (int i = 0; i < N_MODES; i++)
        items[i] = (struct manual_item){modes[i].name, modes[i].what};
    struct manual manual = {
        .program = "sluice-worker",
        .page = "sluice-worker",
        .section = 8,
        .synopsis = "MODE [options]",
        .summary = "serves a model on a device group",
        .description = "`sluice-worker MODE --help` prints a mode's options, `sluice-worker --man "
                       "MODE` its man page.",
        .items_title = "modes",
        .items = items,
        .n_items = N_MODES,
        .examples = examples,
        .n_examples = sizeof(examples) / sizeof(examples[0]),
        .see_also = "sluice(1), sluice-manager(8)",
    };
    render(&manual, roff, out);
}

static int kv_dtype(const char *name, enum dtype *out, struct error *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"bf16", DTYPE_BF16},
                 {"f16", DTYPE_F16},
                 {"int8", DTYPE_I8},
                 {"f32", DTYPE_F32},
                 {"fp8", DTYPE_F8_E4M3}};
    if (!name || !name[0])
        name = "bf16";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return 0;
        }
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--kv-dtype: \"%s\" is not bf16, f16, int8, f32 or fp8", name);
}

static int weight_store(const char *name, enum weight_store *out, struct error *err)
{
    if (!name || !name[0])
        *out = WEIGHT_STORE_SOURCE;
    else if (strcmp(name, "int8") == 0)
        *out = WEIGHT_STORE_INT8;
    else if (strcmp(name, "fp8") == 0)
        *out = WEIGHT_STORE_F8;
    else
        return error_set(err, STATUS_INVALID_ARGUMENT, "--weight-format: \"%s\" is not int8 or fp8",
                         name);
    return 0;
}

static int prompt_arithmetic(const char *name, enum prompt_arithmetic *out, struct error *err)
{
    if (!name || !name[0])
        *out = PROMPT_ARITHMETIC_DEFAULT;
    else if (strcmp(name, "exact") == 0)
        *out = PROMPT_ARITHMETIC_EXACT;
    else if (strcmp(name, "f16") == 0)
        *out = PROMPT_ARITHMETIC_F16;
    else
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--prompt-arithmetic: \"%s\" is not exact or f16", name);
    return 0;
}

/* Applies the GPU's options; on the CPU they are refused. */
static int gpu_options(const struct settings *s, struct executor_config *cfg, struct error *err)
{
    const Sluice__Manager__V1__ModelConfig *config = &s->config;
    int rc = weight_store(config->weight_format, &cfg->store, err);
    if (!rc)
        rc = prompt_arithmetic(config->prompt_arithmetic, &cfg->prompt_arithmetic, err);
    if (rc)
        return rc;
    if (device_name_is_gpu(s->devices)) {
        cfg->device = s->devices;
        cfg->gpu_layers = config->gpu_layers ? config->gpu_layers : EXECUTOR_GPU_LAYERS_AUTO;
        cfg->gpu_memory_bytes = config->gpu_memory_bytes;
        cfg->gpu_promised_bytes = s->gpu_promised;
        cfg->gpu_held_bytes = s->gpu_held;
        cfg->mix_roles = config->has_deterministic && !config->deterministic;
        return 0;
    }
    const struct load_setting *row = model_config_gpu_row(config);
    bool of_word = row && row->kind == LOAD_WORD && row->gpu_value[0];
    if (row)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s%s%s: only on a GPU (--devices cuda:0)",
                         row->flag, of_word ? ": " : "", of_word ? row->gpu_value : "");
    return 0;
}

int settings_engine_config(const struct settings *s, struct engine_config *out_config,
                           struct error *err)
{
    const Sluice__Manager__V1__ModelConfig *config = &s->config;
    struct engine_config cfg;
    engine_config_init(&cfg);
    if (config->kv_tokens && config->kv_bytes)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--kv-bytes: not together with --kv-tokens");
    int rc = kv_dtype(config->kv_dtype, &cfg.executor.kv_dtype, err);
    if (!rc)
        rc = gpu_options(s, &cfg.executor, err);
    if (rc)
        return rc;
    cfg.model_path = s->model;
    cfg.executor.kernels = config->kernels[0] ? config->kernels : "auto";
    cfg.executor.n_threads = config->n_threads;
    cfg.executor.tp = s->tp ? (uint32_t)s->tp : 1;
    cfg.executor.pp = s->pp ? (uint32_t)s->pp : 1;
    cfg.executor.kv_tokens = config->kv_tokens;
    cfg.executor.max_context_tokens = config->context_length;
    cfg.executor.state_slots = config->state_slots;
    cfg.executor.snapshot_bytes = config->snapshot_bytes;
    cfg.snapshot_blocks = config->snapshot_blocks;
    if (config->max_concurrent_requests)
        cfg.max_concurrent = config->max_concurrent_requests;
    if (config->max_queued_requests)
        cfg.max_queued = config->max_queued_requests;
    if (config->max_batch_tokens)
        cfg.max_batch_tokens = config->max_batch_tokens;
    if (config->prefill_chunk_tokens)
        cfg.prefill_chunk_tokens = config->prefill_chunk_tokens;
    cfg.max_input_tokens = config->max_input_tokens;
    cfg.max_total_tokens = config->max_total_tokens;
    cfg.target_itl_ms = config->has_target_itl_ms ? config->target_itl_ms : ENGINE_TARGET_ITL_AUTO;
    cfg.prefix_cache = !config->has_prefix_cache || config->prefix_cache;
    cfg.suppresses_tokens = !settings_ignore_sampling(s);
    cfg.draft_tokens = config->max_draft_tokens;
    cfg.draft_path = config->draft_model[0] ? config->draft_model : NULL;
    cfg.draft_always = s->draft_always;
    *out_config = cfg;
    return 0;
}

bool settings_ignore_sampling(const struct settings *s)
{
    return strcmp(s->config.default_sampling, "none") == 0;
}

struct chat_template_limits settings_template_limits(const struct settings *s)
{
    return (struct chat_template_limits){s->max_template_steps, s->max_template_output};
}
