/* sluice: the command line. The table of commands gives dispatch and help; each command is a file
 * of its own (cmd_*.c). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/output.h"
#include "proto/rpc/rpc_client.h"

static void print_overview(FILE *out)
{
    size_t n;
    const struct cli_command *commands = cli_commands(&n);
    fputs("sluice: serve language models.\n\nusage: sluice COMMAND [options] "
          "[arguments]\n\ncommands:\n",
          out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`sluice COMMAND --help` tells more and shows examples.\n\nexamples:\n"
          "  sluice serve ./SmolLM2-135M-Instruct.Q4_1.gguf\n"
          "  sluice run smollm2-135m-instruct.q4_1 \"Why is the sky blue?\"\n"
          "  sluice ps --json\n",
          out);
}

static void print_help(const struct cli_command *command)
{
    struct strbuf text;
    strbuf_init(&text, 0);
    strbuf_printf(&text, "sluice %s: %s\n\nusage: sluice %s %s[options]\n\n", command->name,
                  command->summary, command->name, command->arguments);
    if (command->details)
        strbuf_printf(&text, "%s\n", command->details);
    strbuf_add_str(&text, "options:\n");
    options_help(command->specs, command->n_specs, &text);
    fputs(strbuf_str(&text), stdout);
    strbuf_fini(&text);
}

static const struct cli_command *find_command(const char *name)
{
    size_t n;
    const struct cli_command *commands = cli_commands(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* --state-dir, else $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. */
static void resolve_paths(struct cli *cli)
{
    const char *given = cli->settings.state_dir;
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (given[0])
        snprintf(cli->state_dir, sizeof(cli->state_dir), "%s", given);
    else if (xdg && xdg[0])
        snprintf(cli->state_dir, sizeof(cli->state_dir), "%s/sluice", xdg);
    else
        snprintf(cli->state_dir, sizeof(cli->state_dir), "%s/.local/state/sluice",
                 home ? home : "");
    if (cli->settings.manager[0])
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s",
                 cli->settings.manager);
    else
        snprintf(cli->manager_target, sizeof(cli->manager_target), "unix:%s/run/manager.sock",
                 cli->state_dir);
}

/* Options that cannot be parsed are not there to say that JSON is wanted: the words are. */
static void usage_error(const struct cli_command *command, int argc, char *argv[],
                        const struct error *err)
{
    bool json = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        json |= strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0;
    if (json)
        print_json_error(err);
    else
        fprintf(stderr, "sluice %s: %s\n", command->name, err->message);
}

/* What was printed has arrived, or the command has failed, however well it did its work. */
static int check_output(const char *command, int rc)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return rc;
    if (!rc) /* else it is told already */
        fprintf(stderr, "sluice %s: cannot write to stdout: %s\n", command,
                errno ? strerror(errno) : "an earlier write failed");
    return rc ? rc : 1;
}

static int run_command(const struct cli_command *command, int argc, char *argv[])
{
    struct cli cli = {.command = command};
    struct error err;
    if (options_parse("cli", command->specs, command->n_specs, argc, argv, &cli.settings,
                      &cli.options, &err) != 0) {
        usage_error(command, argc, argv, &err);
        return 2;
    }
    cli_dial_hide_key(argc, argv);
    int rc = 2;
    size_t n_words = options_n_positionals(cli.options);
    resolve_paths(&cli);
    if (cli.settings.help) {
        print_help(command);
        rc = 0;
    } else if (n_words < command->min_words || n_words > command->max_words) {
        error_set(&err, STATUS_INVALID_ARGUMENT,
                  "usage: sluice %s %s[options]   (sluice %s --help tells more)", command->name,
                  command->arguments, command->name);
        if (cli.settings.json)
            print_json_error(&err);
        else
            fprintf(stderr, "%s\n", err.message);
    } else {
        rc = command->run(&cli);
    }
    rpc_client_destroy(cli.manager);
    rpc_client_destroy(cli.server);
    options_destroy(cli.options);
    return rc;
}

int main(int argc, char *argv[])
{
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 ||
        (strcmp(name, "help") == 0 && argc == 2)) {
        print_overview(stdout);
        return check_output("help", 0);
    }
    if (strcmp(name, "--version") == 0)
        name = "version";
    const struct cli_command *command = find_command(strcmp(name, "help") == 0 ? argv[2] : name);
    if (!command) {
        fprintf(stderr, "sluice: no command \"%s\"; `sluice help` lists them\n",
                strcmp(name, "help") ? name : argv[2]);
        return 2;
    }
    if (strcmp(name, "help") == 0) {
        print_help(command);
        return check_output(name, 0);
    }
    return check_output(command->name, run_command(command, argc - 1, argv + 1));
}
