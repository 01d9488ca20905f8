/* cli.h: what every command of `sluice` shares: settings, connections, the table of commands. One
 * thread, except in cmd_serve.c. Exit codes: 0 done, 1 failed, 2 wrong usage. Results go to stdout,
 * progress and errors to stderr. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "base/options.h"
#include "clients/cli/dial.h"

struct rpc_client;

struct cli_settings {
    /* every command */
    const char *state_dir, *manager, *server;
    bool json, help;
    /* register, load, unload, serve, run */
    const char *name, *version, *device_group, *request_id, *kv_dtype, *kernels;
    uint64_t replicas, tp, threads, context_length, kv_tokens, grace_ms, timeout_ms;
    bool validate_only, no_wait, verify, all;
    /* serve */
    const char *listen, *model_root, *log_level;
    /* run */
    const char *system, *stop;
    uint64_t max_tokens, seed, top_k;
    double temperature, top_p;
    bool raw, stats, has_seed;
    /* what talks to the data plane: dial.h */
    struct cli_dial dial;
    /* serve: who may use what it serves; handed to the server */
    const char *tls_cert, *tls_key, *tls_client_ca, *tls_client_auth, *keys_file;
    /* key */
    const char *expires;
};

struct cli {
    struct cli_settings settings;
    struct options *options;
    const struct cli_command *command;
    char state_dir[1024];                /* resolved */
    char manager_target[1200];           /* "unix:…" */
    struct rpc_client *manager, *server; /* opened on first use */
    _Atomic bool ending;                 /* serve stops: nothing that is away now comes back */
};

struct cli_command {
    const char *name;
    const char *arguments; /* "MODEL [VERSION]" */
    const char *summary;   /* one line */
    const char *details;   /* paragraphs and examples for --help */
    const struct option_spec *specs;
    size_t n_specs;
    size_t min_words, max_words;
    int (*run)(struct cli *cli);
};

/* In the order of the help. */
const struct cli_command *cli_commands(size_t *out_n);

const char *cli_word(const struct cli *cli, size_t i); /* NULL beyond the end */
/* Whether an option was set, by flag, environment or file. */
bool cli_given(const struct cli *cli, const char *name);

/* Connections to the manager (its unix socket) and to the server; borrowed from cli. */
int cli_manager(struct cli *cli, struct rpc_client **out_client, struct error *err);
int cli_server(struct cli *cli, struct rpc_client **out_client, struct error *err);

/* One unary call on the manager. *out_response is owned (rpc_message_free). */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             ProtobufCMessage **out_response, struct error *err);

/* What a command that is suggested must be given to mean the same manager and server: " --server
 * ADDR:PORT", " --state-dir DIR"; nothing for what is the default. Returns out. */
enum cli_hint { CLI_HINT_SERVER = 1, CLI_HINT_LISTEN = 2, CLI_HINT_STATE = 4 };
enum { CLI_HINT_BYTES = 2560 };
const char *cli_hint_flags(const struct cli *cli, unsigned hints, char out[CLI_HINT_BYTES]);

/* Prints "sluice COMMAND: text" and what to do next, where it is known. Returns the exit code 1. */
int cli_fail(const struct cli *cli, const struct error *err);

/* Rows that every command's table starts with. */
#define CLI_DEFAULT_SERVER "127.0.0.1:8001"
#define CLI_OPTION(field)  offsetof(struct cli_settings, field)
#define CLI_COMMON_OPTIONS                                                                         \
    {"state-dir",                                                                                  \
     0,                                                                                            \
     OPTION_STRING,                                                                                \
     CLI_OPTION(state_dir),                                                                        \
     "",                                                                                           \
     "DIR",                                                                                        \
     "where Sluice keeps its state (~/.local/state/sluice)",                                       \
     0,                                                                                            \
     0},                                                                                           \
        {"manager",                                                                                \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(manager),                                                                      \
         "",                                                                                       \
         "PATH",                                                                                   \
         "the manager's socket (STATE/run/manager.sock)",                                          \
         0,                                                                                        \
         0},                                                                                       \
        {"server",                                                                                 \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(server),                                                                       \
         CLI_DEFAULT_SERVER,                                                                       \
         "ADDR:PORT",                                                                              \
         "the data plane",                                                                         \
         0,                                                                                        \
         0},                                                                                       \
        {"json", 'j', OPTION_BOOL, CLI_OPTION(json), "false", NULL, "print JSON", 0, 0},           \
    {                                                                                              \
        "help", 'h', OPTION_BOOL, CLI_OPTION(help), "false", NULL, "this text", 0, 0               \
    }

/* The commands' tables and functions. */
extern const struct cli_command cmd_serve, cmd_stop, cmd_run, cmd_register, cmd_load, cmd_unload,
    cmd_rm, cmd_ls, cmd_ps, cmd_show, cmd_status, cmd_version, cmd_key;
