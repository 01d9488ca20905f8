/* cmd_completion.c: `completion` and `man`: completion scripts and man pages, rendered from the
 * table of commands. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/table.h"
#include "clients/cli/term/output.h"

/* Each script asks the installed program for candidates, so the script never gets out of date. Note
 * that bash splits words at '=' and ':'. The bash script joins the parts and offers only the text
 * after the split. */
static const char bash_script[] =
    "_sluice() {\n"
    "    local line cur head\n"
    "    local -a words\n"
    "    read -ra words <<<\"${COMP_LINE:0:COMP_POINT}\"\n"
    "    [[ ${COMP_LINE:COMP_POINT-1:1} == ' ' ]] && words+=('')\n"
    "    cur=${words[-1]}\n"
    "    head=\n"
    "    [[ $cur == *[:=]* ]] && head=${cur%\"${cur##*[:=]}\"}\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :files | :directories)\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            local kind=-f\n"
    "            [[ $line == :directories ]] && kind=-d\n"
    "            while IFS= read -r line; do COMPREPLY+=(\"$line\"); done \\\n"
    "                < <(compgen $kind -- \"${cur#\"$head\"}\")\n"
    "            ;;\n"
    "        *)\n"
    "            line=${line%%$'\\t'*}\n"
    "            COMPREPLY+=(\"${line#\"$head\"}\")\n"
    "            ;;\n"
    "        esac\n"
    "    done < <(\"${words[0]}\" __complete \"${words[@]:1}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _sluice sluice\n";

static const char zsh_script[] =
    "#compdef sluice\n"
    "_sluice() {\n"
    "    local line\n"
    "    local -a found\n"
    "    for line in \"${(@f)$(\"${words[1]}\" __complete \"${(@)words[2,CURRENT]}\" "
    "2>/dev/null)}\"; do\n"
    "        case $line in\n"
    "        '') ;;\n"
    "        :files) _files ;;\n"
    "        :directories) _files -/ ;;\n"
    "        *) found+=(\"${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( $#found )) && _describe -t values sluice found\n"
    "}\n"
    "if [[ $funcstack[1] == _sluice ]]; then _sluice \"$@\"; else compdef _sluice sluice; fi\n";

static const char fish_script[] =
    "function __sluice_complete\n"
    "    set -l words (commandline -opc)\n"
    "    set -l current (commandline -ct)\n"
    "    for line in ($words[1] __complete $words[2..-1] \"$current\" 2>/dev/null)\n"
    "        switch $line\n"
    "            case :files\n"
    "                __fish_complete_path \"$current\"\n"
    "            case :directories\n"
    "                __fish_complete_directories \"$current\"\n"
    "            case '*'\n"
    "                echo $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c sluice -f -a '(__sluice_complete)'\n";

static int run_completion(struct cli *cli)
{
    static const struct {
        const char *shell, *script;
    } scripts[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    struct error err;
    for (size_t i = 0; i < CLI_N(scripts); i++)
        if (strcmp(cli_word(cli, 0), scripts[i].shell) == 0) {
            fputs(scripts[i].script, stdout);
            return 0;
        }
    error_set(&err, STATUS_INVALID_ARGUMENT,
              "\"%s\": there is no completion for this shell; choose %s", cli_word(cli, 0),
              cli->command->arguments);
    cli_usage(&err);
    return cli_fail(cli, &err);
}

/* --- man --- */

static void render(struct table_manual *manual, struct strbuf *out)
{
    manual_roff(&manual->manual, SLUICE_DATE, out);
    table_manual_fini(manual);
}

static int write_page(const char *dir, struct table_manual *manual, struct error *err)
{
    char path[1200];
    struct strbuf text;
    snprintf(path, sizeof(path), "%s/%s.%d", dir, manual->manual.page, manual->manual.section);
    strbuf_init(&text, 0);
    render(manual, &text);
    FILE *file = fopen(path, "we");
    int rc = file ? 0 : error_errno(err, errno, "cannot write %s", path);
    if (!rc && fwrite(text.data, 1, text.n_bytes, file) != text.n_bytes)
        rc = error_errno(err, errno, "cannot write %s", path);
    if (file && fclose(file) != 0 && !rc)
        rc = error_errno(err, errno, "cannot write %s", path);
    strbuf_fini(&text);
    return rc;
}

static int write_pages(const char *dir, struct error *err)
{
    struct table_manual manual;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) /* the umask decides who may read the pages */
        return error_errno(err, errno, "cannot make %s", dir);
    table_overview(&manual);
    int rc = write_page(dir, &manual, err);
    for (size_t i = 0; !rc && i < table_n_commands(); i++) {
        table_manual(table_command(i), &manual);
        rc = write_page(dir, &manual, err);
    }
    return rc;
}

static int print_page(struct cli *cli, struct error *err)
{
    char *words[2] = {(char *)(uintptr_t)cli_word(cli, 0), (char *)(uintptr_t)cli_word(cli, 1)};
    size_t n_words = options_n_positionals(cli->options), n_name;
    struct table_manual manual;
    struct strbuf text;
    const struct cli_command *command = table_find(n_words, words, &n_name);
    if (n_words && (!command || n_name != n_words)) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "no command \"%s%s%s\"; run `sluice help` for a list", words[0],
                  words[1] ? " " : "", words[1] ? words[1] : "");
        return cli_usage(err);
    }
    if (command)
        table_manual(command, &manual);
    else
        table_overview(&manual);
    strbuf_init(&text, 0);
    render(&manual, &text);
    fputs(strbuf_str(&text), stdout);
    strbuf_fini(&text);
    return 0;
}

static int run_man(struct cli *cli)
{
    struct error err;
    const char *dir = cli->settings.output;
    int rc = dir[0] ? write_pages(dir, &err) : print_page(cli, &err);
    return rc ? cli_fail(cli, &err) : 0;
}

static const struct option_spec man_specs[] = {
    {"output", 'o', OPTION_STRING, CLI_OPTION(output), "", "DIR",
     "write all pages to this folder as PAGE.1; creates the folder", 0, 0},
};
static const struct manual_example completion_examples[] = {
    {"source <(sluice completion bash)", "in the current shell"},
    {"sluice completion bash > ~/.local/share/bash-completion/completions/sluice",
     "in every new shell"},
    {"sluice completion zsh > \"${fpath[1]}/_sluice\"", NULL},
    {"sluice completion fish > ~/.config/fish/completions/sluice.fish", NULL},
};
static const struct manual_example man_examples[] = {
    {"sluice man run | man -l -", NULL},
    {"sluice man --output /usr/local/share/man/man1", NULL},
};

const struct cli_command cmd_completion = {
    .name = "completion",
    .arguments = "bash|zsh|fish",
    .summary = "print a shell's completion script",
    .description =
        "Completes commands, options and their values. With a manager or a server that answers, "
        "also names of models, versions, replicas, operations and device groups.",
    .examples = completion_examples,
    .n_examples = CLI_N(completion_examples),
    .run = run_completion,
};
const struct cli_command cmd_man = {
    .name = "man",
    .arguments = "[COMMAND] [SUBCOMMAND]",
    .summary = "print a man page",
    .description = "Prints roff for `man -l -`. Without COMMAND the page of sluice itself. The "
                   "other programs print their own pages: `sluice-server --man`, `sluice-manager "
                   "--man`, `sluice-worker --man`.",
    .see_also = "sluice-server(8), sluice-manager(8), sluice-worker(8)",
    .examples = man_examples,
    .n_examples = CLI_N(man_examples),
    .specs = man_specs,
    .n_specs = CLI_N(man_specs),
    .run = run_man,
};
