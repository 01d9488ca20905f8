/* main.c: entry point of `sluice`, the command line. The table of commands gives dispatch and help.
 * Each command has its own file (cmd_*.c). */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/complete.h"
#include "clients/cli/shell/sampling.h"
#include "clients/cli/shell/table.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/client/client.h"

static void print_manual(struct table_manual *manual, FILE *out)
{
    struct strbuf text;
    strbuf_init(&text, 0);
    manual_help(&manual->manual, &text);
    fputs(strbuf_str(&text), out);
    strbuf_fini(&text);
    table_manual_fini(manual);
}

static void print_overview(FILE *out)
{
    struct table_manual manual;
    table_overview(&manual);
    print_manual(&manual, out);
}

static void print_help(const struct cli_command *command)
{
    struct table_manual manual;
    table_manual(command, &manual);
    print_manual(&manual, stdout);
}

/* Prints a usage error. Parsed settings are missing here, so the raw arguments decide about JSON.
 */
static void usage_error(const struct cli_command *command, int argc, char *argv[],
                        const struct error *err)
{
    bool json = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        json |= strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0;
    if (json)
        output_json_error(err);
    else
        fprintf(stderr, "sluice %s: %s\n", command->name, err->message);
}

/* Turns a failed write to stdout into a failed command. Returns the exit status. */
static int check_output(const char *command, int rc)
{
    struct error err;
    if (output_flush("all", &err) == 0)
        return rc;
    if (err.reason == REASON_STDOUT_CLOSED) { /* end by SIGPIPE, as shells expect */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (!rc) /* a failed command has printed its error already */
        fprintf(stderr, "sluice %s: %s\n", command, err.message);
    return rc ? rc : 1;
}

/* Checks the number of arguments against the synopsis. */
static int check_words(const struct cli_command *command, size_t n_words, struct error *err)
{
    size_t min, max;
    table_word_counts(command, &min, &max);
    if (n_words >= min && n_words <= max)
        return 0;
    bool loose = n_words > max && strstr(command->arguments, "PROMPT");
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%susage: sluice %s %s%s[options]   (see sluice %s --help)",
              loose ? "put the prompt in quotes; " : "", command->name, command->arguments,
              command->arguments[0] ? " " : "", command->name);
    return cli_usage(err);
}

static int run_command(const struct cli_command *command, int argc, char *argv[])
{
    struct option_spec specs[CLI_MAX_SPECS];
    struct cli cli = {.command = command,
                      .argc = argc,
                      .argv = argv,
                      .specs = specs,
                      .n_specs = table_specs(command, specs)};
    struct error err;
    if (options_parse("cli", specs, cli.n_specs, argc, argv, &cli.settings, &cli.options, &err) !=
        0) {
        cli_usage(&err);
        usage_error(command, argc, argv, &err);
        return 2;
    }
    cli_dial_hide_key(argc, argv);
    int rc = 2;
    cli_resolve_paths(&cli);
    if (cli.settings.help) {
        print_help(command);
        rc = 0;
    } else if (check_words(command, options_n_positionals(cli.options), &err) != 0) {
        if (cli.settings.json)
            output_json_error(&err);
        else
            fprintf(stderr, "%s\n", err.message);
    } else if (cli_split_version(&cli, &err) != 0 ||
               ((command->groups & CLI_SAMPLING) && sampling_check(&cli, &err) != 0)) {
        cli_usage(&err);
        rc = cli_fail(&cli, &err);
    } else {
        rc = command->run(&cli);
    }
    rpc_client_destroy(cli.manager);
    rpc_client_destroy(cli.server);
    options_destroy(cli.options);
    return rc;
}

static void print_family(const char *word, FILE *out)
{
    size_t n = strlen(word);
    for (size_t i = 0; i < table_n_commands(); i++) {
        const struct cli_command *command = table_command(i);
        if (strncmp(command->name, word, n) == 0 && command->name[n] == ' ')
            fprintf(out, "  sluice %s %s\n      %s\n", command->name, command->arguments,
                    command->summary);
    }
}

/* Handles "ops --help" and "help ops": prints the help of all commands of the family. */
static bool asks_for_family(int argc, char *argv[])
{
    bool help = strcmp(argv[1], "help") == 0;
    const char *word = help ? argv[2] : argv[1];
    if (argc != 3 || !table_is_family(word) ||
        (!help && strcmp(argv[2], "--help") != 0 && strcmp(argv[2], "-h") != 0))
        return false;
    printf("sluice %s: for the help of a command run `sluice %s COMMAND --help`\n\n", word, word);
    print_family(word, stdout);
    return true;
}

/* Reports an unknown command, with the commands of the family if the first word names a family. */
static int no_command(int n_words, char *words[])
{
    char name[64] = "";
    bool family = n_words > 1 && table_is_family(words[0]);
    const char *meant =
        n_words ? table_nearest(family ? words[0] : NULL, words[family ? 1 : 0], name) : NULL;
    if (n_words && table_is_family(words[0])) {
        if (n_words > 1)
            fprintf(stderr, "sluice %s: no command \"%s\"%s%s%s; the commands are:\n", words[0],
                    words[1], meant ? "; is \"" : "", name, meant ? "\" meant?" : "");
        else
            fprintf(stderr, "sluice %s: choose a command:\n", words[0]);
        print_family(words[0], stderr);
    } else {
        fprintf(stderr, "sluice: no command \"%s\"%s%s%s; run `sluice help` for a list\n",
                n_words ? words[0] : "", meant ? "; is \"" : "", name, meant ? "\" meant?" : "");
    }
    return 2;
}

int main(int argc, char *argv[])
{
    static char version[] = "version";
    signal(SIGPIPE, SIG_IGN);
    /* An exceeded file size limit becomes a write error, like a full disk. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_overview(stdout);
        return check_output("help", 0);
    }
    if (strcmp(argv[1], "__complete") == 0)
        return check_output("completion", complete_words((size_t)argc - 2, argv + 2));
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = version;
    if (asks_for_family(argc, argv))
        return check_output("help", 0);
    int first = help ? 2 : 1;
    size_t n_name;
    const struct cli_command *command = table_find((size_t)(argc - first), argv + first, &n_name);
    if (!command)
        return no_command(argc - first, argv + first);
    if (help) {
        print_help(command);
        return check_output("help", 0);
    }
    int skip = (int)n_name;
    return check_output(command->name, run_command(command, argc - skip, argv + skip));
}
