/* cmd_key.c: `key new`: makes an API key for the data plane or the manager and shows it once. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/access/api_keys.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"

/* True if the time has passed. `text` was checked by api_key_line: UTC, so text order is time
 * order. */
static bool has_expired(const char *text)
{
    char now[32];
    time_t seconds = (time_t)(clock_wall_ns() / NS_PER_S);
    struct tm utc;
    strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    return text[0] && strcmp(text, now) <= 0;
}

static int new_key(const struct cli *cli, const char *tenant, struct error *err)
{
    char key[API_KEY_BYTES];
    struct strbuf line;
    strbuf_init(&line, 0);
    int rc = api_key_create(key, err);
    if (!rc)
        rc = api_key_line(tenant, key, cli->settings.role, cli->settings.expires, &line, err);
    if (rc == STATUS_INVALID_ARGUMENT)
        cli_usage(err);
    if (!rc && cli->settings.json) {
        printf("{\"key\":\"%s\",\"line\":\"%s\"}\n", key, strbuf_str(&line));
    } else if (!rc) {
        fprintf(stderr, "Below are the key, which is shown only now, and a line for a keys file. "
                        "Add the line to --keys-file of the server, or --manage-keys-file for a "
                        "management role; it takes effect within a second:\n");
        printf("%s\n%s\n", key, strbuf_str(&line));
    }
    if (!rc && has_expired(cli->settings.expires))
        fprintf(stderr, "sluice key new: --expires %s has passed already: the key does not work\n",
                cli->settings.expires);
    strbuf_fini(&line);
    explicit_bzero(key, sizeof(key));
    return rc;
}

static int run_key(struct cli *cli)
{
    struct error err;
    return new_key(cli, cli_word(cli, 0), &err) ? cli_fail(cli, &err) : 0;
}

static const struct option_spec key_specs[] = {
    {"role", 0, OPTION_STRING, CLI_OPTION(role), "", "inference|viewer|operator|admin",
     "role of the key: inference (default) for the data plane; the others for the manager", 0, 0},
    {"expires", 0, OPTION_STRING, CLI_OPTION(expires), "", "TIME",
     "expiry in UTC: 2027-01-31T00:00:00Z; empty: never", 0, 0},
};
static const struct manual_example key_examples[] = {
    {"sluice key new acme 2>/dev/null | { read key; read line; umask 077; echo \"$line\" >> keys; "
     "echo \"$key\" > acme.key; }",
     NULL},
    {"sluice key new acme --expires 2027-01-31T00:00:00Z", NULL},
    {"sluice key new deploy --role operator", NULL},
    {"SLUICE_API_KEY=slk_... sluice run smol \"Why is the sky blue?\"", NULL},
};

const struct cli_command cmd_key_new = {
    .name = "key new",
    .arguments = "TENANT",
    .summary = "make an API key for the data plane or the manager",
    .description = "Prints the key (256 random bits), then a line for the file that `sluice serve "
                   "--keys-file` or sluice-server reads. The line has tenant, SHA-256 of the key, "
                   "role and expiry. The file has a line per key and comments that start with '#'. "
                   "Only its owner and group may have access to the file. Requests, request ids "
                   "and the prefix cache belong to the tenant. Keys with the role viewer, operator "
                   "or admin are for sluice-manager --manage-keys-file. `sluice keys create` makes "
                   "a key in the manager's database instead. On the data plane, keys of the roles "
                   "operator and admin open the repository RPCs of KServe alone.",
    .examples = key_examples,
    .n_examples = CLI_N(key_examples),
    .specs = key_specs,
    .n_specs = CLI_N(key_specs),
    .run = run_key,
};
