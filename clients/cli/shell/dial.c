#include "clients/cli/shell/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/access/api_keys.h"
#include "base/error.h"
#include "clients/cli/http/http_target.h"
#include "clients/cli/shell/cli.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/server/listen.h"

enum { MAX_MESSAGE_BYTES = 64 << 20 };

/* Requires a port, because gRPC would use 443 as default. "unix:PATH" and gRPC's "dns:///…" pass.
 */
static int check_server(const char *option, const char *target, struct error *err)
{
    const char *colon = strrchr(target, ':');
    const char *port = colon ? colon + 1 : "";
    size_t n_digits = strspn(port, "0123456789");
    bool bare_ipv6 = target[0] != '[' && colon && strchr(target, ':') != colon;
    if (strncmp(target, "unix:", 5) == 0 || strncmp(target, "dns:", 4) == 0 ||
        strncmp(target, "ipv4:", 5) == 0 || strncmp(target, "ipv6:", 5) == 0)
        return 0;
    if (colon == target || bare_ipv6 || n_digits == 0 || n_digits > 5 || port[n_digits] ||
        strtoul(port, NULL, 10) < 1 || strtoul(port, NULL, 10) > 65535)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: \"%s\" is no ADDR:PORT; write for example %s", option, target,
                         CLI_DEFAULT_SERVER);
    return 0;
}

/* Returns the part behind the scheme, for example of "dns:///host:port". */
static const char *host_and_port(const char *target)
{
    static const char *const schemes[] = {"dns:", "ipv4:", "ipv6:"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        size_t n = strlen(schemes[i]);
        if (strncmp(target, schemes[i], n) != 0)
            continue;
        const char *slash = strrchr(target, '/');
        return slash ? slash + 1 : target + n;
    }
    return target;
}

/* Reads the first line of the file, without trailing blanks. */
static int read_key(const char *path, char *out_key, size_t n_out, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno, "--api-key-file: cannot open %s", path);
    ssize_t n = read(fd, out_key, n_out - 1);
    int err_no = errno;
    close(fd);
    if (n < 0)
        return error_errno(err, err_no, "--api-key-file: cannot read %s", path);
    out_key[n] = '\0';
    size_t n_key = strcspn(out_key, " \t\r\n");
    bool more = out_key[n_key + strspn(out_key + n_key, " \t\r\n")] != '\0';
    out_key[n_key] = '\0';
    if (n_key == 0 || more || n_key > API_KEY_MAX_BYTES)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--api-key-file: %s must hold one key of at most %d bytes", path,
                         API_KEY_MAX_BYTES);
    return 0;
}

static int refuse_plaintext(const char *option, const char *address, const char *remedy,
                            struct error *err)
{
    error_set(err, STATUS_INVALID_ARGUMENT,
              "--%s %.200s: the API key would cross the network in plain text; give %s, or "
              "--allow-plaintext-keys if something else encrypts the connection",
              option, address, remedy);
    return cli_usage(err);
}

int cli_dial_open(const char *option, const char *server, const struct cli_dial *dial,
                  struct rpc_client **out_client, struct error *err)
{
    static const struct cli_dial plain = {.tls_ca = "",
                                          .tls_client_cert = "",
                                          .tls_client_key = "",
                                          .server_name = "",
                                          .api_key = "",
                                          .api_key_file = ""};
    char key[2 * API_KEY_MAX_BYTES] = "";
    struct rpc_client_config config;
    bool local = strncmp(server, "unix:", 5) == 0;
    if (!dial)
        dial = &plain;
    rpc_client_config_init(&config);
    config.target = server;
    config.max_message_bytes = MAX_MESSAGE_BYTES;
    config.tls = !local && (dial->tls || dial->tls_ca[0]);
    config.tls_ca = dial->tls_ca;
    config.tls_client_cert = dial->tls_client_cert;
    config.tls_client_key = dial->tls_client_key;
    config.server_name = dial->server_name;
    config.api_key = dial->api_key;
    int rc = check_server(option, server, err);
    if (!rc && !config.tls && !local && (dial->tls_client_cert[0] || dial->tls_client_key[0]))
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--tls-client-cert: give --tls-ca FILE or --tls too");
    if (rc)
        return cli_usage(err);
    if (!dial->api_key[0] && dial->api_key_file[0]) {
        rc = read_key(dial->api_key_file, key, sizeof(key), err);
        config.api_key = key;
    }
    if (!rc && config.api_key[0] && !config.tls && !local && !dial->allow_plaintext_keys &&
        !rpc_listen_is_loopback(host_and_port(server)))
        rc = refuse_plaintext(option, server, "--tls-ca FILE or --tls", err);
    if (!rc)
        rc = rpc_client_create(&config, out_client, err);
    explicit_bzero(key, sizeof(key));
    return rc;
}

/* Checks the settings of TLS against the URL's scheme. */
static int check_scheme(const char *option, const struct http_url *url, const struct cli_dial *dial,
                        struct error *err)
{
    if (dial->tls_client_cert[0] && !dial->tls_client_key[0])
        return error_set(err, STATUS_INVALID_ARGUMENT, "--tls-client-cert: give --tls-client-key");
    if (url->is_tls ||
        !(dial->tls || dial->tls_ca[0] || dial->tls_client_cert[0] || dial->tls_client_key[0]))
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--%s: the options of TLS need a URL that begins with https://", option);
}

