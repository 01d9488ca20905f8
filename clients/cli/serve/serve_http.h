/* serve_http.h: the HTTP address of `sluice serve`. The address moves if its default port is taken,
 * and a command for curl shows its use. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct cli_settings;

enum { SERVE_HTTP_ADDRESS_BYTES = 64, SERVE_HTTP_CURL_BYTES = 1536 };

/* Where the default address cannot be used: the port is another listener's of `set`, or another
 * process has the port. Writes a free address of the loopback, "127.0.0.1:8005". False if the
 * default can be used, or no port is free. */
bool serve_http_move(const struct cli_settings *set, char out_address[SERVE_HTTP_ADDRESS_BYTES]);

/* Writes the URL at which this machine reaches the first address, "http://127.0.0.1:8000". Empty
 * without HTTP, for a unix socket, and for a port that the kernel chooses. */
void serve_http_url(const struct cli_settings *set, char *out_url, size_t n_out);

/* Writes a command that asks the model by curl. `chats`: the model has a chat template. Empty
 * without HTTP. */
void serve_http_curl(const struct cli_settings *set, const char *model, bool chats,
                     char out[SERVE_HTTP_CURL_BYTES]);
