/* dial.h: how the CLI reaches the data plane: address, TLS, API key. Every command that talks to it
 * is of the group CLI_DIAL and gets its client from cli_server (cli.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/settings/options.h"

struct error;
struct rpc_client;

struct cli_dial {
    bool tls, allow_plaintext_keys;
    const char *tls_ca, *tls_client_cert, *tls_client_key, *server_name;
    const char *api_key, *api_key_file;
};

/* `option` ("server") names the address in errors. `dial` NULL: without TLS and key. *out_client is
 * owned. INVALID_ARGUMENT for an address, file or key that cannot be used, and for a key that would
 * cross a network in plain text. */
int cli_dial_open(const char *option, const char *server, const struct cli_dial *dial,
                  struct rpc_client **out_client, struct error *err);

/* Where a client on this machine reaches what listens on `listen`: a wildcard is its loopback. A
 * port that the kernel chooses is not known: empty. */
void cli_dial_address(const char *listen, char *out, size_t n_out);

/* What to do about a connection that failed with this message of gRPC's, where it came about and
 * TLS did not, or where it was lost; NULL: nobody answers there. */
const char *cli_dial_advice(const struct cli_dial *dial, const char *message);

/* Overwrites the value of --api-key in the program's arguments, which `ps` shows to others. */
void cli_dial_hide_key(int argc, char *argv[]);

/* Whether what --manager says is an address, and not a socket's path. */
bool cli_dial_is_port(const char *manager);

/* The rows of the options above. */
const struct option_spec *cli_dial_specs(size_t *out_n);
