#include "clients/cli/shell/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings/near_name.h"

static const struct cli_command *const commands[] = {
    &cmd_serve,
    &cmd_stop,
    &cmd_run,
    &cmd_chat,
    &cmd_tokenize,
    &cmd_register,
    &cmd_load,
    &cmd_scale,
    &cmd_traffic,
    &cmd_update,
    &cmd_policy,
    &cmd_unload,
    &cmd_rm,
    &cmd_ls,
    &cmd_show,
    &cmd_inspect,
    &cmd_plan,
    &cmd_ps,
    &cmd_top,
    &cmd_park,
    &cmd_wake,
    &cmd_drain,
    &cmd_restart,
    &cmd_ops_list,
    &cmd_ops_show,
    &cmd_ops_watch,
    &cmd_ops_cancel,
    &cmd_events,
    &cmd_groups_list,
    &cmd_groups_create,
    &cmd_groups_delete,
    &cmd_devices_list,
    &cmd_devices_release,
    &cmd_status,
    &cmd_doctor,
    &cmd_keys_list,
    &cmd_keys_create,
    &cmd_keys_revoke,
    &cmd_key_new,
    &cmd_bench_engine,
    &cmd_bench_serve,
    &cmd_completion,
    &cmd_man,
    &cmd_version,
};

static const struct option_spec sampling_specs[] = {
    {"max-tokens", 'n', OPTION_U64, CLI_OPTION(max_tokens), "256", "N", "most tokens to generate",
     1, 2147483647},
    {"min-tokens", 0, OPTION_U64, CLI_OPTION(min_tokens), NULL, "N",
     "ignore stop conditions until N tokens were generated", 0, 2147483647},
    {"temperature", 't', OPTION_F64, CLI_OPTION(temperature), NULL, "X",
     "sampling temperature; 0: greedy; default: the version's own, else greedy", 0, 0},
    {"top-p", 0, OPTION_F64, CLI_OPTION(top_p), NULL, "X",
     "keep the most likely tokens up to this total probability, in (0, 1]; 1: off", 0, 0},
    {"top-k", 0, OPTION_U64, CLI_OPTION(top_k), NULL, "N", "keep the N most likely tokens; 0: off",
     0, 2147483647},
    {"min-p", 0, OPTION_F64, CLI_OPTION(min_p), NULL, "X",
     "keep tokens with at least X times the probability of the most likely, in [0, 1]; 0: off", 0,
     0},
    {"typical-p", 0, OPTION_F64, CLI_OPTION(typical_p), NULL, "X",
     "locally typical sampling: probability to keep, in (0, 1]; 1: off", 0, 0},
    {"repetition-penalty", 0, OPTION_F64, CLI_OPTION(repetition_penalty), NULL, "X",
     "divide the logits of tokens seen before, in (0, 10]; 1: off", 0, 0},
    {"presence-penalty", 0, OPTION_F64, CLI_OPTION(presence_penalty), NULL, "X",
     "subtract from the logits of tokens generated before, in [-2, 2]; 0: off", 0, 0},
    {"frequency-penalty", 0, OPTION_F64, CLI_OPTION(frequency_penalty), NULL, "X",
     "subtract per earlier occurrence of a token, in [-2, 2]; 0: off", 0, 0},
    {"seed", 's', OPTION_U64, CLI_OPTION(seed), NULL, "N", "random seed; default: random", 0, 0},
    {"stop", 0, OPTION_STRING, CLI_OPTION(stop), "", "TEXT", "stop at this text", 0, 0},
    {"ignore-eos", 0, OPTION_BOOL, CLI_OPTION(ignore_eos), "false", NULL,
     "continue after an end-of-sequence token", 0, 0},
    {"speculate", 0, OPTION_U64, CLI_OPTION(speculate), NULL, "N",
     "tokens to draft per step, by the version's draft model or by prompt lookup; 0: none; "
     "default: as the model was loaded",
     0, 16},
    {"priority", 0, OPTION_STRING, CLI_OPTION(priority), "", "N",
     "order among waiting requests, -100 (last) to 100 (first); default: 0", 0, 0},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to use; empty: by the model's traffic, else the ready version registered last", 0, 0},
    {"system", 0, OPTION_STRING, CLI_OPTION(system), "", "TEXT", "system message", 0, 0},
    {"template", 0, OPTION_STRING, CLI_OPTION(template_name), "", "NAME",
     "chat template of the model to use; empty: default", 0, 0},
    {"stats", 0, OPTION_BOOL, CLI_OPTION(stats), "false", NULL,
     "print time to first token, tokens/s and resumes to stderr", 0, 0},
    {"timeout", 0, OPTION_MS, CLI_OPTION(timeout_ms), "0", "TIME", "deadline of an answer; 0: none",
     0, 86400000},
};

