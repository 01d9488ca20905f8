/* dial.h: how the CLI reaches the data plane: address, TLS, API key. Every command that talks to it
 * has CLI_DIAL_OPTIONS in its table and gets its client from cli_server (cli.h). */
#pragma once

#include <stdbool.h>

#include "base/options.h"

struct error;
struct rpc_client;

struct cli_dial {
    bool tls, allow_plaintext_keys;
    const char *tls_ca, *tls_client_cert, *tls_client_key, *server_name;
    const char *api_key, *api_key_file;
};

/* `dial` NULL: without TLS and key. *out_client is owned. INVALID_ARGUMENT for an address, file or
 * key that cannot be used, and for a key that would cross a network in plain text. */
int cli_dial_open(const char *server, const struct cli_dial *dial, struct rpc_client **out_client,
                  struct error *err);

/* Overwrites the value of --api-key in the program's arguments, which `ps` shows to others. */
void cli_dial_hide_key(int argc, char *argv[]);

#define CLI_DIAL_OPTIONS                                                                           \
    {"tls",                                                                                        \
     0,                                                                                            \
     OPTION_BOOL,                                                                                  \
     CLI_OPTION(dial.tls),                                                                         \
     "false",                                                                                      \
     NULL,                                                                                         \
     "the data plane speaks TLS, by a CA this system trusts",                                      \
     0,                                                                                            \
     0},                                                                                           \
        {"tls-ca", 0, OPTION_STRING, CLI_OPTION(dial.tls_ca), "", "PEM", "TLS, by this CA", 0, 0}, \
        {"tls-client-cert",                                                                        \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(dial.tls_client_cert),                                                         \
         "",                                                                                       \
         "PEM",                                                                                    \
         "certificate to show it",                                                                 \
         0,                                                                                        \
         0},                                                                                       \
        {"tls-client-key",                                                                         \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(dial.tls_client_key),                                                          \
         "",                                                                                       \
         "PEM",                                                                                    \
         "its private key",                                                                        \
         0,                                                                                        \
         0},                                                                                       \
        {"server-name",                                                                            \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(dial.server_name),                                                             \
         "",                                                                                       \
         "NAME",                                                                                   \
         "that the server's certificate has; empty: the address's",                                \
         0,                                                                                        \
         0},                                                                                       \
        {"api-key-file",                                                                           \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(dial.api_key_file),                                                            \
         "",                                                                                       \
         "PATH",                                                                                   \
         "file with the API key",                                                                  \
         0,                                                                                        \
         0},                                                                                       \
        {"api-key",                                                                                \
         0,                                                                                        \
         OPTION_STRING,                                                                            \
         CLI_OPTION(dial.api_key),                                                                 \
         "",                                                                                       \
         "KEY",                                                                                    \
         "the API key; better in SLUICE_API_KEY or a file",                                        \
         0,                                                                                        \
         0},                                                                                       \
    {                                                                                              \
        "allow-plaintext-keys", 0, OPTION_BOOL, CLI_OPTION(dial.allow_plaintext_keys), "false",    \
            NULL, "send the key beyond this machine without TLS", 0, 0                             \
    }
