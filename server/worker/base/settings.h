/* settings.h: the settings of sluice-worker in all its modes: one struct, one table of flags for
 * each mode. A manager sets them by a launch record in place of flags. Single-threaded, at start.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/settings/load_settings.h"
#include "base/settings/options.h"
#include "engine/engine.h"
#include "proto/launch/launch_record.h"
#include "sluice/manager/v1/types.pb-c.h"

struct error;
struct place;

enum { SETTINGS_MAX_PACKED = 32 }; /* descriptors of packed weights */

struct settings {
    /* The launch record that the settings come from; NULL: they come from flags. Owned. */
    launch_record *launch;
    uint64_t launch_fd; /* its descriptor, which stays open so that others can read it; 0: none */
    /* the model and its execution */
    const char *model, *digest, *devices, *chat_template_file;
    /* A load's settings, from the flags of load_settings.c or the launch record; the texts are
     * borrowed. */
    Sluice__Manager__V1__ModelConfig config;
    union load_value load[LOAD_SETTINGS_MAX]; /* values of the flags, from which config is made */
    bool no_sandbox;
    struct place *place; /* placement of threads and memory, once it is chosen; or NULL */
    uint64_t tp, pp, memory_promised, memory_limit, gpu_promised, gpu_held;
    uint64_t max_template_steps, max_template_output;
    /* serve */
    const char *socket, *exit_report, *replica, *name, *version_id, *device_group;
    const char *metrics;
    uint64_t epoch, drain_grace_ms, request_threads, max_message_bytes, max_frame_bytes;
    uint64_t packed_fds;                /* number of descriptors */
    int packed_fd[SETTINGS_MAX_PACKED]; /* the descriptors */
    bool parked;                        /* only hold the packed weights */
    /* generate */
    const char *prompt, *system;
    uint64_t max_tokens, seed, top_k;
    double temperature, top_p, min_p, repetition_penalty;
    bool raw, chat, special, stats, ids;
    const char *stop;
    bool draft_always; /* also for serve and bench */
    /* inspect, plan */
    bool text, tensors, metadata, verify, plan;
    uint64_t replicas;
    bool weights_shared, weights_held;
    const char *groups; /* described groups of devices (device_spec.h); "": plan for this machine */
    uint64_t group_tp, group_pp, group_requests, group_depth;
    /* bench: lists of numbers */
    const char *bench_threads, *bench_prompt, *bench_generate, *bench_batch, *bench_depth;
    uint64_t repetitions;
    bool progress;
    const char *log_level, *log_format;
    bool help;
};

enum settings_mode {
    MODE_SERVE,
    MODE_GENERATE,
    MODE_INSPECT,
    MODE_PLAN,
    MODE_PROBE,
    MODE_BENCH,
    MODE_QUANTIZE,
    N_MODES,
};

struct mode_info {
    const char *name;
    const char *usage; /* the text after "sluice-worker " */
    const char *what;
    unsigned groups; /* groups of flags, private to settings.c */
};

/* Returns the row of a mode; NULL outside the enum. */
const struct mode_info *settings_mode_info(enum settings_mode mode);
/* Returns N_MODES if no mode has that name. */
enum settings_mode settings_find_mode(const char *word);

/* Returns the limits for rendering a chat template. */
struct chat_template_limits settings_template_limits(const struct settings *settings);
/* True if the load ignores the default sampling of the model's files. */
bool settings_ignore_sampling(const struct settings *settings);
/* Parses argv[1..] (argv[0] is the mode's name). Positionals: MODEL, then for generate the prompt.
 * With --launch-fd the settings come from the launch record, and the environment and the file give
 * the others. INVALID_ARGUMENT names the flag, or the record's field in err->field. *out_settings
 * and *out_options are owned (settings_free). */
int settings_parse(enum settings_mode mode, int argc, char *const argv[],
                   struct settings *out_settings, struct options **out_options, struct error *err);
/* Does the same for a record (copied) that a Wake brings, without a command line. */
int settings_parse_record(const launch_record *record, struct settings *out_settings,
                          struct options **out_options, struct error *err);
/* Frees the strings of the settings, and the options. NULL is accepted for `options`. */
void settings_free(struct settings *settings, struct options *options);

/* Append the help (roff: the man page) of a mode, and of the program. */
void settings_manual(enum settings_mode mode, bool roff, struct strbuf *out);
void settings_overview(bool roff, struct strbuf *out);

/* Fills the engine's configuration from the settings; strings are borrowed from them.
 * UNIMPLEMENTED and INVALID_ARGUMENT name the flag. kv_size_resolve() converts kv_bytes to
 * tokens. Callers use place_engine_config(), which adds threads and memory nodes. */
int settings_engine_config(const struct settings *settings, struct engine_config *out_config,
                           struct error *err);