static const struct option_spec deploy_specs[] = {
    {"replicas", 'n', OPTION_U64, CLI_OPTION(replicas), "1", "N", "number of replicas", 1, 64},
    {"tp", 0, OPTION_U64, CLI_OPTION(tp), "1", "N", "ranks that split every layer: 1, 2, 4 or 8", 1,
     8},
    {"pp", 0, OPTION_U64, CLI_OPTION(pp), "1", "N",
     "stages that divide the layers, of --tp ranks each, on the CPU", 1, 8},
    {"devices", 0, OPTION_STRING, CLI_OPTION(devices), "", "LIST",
     "devices instead of a named group: cuda:0 or cpu:0-1; with cuda:0,1 a replica takes one of "
     "them; empty: use the group",
     0, 0},
};

static const struct option_spec request_id_specs[] = {
    {"request-id", 0, OPTION_STRING, CLI_OPTION(request_id), "", "ID",
     "id of this request; a repeated id changes nothing twice", 0, 0},
};

static const struct option_spec grace_specs[] = {
    {"grace", 0, OPTION_MS, CLI_OPTION(grace_ms), NULL, "TIME",
     "time for running requests to finish; default: the manager's --drain-grace", 0, 86400000},
    {"no-wait", 0, OPTION_BOOL, CLI_OPTION(no_wait), "false", NULL,
     "return as soon as the operation has started", 0, 0},
};

static const struct option_spec common_specs[] = {
    {"state-dir", 0, OPTION_STRING, CLI_OPTION(state_dir), "", "DIR",
     "directory of Sluice's state (~/.local/state/sluice)", 0, 0},
    {"manager", 0, OPTION_STRING, CLI_OPTION(manager), "", "PATH",
     "the manager's socket (STATE/run/manager.sock), or HOST:PORT of a manager that listens with "
     "TLS",
     0, 0},
    {"server", 0, OPTION_STRING, CLI_OPTION(server), CLI_DEFAULT_SERVER, "ADDR:PORT",
     "address of the data plane; without --server: the state directory's server, if it runs", 0, 0},
    {"json", 'j', OPTION_BOOL, CLI_OPTION(json), "false", NULL, "print JSON", 0, 0},
    {"help", 'h', OPTION_BOOL, CLI_OPTION(help), "false", NULL, "print this help", 0, 0},
};

size_t table_n_commands(void)
{
    return CLI_N(commands);
}

const struct cli_command *table_command(size_t i)
{
    return commands[i];
}

/* True if the row's name is "A B"; with second NULL, if the name is "A". */
static bool is_named(const struct cli_command *command, const char *first, const char *second)
{
    size_t n = strlen(first);
    if (strncmp(command->name, first, n) != 0)
        return false;
    if (!second)
        return command->name[n] == '\0';
    return command->name[n] == ' ' && strcmp(command->name + n + 1, second) == 0;
}

static const struct cli_command *find_row(const char *first, const char *second)
{
    for (size_t i = 0; i < CLI_N(commands); i++)
        if (is_named(commands[i], first, second))
            return commands[i];
    return NULL;
}

