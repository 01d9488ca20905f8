/* dial.h: connections to the data plane: address, TLS, API key. Commands that connect to the data
 * plane are in the group CLI_DIAL and use cli_server (cli.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/settings/options.h"

struct cli;
struct error;
struct http_target;
struct rpc_client;

struct cli_dial {
    bool tls, allow_plaintext_keys;
    const char *tls_ca, *tls_client_cert, *tls_client_key, *server_name;
    const char *api_key, *api_key_file;
};

/* Creates a client for the address `server`. `option` ("server") is the name of the address in
 * errors. `dial` NULL: no TLS and no key. The caller owns *out_client. INVALID_ARGUMENT for an
 * unusable address, file or key, and for a key that would cross a network in plain text. */
int cli_dial_open(const char *option, const char *server, const struct cli_dial *dial,
                  struct rpc_client **out_client, struct error *err);

/* Does the same for the URL of an OpenAI server, with the TLS settings and the key of `dial`.
 * *out_target is owned. Blocks while the host's name is resolved. */
int cli_dial_http(const char *option, const char *url, const struct cli_dial *dial,
                  struct http_target **out_target, struct error *err);

/* Checks that --server was not given beside the URL's option. */
int cli_dial_check_url(const struct cli *cli, const char *option, struct error *err);

/* Writes the address at which a client on this machine reaches the listen address. A wildcard
 * becomes the loopback address. Empty for port 0, which the kernel chooses. */
void cli_dial_address(const char *listen, char *out, size_t n_out);

/* Overwrites the value of --api-key in the program's arguments, which `ps` shows to others. */
void cli_dial_hide_key(int argc, char *argv[]);

/* True if --manager is an address, not the path of a socket. */
bool cli_dial_is_port(const char *manager);

/* Returns the option rows for struct cli_dial. */
const struct option_spec *cli_dial_specs(size_t *out_n);
