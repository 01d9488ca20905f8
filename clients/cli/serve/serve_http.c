#include "clients/cli/serve/serve_http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/shell_word.h"
#include "base/text/json_write.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/port_owner.h"
#include "proto/rpc/server/listeners.h"

/* Ports 8001 to 8004 are defaults of Sluice. */
enum { FIRST_PORT = 8005, LAST_PORT = 8099 };

/* True if no other listener of this serve has the port, and no other process listens there. */
static bool is_free(const struct cli_settings *set, const char *address)
{
    const struct rpc_listener listeners[] = {{"--http-listen", address},
                                             {"--listen", set->listen},
                                             {"--metrics", set->metrics},
                                             {"--manager-metrics", set->manager_metrics}};
    struct error ignored;
    unsigned port;
    int err_no;
    for (size_t i = 1; i < CLI_N(listeners); i++) {
        const struct rpc_listener pair[] = {listeners[0], listeners[i]};
        struct error alone; /* a fault of the other address is reported elsewhere */
        if (rpc_listeners_check(&pair[1], 1, &alone) == 0 &&
            rpc_listeners_check(pair, CLI_N(pair), &ignored) != 0)
            return false;
    }
    return !port_owner_probe(address, &port, &err_no) || err_no != EADDRINUSE;
}

bool serve_http_move(const struct cli_settings *set, char out_address[SERVE_HTTP_ADDRESS_BYTES])
{
    if (is_free(set, set->http_listen))
        return false;
    for (unsigned port = FIRST_PORT; port <= LAST_PORT; port++) {
        snprintf(out_address, SERVE_HTTP_ADDRESS_BYTES, "127.0.0.1:%u", port);
        if (is_free(set, out_address))
            return true;
    }
    return false;
}

/* Copies the first TCP address, else the first unix socket; empty without HTTP. */
static void first_address(const struct cli_settings *set, char out[RPC_ADDRESS_BYTES])
{
    struct rpc_addresses http;
    struct error ignored;
    out[0] = '\0';
    if (rpc_listeners_split("--http-listen", set->http_listen, &http, &ignored) != 0)
        return;
    for (size_t i = 0; i < http.n; i++) {
        bool is_unix = strncmp(http.list[i], "unix:", 5) == 0;
        if (!out[0] || !is_unix)
            snprintf(out, RPC_ADDRESS_BYTES, "%s", http.list[i]);
        if (!is_unix)
            return;
    }
}

void serve_http_url(const struct cli_settings *set, char *out_url, size_t n_out)
{
    char address[RPC_ADDRESS_BYTES], dialled[RPC_ADDRESS_BYTES] = "";
    first_address(set, address);
    if (address[0] && strncmp(address, "unix:", 5) != 0)
        cli_dial_address(address, dialled, sizeof(dialled));
    const char *scheme = set->tls_cert[0] ? "https://" : "http://";
    snprintf(out_url, n_out, "%s%s", dialled[0] ? scheme : "", dialled);
}

void serve_http_curl(const struct cli_settings *set, const char *model, bool chats,
                     char out[SERVE_HTTP_CURL_BYTES])
{
    static const char question[] = "Why is the sky blue?";
    char address[RPC_ADDRESS_BYTES], url[RPC_ADDRESS_BYTES + 16];
    bool cert = set->tls_client_ca[0] && strcmp(set->tls_client_auth, "optional") != 0;
    struct strbuf text, body;
    first_address(set, address);
    serve_http_url(set, url, sizeof(url));
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    out[0] = '\0';
    if (!url[0] && !is_unix)
        return;
    strbuf_init(&text, SERVE_HTTP_CURL_BYTES - 1);
    strbuf_init(&body, 0);
    strbuf_add_str(&text, "curl ");
    if (is_unix) {
        strbuf_add_str(&text, "--unix-socket ");
        shell_word_add(&text, address + 5);
        strbuf_add_char(&text, ' ');
    }
    strbuf_printf(&text, "%s/v1/%s -H 'Content-Type: application/json'",
                  is_unix ? "http://localhost" : url, chats ? "chat/completions" : "completions");
    if (!is_unix && set->tls_cert[0])
        strbuf_printf(&text, " --cacert FILE%s", cert ? " --cert FILE --key FILE" : "");
    if (set->keys_file[0] && !cert)
        strbuf_add_str(&text, " -H \"Authorization: Bearer $SLUICE_API_KEY\"");
    strbuf_add_str(&body, "{\"model\":");
    json_write_text(&body, model, strlen(model));
    strbuf_printf(&body,
                  chats ? ",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}"
                        : ",\"prompt\":\"%s\"}",
                  question);
    strbuf_add_str(&text, " -d ");
    shell_word_add(&text, strbuf_str(&body));
    if (!strbuf_failed(&text))
        snprintf(out, SERVE_HTTP_CURL_BYTES, "%s", strbuf_str(&text));
    strbuf_fini(&text);
    strbuf_fini(&body);
}