bool table_is_family(const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i < CLI_N(commands); i++)
        if (strncmp(commands[i]->name, word, n) == 0 && commands[i]->name[n] == ' ')
            return true;
    return false;
}

const struct cli_command *table_find(size_t n_words, char *const words[], size_t *out_n_words)
{
    const struct cli_command *found = NULL;
    *out_n_words = 1;
    if (n_words == 0)
        return NULL;
    if (n_words > 1 && words[1][0] != '-' && (found = find_row(words[0], words[1])) != NULL)
        *out_n_words = 2;
    else if ((found = find_row(words[0], NULL)) == NULL && (n_words == 1 || words[1][0] == '-'))
        found = find_row(words[0], "list");
    return found;
}

const char *table_nearest(const char *family, const char *word, char out[64])
{
    struct near_name near = near_name_of(word);
    size_t n_family = family ? strlen(family) : 0;
    char names[CLI_N(commands)][64];
    for (size_t i = 0; i < CLI_N(commands); i++) {
        const char *name = commands[i]->name, *space = strchr(name, ' ');
        bool member = family && space && (size_t)(space - name) == n_family &&
                      strncmp(name, family, n_family) == 0;
        if (family && !member)
            continue;
        if (family)
            snprintf(names[i], sizeof(names[i]), "%s", space + 1);
        else
            snprintf(names[i], sizeof(names[i]), "%.*s", space ? (int)(space - name) : 63, name);
        near_name_try(&near, names[i]);
    }
    if (near.name)
        snprintf(out, 64, "%s", near.name);
    return near.name ? out : NULL;
}

static size_t add_specs(const struct option_spec *from, size_t n_from, struct option_spec *out,
                        size_t n)
{
    for (size_t i = 0; i < n_from && n < CLI_MAX_SPECS; i++)
        out[n++] = from[i];
    return n;
}

size_t table_specs(const struct cli_command *command, struct option_spec out[CLI_MAX_SPECS])
{
    size_t n = add_specs(command->specs, command->n_specs, out, 0);
    if (command->groups & CLI_SAMPLING)
        n = add_specs(sampling_specs, CLI_N(sampling_specs), out, n);
    if (command->groups & CLI_DEPLOY)
        n = add_specs(deploy_specs, CLI_N(deploy_specs), out, n);
    if (command->groups & CLI_DEPLOY)
        n += load_settings_specs(LOAD_CLI, CLI_OPTION(load), out + n, CLI_MAX_SPECS - n);
    else if (command->groups & CLI_SIZES)
        n += load_settings_specs(LOAD_CLI_INSPECT, CLI_OPTION(load), out + n, CLI_MAX_SPECS - n);
    else if (command->groups & CLI_ARITHMETIC)
        n += load_settings_specs(LOAD_CLI_BENCH, CLI_OPTION(load), out + n, CLI_MAX_SPECS - n);
    if (command->groups & CLI_GRACE)
        n = add_specs(grace_specs, CLI_N(grace_specs), out, n);
    if (command->groups & CLI_REQUEST_ID)
        n = add_specs(request_id_specs, CLI_N(request_id_specs), out, n);
    if (command->groups & (CLI_DIAL | CLI_MANAGE)) {
        size_t n_dial;
        const struct option_spec *dial = cli_dial_specs(&n_dial);
        n = add_specs(dial, n_dial, out, n);
    }
    return add_specs(common_specs, CLI_N(common_specs), out, n);
}

/* Skips blanks to the next word of a synopsis. Returns the word's length. */
static size_t next_word(const char **at)
{
    *at += strspn(*at, " ");
    return strcspn(*at, " ");
}

void table_word_counts(const struct cli_command *command, size_t *out_min, size_t *out_max)
{
    const char *at = command->arguments;
    *out_min = *out_max = 0;
    for (size_t n; (n = next_word(&at)) > 0; at += n) {
        *out_min += at[0] != '[';
        *out_max += memmem(at, n, "...", 3) ? CLI_MAX_WORDS : 1;
    }
    if (*out_max > CLI_MAX_WORDS)
        *out_max = CLI_MAX_WORDS;
}

