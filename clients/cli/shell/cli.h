/* cli.h: what every command of `sluice` shares: settings, connections, the table of commands. One
 * thread, except in cmd_serve.c and cmd_chat.c. Exit codes: 0 done, 1 failed, 2 wrong usage.
 * Results go to stdout, progress and errors to stderr. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/settings/load_settings.h"
#include "base/settings/manual.h"
#include "base/settings/options.h"
#include "clients/cli/shell/dial.h"

struct rpc_client;
struct strbuf;

struct cli_settings {
    /* every command */
    const char *state_dir, *manager, *server;
    bool json, help;
    /* register, load, unload, serve, run */
    const char *name, *version, *device_group, *request_id, *devices;
    union load_value load[LOAD_SETTINGS_MAX]; /* by the rows of load_settings.c */
    const char *register_draft;               /* of a version */
    uint64_t replicas, tp, grace_ms, timeout_ms;
    bool validate_only, no_wait, verify, all, evict;
    /* serve */
    const char *listen, *model_root, *log_level;
    const char *metrics, *metrics_aliases, *manager_metrics, *log_format;
    const char *lock_file; /* the server's, by its own settings */
    /* top */
    bool once;
    uint64_t interval_ms;
    /* run, chat */
    const char *system, *stop, *priority; /* the latter of bench serve too */
    uint64_t speculate;                   /* and bench */
    uint64_t max_tokens, min_tokens, seed, top_k;
    double temperature, top_p, min_p, typical_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    bool raw, stats, ignore_eos, no_history;
    /* tokenize */
    bool chat, pieces, detokenize, special, no_bos;
    /* events, ops */
    const char *type, *replica, *operation;
    uint64_t from;
    bool follow, open;
    /* man */
    const char *output;
    /* what talks to the data plane: dial.h */
    struct cli_dial dial;
    /* serve: who may use what it serves; handed to the server */
    const char *tls_cert, *tls_key, *tls_client_ca, *tls_client_auth, *keys_file;
    /* key */
    const char *expires, *role;
    bool sticky, clear;
    /* update, policy */
    const char *to_version, *from_version, *steps;
    uint64_t step_ms, min_answers, max_wait_ms, latest;
    double max_error_rate, max_ttft_ms, max_ttft_ratio, ttft_quantile;
    bool require_answers;
    bool policy_all;
    /* bench: lists and ranges of numbers */
    const char *bench_threads, *bench_prompt, *bench_generate, *bench_batch, *bench_depth;
    const char *prompt_tokens, *bench_max_tokens, *prompts;
    uint64_t repetitions, clients, requests, warmup, duration_ms, shared_prefix;
    bool keep_cache, draft_always;
    const char *draft; /* of bench engine */
    double rate, slo_ttft_ms, slo_itl_ms, slo_e2e_ms;
};

struct cli {
    struct cli_settings settings;
    struct options *options;
    const struct cli_command *command;
    int argc; /* the command's words, as they were parsed */
    char *const *argv;
    const struct option_spec *specs; /* of the command, all of them */
    size_t n_specs;
    char state_dir[1024];                /* resolved, absolute */
    char model[128];                     /* of MODEL:VERSION; empty: the word is the model */
    char manager_target[1200];           /* "unix:…", or "HOST:PORT" */
    char server_target[1200];            /* "" until it was looked for */
    struct rpc_client *manager, *server; /* opened on first use */
    _Atomic bool ending;                 /* serve stops: nothing that is away now comes back */
};

/* Rows that a command's table ends with; those of `every command` always come last. */
enum cli_group {
    CLI_SAMPLING = 1,
    CLI_DEPLOY = 2,
    CLI_REQUEST_ID = 4,
    CLI_GRACE = 8,
    CLI_DIAL = 16,       /* it talks to the data plane */
    CLI_MANAGE = 64,     /* it talks to the manager, and to nobody else */
    CLI_ARITHMETIC = 32, /* of CLI_DEPLOY: what computes, and in which formats */
};

/* One command: help, man page, completion and the check of its words all come from this row. */
struct cli_command {
    const char *name; /* "run", or two words: "ops list" */
    /* "MODEL [VERSION]", "[FILE...]", "bash|zsh|fish": how many words, and of which kind. */
    const char *arguments;
    const char *summary;     /* one line */
    const char *description; /* as struct manual's, or NULL */
    const struct manual_example *examples;
    size_t n_examples;
    const struct option_spec *specs; /* its own */
    size_t n_specs;
    unsigned groups;         /* enum cli_group */
    const char *items_title; /* of what it knows besides options; or NULL */
    const struct manual_item *items;
    size_t n_items;
    const struct manual_exit *exits; /* besides 0, 1 and 2; or NULL */
    size_t n_exits;
    const char *see_also; /* other pages than sluice(1): "sluice-server(8)"; or NULL */
    int (*run)(struct cli *cli);
};

#define CLI_N(rows) (sizeof(rows) / sizeof((rows)[0]))

const char *cli_word(const struct cli *cli, size_t i); /* NULL beyond the end */
/* A request id for a changing call: the one given, or a new one, so that a retry after a lost
 * connection changes nothing twice. Borrowed from `id` or the settings. */