int cli_dial_check_url(const struct cli *cli, const char *option, struct error *err)
{
    for (size_t i = 0; i < cli->n_specs; i++)
        if (strcmp(cli->specs[i].name, "server") == 0 &&
            strcmp(options_origin(cli->options, i), "flag") == 0) {
            error_set(err, STATUS_INVALID_ARGUMENT, "--server: leave it out with --%s", option);
            return cli_usage(err);
        }
    return 0;
}

int cli_dial_http(const char *option, const char *url, const struct cli_dial *dial,
                  struct http_target **out_target, struct error *err)
{
    char key[2 * API_KEY_MAX_BYTES] = "";
    struct http_target_config config = {.ca = dial->tls_ca,
                                        .client_cert = dial->tls_client_cert,
                                        .client_key = dial->tls_client_key,
                                        .server_name = dial->server_name,
                                        .key = dial->api_key};
    int rc = http_url_parse(url, &config.url, err);
    if (rc)
        error_prefix(err, "--%s", option);
    if (!rc)
        rc = check_scheme(option, &config.url, dial, err);
    if (rc)
        return cli_usage(err);
    if (!dial->api_key[0] && dial->api_key_file[0]) {
        rc = read_key(dial->api_key_file, key, sizeof(key), err);
        config.key = key;
    }
    if (!rc && config.key[0] && !config.url.is_tls && !dial->allow_plaintext_keys &&
        !http_url_is_local(&config.url))
        rc = refuse_plaintext(option, url, "a URL that begins with https://", err);
    if (!rc)
        rc = http_target_create(&config, out_target, err);
    explicit_bzero(key, sizeof(key));
    return rc;
}

void cli_dial_address(const char *listen, char *out, size_t n_out)
{
    const char *colon = strrchr(listen, ':');
    size_t n_host = colon ? (size_t)(colon - listen) : 0;
    bool any4 = n_host == 7 && strncmp(listen, "0.0.0.0", 7) == 0;
    bool any6 = n_host == 4 && strncmp(listen, "[::]", 4) == 0;
    if (!colon || strtoul(colon + 1, NULL, 10) == 0)
        out[0] = '\0';
    else if (any4 || any6)
        snprintf(out, n_out, "%s%s", any4 ? "127.0.0.1" : "[::1]", colon);
    else
        snprintf(out, n_out, "%s", listen);
}

void cli_dial_hide_key(int argc, char *argv[])
{
    static const char flag[] = "--api-key";
    size_t n = sizeof(flag) - 1;
    for (int i = 1; i < argc && argv[i]; i++) {
        char *value = NULL;
        if (strncmp(argv[i], flag, n) == 0 && argv[i][n] == '=')
            value = argv[i] + n + 1;
        else if (strcmp(argv[i], flag) == 0 && i + 1 < argc)
            value = argv[i + 1];
        if (value)
            memset(value, 'x', strlen(value));
    }
}

bool cli_dial_is_port(const char *manager)
{
    const char *colon = strrchr(manager, ':');
    return strncmp(manager, "unix:", 5) != 0 && !strchr(manager, '/') && colon && colon[1] &&
           colon[1 + strspn(colon + 1, "0123456789")] == '\0';
}

const struct option_spec *cli_dial_specs(size_t *out_n)
{
    static const struct option_spec specs[] = {
        {"tls", 0, OPTION_BOOL, CLI_OPTION(dial.tls), "false", NULL,
         "use TLS and trust the CAs of this system", 0, 0},
        {"tls-ca", 0, OPTION_STRING, CLI_OPTION(dial.tls_ca), "", "FILE",
         "use TLS and trust this CA (PEM)", 0, 0},
        {"tls-client-cert", 0, OPTION_STRING, CLI_OPTION(dial.tls_client_cert), "", "FILE",
         "client certificate (PEM)", 0, 0},
        {"tls-client-key", 0, OPTION_STRING, CLI_OPTION(dial.tls_client_key), "", "FILE",
         "private key of the client certificate (PEM)", 0, 0},
        {"server-name", 0, OPTION_STRING, CLI_OPTION(dial.server_name), "", "NAME",
         "name to expect in the server's certificate; empty: host of the address", 0, 0},
        {"api-key-file", 0, OPTION_STRING, CLI_OPTION(dial.api_key_file), "", "FILE",
         "file that holds the API key", 0, 0},
        {"api-key", 0, OPTION_STRING, CLI_OPTION(dial.api_key), "", "KEY",
         "API key; safer: SLUICE_API_KEY or --api-key-file", 0, 0},
        {"allow-plaintext-keys", 0, OPTION_BOOL, CLI_OPTION(dial.allow_plaintext_keys), "false",
         NULL, "send the API key to another machine without TLS", 0, 0},
    };
    *out_n = sizeof(specs) / sizeof(specs[0]);
    return specs;
}
