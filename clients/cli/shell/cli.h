/* cli.h: shared parts of all `sluice` commands: settings, connections, rows of the command table.
 * Single-threaded, except in serve/ and cmd_chat.c. Exit codes: 0 done, 1 failed, 2 wrong
 * usage. Results go to stdout, progress and errors to stderr. */
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
    union load_value load[LOAD_SETTINGS_MAX]; /* indexed like the rows of load_settings.c */
    const char *register_draft; /* --draft of `register`: draft model of the version */
    uint64_t replicas, tp, pp, grace_ms, timeout_ms;
    bool validate_only, no_wait, verify, all, evict;
    /* plan; also tp, pp and requests */
    const char *groups;
    uint64_t depth_tokens;
    /* serve */
    const char *listen, *model_root, *log_level;
    const char *http_listen, *http_origins;
    bool http_strict, http_open_metrics, no_http;
    const char *metrics, *metrics_aliases, *manager_metrics, *log_format;
    const char *lock_file; /* the server's --lock-file */
    /* top */
    bool once;
    uint64_t interval_ms;
    /* run, chat */
    const char *system, *stop, *priority; /* priority: also bench serve */
    const char *template_name;            /* name of the model's chat template, or "" */
    uint64_t speculate;                   /* also bench */
    uint64_t max_tokens, min_tokens, seed, top_k;
    double temperature, top_p, min_p, typical_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    bool raw, stats, ignore_eos, no_history;
    const char *suffix; /* run: the text behind a gap */
    const char *url;    /* an OpenAI server; also --http of bench serve */
    /* tokenize */
    bool chat, pieces, detokenize, special, no_bos;
    /* events, ops */
    const char *type, *replica, *operation;
    uint64_t from;
    bool follow, open, verbose;
    /* man */
    const char *output;
    /* --tls, --api-key and so on: see dial.h */
    struct cli_dial dial;
    /* serve: certificates and keys, passed to the server */
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
    uint64_t repetitions, clients, requests, warmup, duration_ms, shared_prefix, vocab_size;
    bool keep_cache, draft_always;
    const char *draft; /* bench engine */
    double rate, slo_ttft_ms, slo_itl_ms, slo_e2e_ms;
};

enum { CLI_ADVICE_BYTES = 1536 };

struct cli {
    struct cli_settings settings;
    struct options *options;
    const struct cli_command *command;
    int argc; /* the command's arguments, as parsed */
    char *const *argv;
    const struct option_spec *specs; /* all options of the command */
    size_t n_specs;
    char state_dir[1024]; /* resolved, absolute */
    char model[128];      /* MODEL of a MODEL:VERSION argument; "": the argument had no version */
    char manager_target[1200]; /* "unix:…", or "HOST:PORT" */
    char server_target[1200];  /* "" until cli_server_target() has found the server */
    bool fell_back; /* no server runs in state_dir, so server_target is the default address */
    struct rpc_client *manager, *server; /* opened on first use */
    _Atomic bool ending;                 /* serve is stopping: restart no program */
    /* advice that the command has prepared for its error; "": the advice of the error's reason */
    char advice[CLI_ADVICE_BYTES];
};

/* Groups of options that a command adds to its own. The common options always come last. */
enum cli_group {
    CLI_SAMPLING = 1,
    CLI_DEPLOY = 2,
    CLI_REQUEST_ID = 4,
    CLI_GRACE = 8,
    CLI_DIAL = 16,       /* connects to the data plane */
    CLI_MANAGE = 64,     /* connects to the manager only */
    CLI_ARITHMETIC = 32, /* subset of CLI_DEPLOY: kernels, formats, GPU memory */
    CLI_SIZES = 128,     /* subset of CLI_DEPLOY: settings that change the memory of a load */
};

/* A command of `sluice`. This row is the source of help, man page, completion and argument check.
 */
struct cli_command {
    const char *name; /* "run", or two words: "ops list" */
    /* Synopsis: number and kind of the arguments. "MODEL [VERSION]", "[FILE...]", "bash|zsh|fish".
     */
    const char *arguments;
    const char *summary;     /* a single line */
    const char *description; /* struct manual's description, or NULL */
    const struct manual_example *examples;
    size_t n_examples;
    const struct option_spec *specs; /* the command's own options */
    size_t n_specs;
    unsigned groups;         /* enum cli_group */
    const char *items_title; /* title of `items`, further help beside the options; or NULL */
    const struct manual_item *items;
    size_t n_items;
    const struct manual_exit *exits; /* exit codes other than 0, 1 and 2; or NULL */
    size_t n_exits;
    const char *see_also; /* pages beside sluice(1), like "sluice-server(8)"; or NULL */
    int (*run)(struct cli *cli);
};

#define CLI_N(rows) (sizeof(rows) / sizeof((rows)[0]))

const char *cli_word(const struct cli *cli, size_t i); /* NULL beyond the end */
/* Returns the request id for a call that changes state: --request-id, or a new id. A retry after a
 * lost connection then changes nothing twice. Borrowed from `id` or from the settings. */
char *cli_request_id(const struct cli *cli, char id[UUID_BYTES]);
/* Joins the words as "a,b,c". Borrowed from `out`, which is cleared first. */
const char *cli_joined(size_t n, char *const words[], struct strbuf *out);
/* Splits an argument MODEL:VERSION into model name and --version, if the command has that option.
 */
int cli_split_version(struct cli *cli, struct error *err);
/* True if the command speaks to an OpenAI server over HTTP (--url), not to a Sluice over gRPC. */
bool cli_uses_url(const struct cli *cli);
/* True if an option was set by flag, environment or file. */
bool cli_given(const struct cli *cli, const char *name);

