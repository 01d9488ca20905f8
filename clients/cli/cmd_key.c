/* key: API keys of the data plane. `new` draws one and shows it once. */
#include <stdio.h>
#include <string.h>

#include "base/api_keys.h"
#include "base/strbuf.h"
#include "clients/cli/cli.h"

static int new_key(const struct cli *cli, const char *tenant, struct error *err)
{
    char key[API_KEY_BYTES];
    struct strbuf line;
    strbuf_init(&line, 0);
    int rc = api_key_create(key, err);
    if (!rc)
        rc = api_key_line(tenant, key, cli->settings.expires, &line, err);
    if (!rc && cli->settings.json) {
        printf("{\"key\":\"%s\",\"line\":\"%s\"}\n", key, strbuf_str(&line));
    } else if (!rc) {
        printf("%s\n", key);
        fprintf(stderr,
                "This is the key; nobody can show it again. Its line for the server's --keys-file, "
                "which it reads within a second:\n");
        printf("%s\n", strbuf_str(&line));
    }
    strbuf_fini(&line);
    explicit_bzero(key, sizeof(key));
    return rc;
}

static int run_key(struct cli *cli)
{
    struct error err;
    const char *verb = cli_word(cli, 0);
    int rc = strcmp(verb, "new") == 0
                 ? new_key(cli, cli_word(cli, 1), &err)
                 : error_set(&err, STATUS_INVALID_ARGUMENT, "\"%s\": want new", verb);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec key_specs[] = {
    {"expires", 0, OPTION_STRING, CLI_OPTION(expires), "", "TIME",
     "when it ends, in UTC: 2027-01-31T00:00:00Z; empty: never", 0, 0},
    CLI_COMMON_OPTIONS,
};

const struct cli_command cmd_key = {
    "key",
    "new TENANT ",
    "make an API key for the data plane",
    "Prints the key (256 random bits), then the line for the file that `sluice serve --keys-file` "
    "or sluice-server\nreads: tenant, SHA-256 of the key, expiry. The file has one such line per "
    "key, '#' starts a comment, and others\nthan its owner and group may not read it. Requests, "
    "their ids and the prefix cache belong to the tenant.\n\n"
    "examples:\n  sluice key new acme 2>/dev/null | { read key; read line; umask 077; echo "
    "\"$line\" >> keys; echo \"$key\" > acme.key; }\n"
    "  sluice key new acme --expires 2027-01-31T00:00:00Z\n"
    "  SLUICE_API_KEY=slk_… sluice run smol \"Why is the sky blue?\"\n",
    key_specs,
    sizeof(key_specs) / sizeof(key_specs[0]),
    2,
    2,
    run_key};