char *cli_request_id(const struct cli *cli, char id[UUID_BYTES]);
/* "a,b,c"; borrowed from `out`, which is cleared first. */
const char *cli_joined(size_t n, char *const words[], struct strbuf *out);
/* "smol:2" in a command's MODEL is the model's name and --version, where it has that option. */
int cli_split_version(struct cli *cli, struct error *err);
/* Whether an option was set, by flag, environment or file. */
bool cli_given(const struct cli *cli, const char *name);

/* Connections to the manager (its unix socket) and to the server; borrowed from cli. */
int cli_manager(struct cli *cli, struct rpc_client **out_client, struct error *err);
int cli_server(struct cli *cli, struct rpc_client **out_client, struct error *err);
/* Where that is: a target of cli_dial_open(), in cli until it ends. */
int cli_server_target(struct cli *cli, const char **out_target, struct error *err);
/* Whether somebody listens on the manager's socket. */
bool cli_manager_listens(const struct cli *cli);
/* A connection of its own to the same server; owned by the caller. */
int cli_server_connect(struct cli *cli, struct rpc_client **out_client, struct error *err);

/* One unary call on the manager, or on the server's Inference. *out_response is owned
 * (rpc_message_free). */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             ProtobufCMessage **out_response, struct error *err);
int cli_call_server(struct cli *cli, const char *method, const ProtobufCMessage *request,
                    ProtobufCMessage **out_response, struct error *err);

/* What a command that is suggested must be given to mean the same manager and server: " --server
 * ADDR:PORT", " --state-dir DIR"; nothing for what is the default. Returns out. */
enum cli_hint { CLI_HINT_SERVER = 1, CLI_HINT_LISTEN = 2, CLI_HINT_STATE = 4 };
enum { CLI_HINT_BYTES = 2560, CLI_VERSION_BYTES = 128 };
const char *cli_hint_flags(const struct cli *cli, unsigned hints, char out[CLI_HINT_BYTES]);

#define CLI_USAGE_REASON "USAGE" /* of an error that cli_usage() marked */
/* Marks an error as wrong usage: what the command line, a variable or the file says cannot be, and
 * nobody was asked. Returns err->status. */
int cli_usage(struct error *err);
/* fail.c: prints "sluice COMMAND: text" and what to do next, where it is known. Returns the exit
 * code: 2 of wrong usage, else 1. */
int cli_fail(const struct cli *cli, const struct error *err);

/* "Models/SmolLM2-135M.Q4_1.gguf" → "smollm2-135m.q4_1": the stem in lower case, every byte outside
 * a-z 0-9 . _ - as '-', at most 63 bytes, starting with a letter or digit ("model" where nothing is
 * left). */
void cli_model_name(const char *path, char out_name[64]);
/* A text setting of another Sluice program, read from the same file and environment: by section
 * ("manager") and name ("run-dir"). Empty where nothing sets it; the other program's command line
 * is unknown here. Errors: as options_parse. */
int cli_program_setting(const struct cli *cli, const char *section, const char *name, char *out,
                        size_t n_out, struct error *err);

/* Text to be sent is complete UTF-8 without NUL and fits a message. */
enum { CLI_TEXT_MAX_BYTES = 4 << 20 };
/* All of stdin, less one newline at its end. INVALID_ARGUMENT, naming `what`, where stdin is empty,
 * too long or no text. */
int cli_read_stdin(const char *what, struct strbuf *out, struct error *err);
/* INVALID_ARGUMENT where the bytes are no text. */
int cli_check_text(const char *what, const char *text, size_t n_bytes, struct error *err);

/* INVALID_ARGUMENT where no state directory was given and the environment names none. */
int cli_need_state(const struct cli *cli, struct error *err);

/* $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. Negative where neither variable is set or the
 * path does not fit. */
int cli_default_state(char *out, size_t n_out);
/* dir/name without "./" in front and "/" at the end of name. The path is cut where it does not fit.
 */
void cli_join_path(const char *dir, const char *name, char *out, size_t n_out);
/* Makes the directory and its parents, mode 0700. */
int cli_make_dir(const char *path, struct error *err);

/* --state-dir, else $XDG_STATE_HOME/sluice, else ~/.local/state/sluice; and the manager's address
 * (connect.c). */
void cli_resolve_paths(struct cli *cli);

/* Exit code of a run that was told to end and printed what there was: as of a Ctrl-C. */
enum { CLI_EXIT_INTERRUPTED = 130 };

#define CLI_DEFAULT_SERVER "127.0.0.1:8001"
#define CLI_OPTION(field)  offsetof(struct cli_settings, field)

/* The commands' rows. */
extern const struct cli_command cmd_serve, cmd_stop, cmd_run, cmd_chat, cmd_tokenize, cmd_register,
    cmd_load, cmd_scale, cmd_park, cmd_wake, cmd_traffic, cmd_update, cmd_policy, cmd_unload,
    cmd_rm, cmd_ls, cmd_ps, cmd_show, cmd_drain, cmd_restart, cmd_ops_list, cmd_ops_show,
    cmd_ops_watch, cmd_ops_cancel, cmd_events, cmd_groups_list, cmd_groups_create,
    cmd_groups_delete, cmd_devices_list, cmd_devices_release, cmd_status, cmd_key_new,
    cmd_keys_list, cmd_keys_create, cmd_keys_revoke, cmd_bench_engine, cmd_bench_serve,
    cmd_completion, cmd_man, cmd_version, cmd_doctor, cmd_top;