/* Return the connection to the manager (unix socket or TLS port) and to the server. Borrowed from
 * cli. */
int cli_manager(struct cli *cli, struct rpc_client **out_client, struct error *err);
int cli_server(struct cli *cli, struct rpc_client **out_client, struct error *err);
/* Returns the server's address as a target of cli_dial_open(). Borrowed from cli. */
int cli_server_target(struct cli *cli, const char **out_target, struct error *err);
/* True if a process listens on the manager's socket. */
bool cli_manager_listens(const struct cli *cli);
/* True if a `sluice serve` process holds the state directory. */
bool cli_is_served(const char *state_dir);
/* Opens another connection to the same server. The caller owns the connection. */
int cli_server_connect(struct cli *cli, struct rpc_client **out_client, struct error *err);

/* Make a unary call to the manager, or to the server's Inference service. The caller owns
 * *out_response (rpc_message_free). */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             ProtobufCMessage **out_response, struct error *err);
int cli_call_server(struct cli *cli, const char *method, const ProtobufCMessage *request,
                    ProtobufCMessage **out_response, struct error *err);

/* Flags that a suggested command needs to reach the same manager and server: " --server ADDR:PORT",
 * " --state-dir DIR". Default values are left out. Returns out. */
enum cli_hint { CLI_HINT_SERVER = 1, CLI_HINT_LISTEN = 2, CLI_HINT_STATE = 4 };
enum { CLI_HINT_BYTES = 2560, CLI_VERSION_BYTES = 128 };
const char *cli_hint_flags(const struct cli *cli, unsigned hints, char out[CLI_HINT_BYTES]);

/* Marks an error with REASON_USAGE: a bad command line, variable or file, found before any call.
 * Returns err->status. */
int cli_usage(struct error *err);
/* In fail_connection.c. Puts a plain sentence in place of gRPC core's text of a failed connection,
 * and sets the reason. Leaves other errors as they are. */
void cli_explain_connection(const struct cli *cli, struct error *err);
/* In fail.c. Prints "sluice COMMAND: text" and a known next step. Returns the exit code: 2 for
 * wrong usage, else 1. */
int cli_fail(const struct cli *cli, const struct error *err);

/* Makes a model name from a path: "Models/SmolLM2-135M.Q4_1.gguf" → "smollm2-135m.q4_1". The name
 * is the stem in lower case, without a split model's "-00001-of-00003"; bytes outside a-z 0-9 . _ -
 * become '-'. In a Hub cache, "models--ORG--NAME/snapshots/REVISION" gives "name". At most 63
 * bytes, first a letter or digit; "model" if nothing is left. */
void cli_model_name(const char *path, char out_name[64]);
/* Reads a text setting of another Sluice program from the shared file and environment. `section` is
 * like "manager", `name` like "run-dir". Empty if unset; the other program's command line is not
 * seen. Errors: as options_parse. */
int cli_program_setting(const struct cli *cli, const char *section, const char *name, char *out,
                        size_t n_out, struct error *err);

/* Limit for prompt texts. Texts must be complete UTF-8 without NUL and fit a message. */
enum { CLI_TEXT_MAX_BYTES = 4 << 20 };
/* Reads all of stdin, without one newline at the end. INVALID_ARGUMENT with `what` as subject if
 * stdin is empty, too long or not valid text. */
int cli_read_stdin(const char *what, struct strbuf *out, struct error *err);
/* INVALID_ARGUMENT if the bytes are not UTF-8 or contain NUL. */
int cli_check_text(const char *what, const char *text, size_t n_bytes, struct error *err);

/* INVALID_ARGUMENT if no state directory was given and the environment gives no default. */
int cli_need_state(const struct cli *cli, struct error *err);

/* Writes the default state directory: $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. Negative
 * if neither variable is set or the path does not fit. */
int cli_default_state(char *out, size_t n_out);
/* Writes dir/name, without leading "./" and trailing "/" of name. A path that does not fit is cut.
 */
void cli_join_path(const char *dir, const char *name, char *out, size_t n_out);
/* Makes the directory and its parents, mode 0700. */
int cli_make_dir(const char *path, struct error *err);

/* Resolves the state directory (--state-dir, else the default) and the manager's address
 * (connect.c). */
void cli_resolve_paths(struct cli *cli);

/* Exit code of a run that Ctrl-C or SIGTERM ended early and that printed partial results. */
enum { CLI_EXIT_INTERRUPTED = 130 };

#define CLI_DEFAULT_SERVER "127.0.0.1:8001"
#define CLI_OPTION(field)  offsetof(struct cli_settings, field)

/* The command table's rows. */
extern const struct cli_command cmd_serve, cmd_stop, cmd_run, cmd_chat, cmd_tokenize, cmd_register,
    cmd_load, cmd_scale, cmd_park, cmd_wake, cmd_traffic, cmd_update, cmd_policy, cmd_unload,
    cmd_rm, cmd_ls, cmd_ps, cmd_show, cmd_drain, cmd_restart, cmd_ops_list, cmd_ops_show,
    cmd_ops_watch, cmd_ops_cancel, cmd_events, cmd_groups_list, cmd_groups_create,
    cmd_groups_delete, cmd_devices_list, cmd_devices_release, cmd_status, cmd_key_new,
    cmd_keys_list, cmd_keys_create, cmd_keys_revoke, cmd_bench_engine, cmd_bench_serve,
    cmd_completion, cmd_man, cmd_version, cmd_doctor, cmd_top, cmd_inspect, cmd_plan;