const char *table_word_kind(const struct cli_command *command, size_t index, char out[64])
{
    const char *at = command->arguments, *found = NULL;
    size_t n;
    for (size_t i = 0; (n = next_word(&at)) > 0 && i <= index; at += n, i++)
        found = i == index || memmem(at, n, "...", 3) ? at : NULL;
    out[0] = '\0';
    if (found) {
        found += found[0] == '[';
        snprintf(out, 64, "%.*s", (int)strcspn(found, " ]."), found);
    }
    return out;
}

/* --- manuals --- */

static const struct manual_exit common_exits[] = {
    {0, "done"}, {1, "failed; stderr says why and what to do"}, {2, "wrong usage"}};

static const struct manual_example overview_examples[] = {
    {"sluice serve ./SmolLM2-135M-Instruct.Q4_1.gguf",
     "start manager and server, and load this model"},
    {"sluice run smollm2-135m-instruct.q4_1 \"Why is the sky blue?\"", NULL},
    {"sluice chat smollm2-135m-instruct.q4_1", NULL},
    {"sluice ps --json", NULL},
};

void table_manual(const struct cli_command *command, struct table_manual *out)
{
    *out = (struct table_manual){.manual = {.section = 1}};
    struct manual *m = &out->manual;
    snprintf(out->program, sizeof(out->program), "sluice %s", command->name);
    snprintf(out->page, sizeof(out->page), "sluice-%s", command->name);
    for (char *p = out->page; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    snprintf(out->synopsis, sizeof(out->synopsis), "%s%s[options]", command->arguments,
             command->arguments[0] ? " " : "");
    m->program = out->program;
    m->page = out->page;
    m->synopsis = out->synopsis;
    m->summary = command->summary;
    m->description = command->description;
    m->items_title = command->items_title;
    m->items = command->items;
    m->n_items = command->n_items;
    m->specs = out->specs;
    m->n_specs = table_specs(command, out->specs);
    m->examples = command->examples;
    m->n_examples = command->n_examples;
    memcpy(out->exits, common_exits, sizeof(common_exits));
    m->exits = out->exits;
    m->n_exits = CLI_N(common_exits);
    for (size_t i = 0; i < command->n_exits && m->n_exits < CLI_N(out->exits); i++)
        out->exits[m->n_exits++] = command->exits[i];
    snprintf(out->see_also, sizeof(out->see_also), "sluice(1)%s%s", command->see_also ? ", " : "",
             command->see_also ? command->see_also : "");
    m->see_also = out->see_also;
}

void table_overview(struct table_manual *out)
{
    *out = (struct table_manual){.manual = {.section = 1}};
    struct manual *m = &out->manual;
    m->program = m->page = "sluice";
    m->synopsis = "COMMAND [options] [arguments]";
    m->summary = "serve language models";
    m->description = "`sluice COMMAND --help` explains a command and shows examples. `sluice man "
                     "COMMAND` renders its man page. `sluice completion bash` completes commands, "
                     "options and models. Commands with --version also take MODEL as NAME:VERSION.";
    out->items = calloc(CLI_N(commands), sizeof(*out->items));
    for (size_t i = 0; out->items && i < CLI_N(commands); i++)
        out->items[m->n_items++] = (struct manual_item){commands[i]->name, commands[i]->summary};
    m->items_title = "commands";
    m->items = out->items;
    m->exits = common_exits;
    m->n_exits = CLI_N(common_exits);
    m->examples = overview_examples;
    m->n_examples = CLI_N(overview_examples);
    m->see_also = "sluice-server(8), sluice-manager(8), sluice-worker(8)";
}

void table_manual_fini(struct table_manual *manual)
{
    free(manual->items);
    manual->items = NULL;
}
