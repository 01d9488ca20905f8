#include "clients/cli/inspect/plan_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "clients/cli/term/output.h"

#define N_OF(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Formats a number per second: "2.4 T", "680 T", "95.3". Returns out. */
static const char *format_rate(double value, char out[32])
{
    static const char units[] = " KMGTP";
    size_t i = 0;
    for (; value >= 10000 && units[i + 1]; i++)
        value /= 1000;
    snprintf(out, 32, "%.*f%s%.1s",
             value < 9.95   ? 2
             : value < 99.5 ? 1
                            : 0,
             value, i ? " " : "", i ? &units[i] : "");
    return out;
}

/* --- choice --- */

/* The split with the most tokens per second of those that fit; NULL: none fits. */
static const Sluice__V1__SplitPlan *fastest(const Sluice__V1__GroupPlan *group, bool supported)
{
    const Sluice__V1__SplitPlan *best = NULL;
    for (size_t i = 0; i < group->n_splits; i++) {
        const Sluice__V1__SplitPlan *split = group->splits[i];
        if (split->refusal[0] || !split->fits || !split->prediction)
            continue;
        if (supported ? split->recommended
                      : !best || split->prediction->tokens_per_second >
                                     1.01 * best->prediction->tokens_per_second)
            best = split;
    }
    return best;
}

bool plan_text_has_split(const Sluice__V1__GroupPlan *group)
{
    return fastest(group, true) != NULL;
}

/* --- lines --- */

static void print_figures(const Sluice__V1__GroupPlan *group)
{
    char memory[32], reads[32], computes[32], link[32];
    printf("group %s: ", group->group);
    if (group->n_machines > 1)
        printf("%" PRIu32 " machines with ", group->n_machines);
    if (strcmp(group->kind, "cpu") == 0)
        printf("%" PRIu32 " core%s, %s of memory", group->n_devices,
               group->n_devices == 1 ? "" : "s", format_bytes(group->memory_bytes, memory));
    else
        printf("%" PRIu32 " %s, %s each", group->n_devices, group->kind,
               format_bytes(group->memory_bytes, memory));
    printf("\n  assumed for each: reads %sB/s, computes %sop/s, link %sB/s, %g us a sum\n",
           format_rate(group->read_bytes_per_second, reads),
           format_rate(group->operations_per_second, computes),
           format_rate(group->link_bytes_per_second, link), group->latency_us);
}

static const char *note_of(const Sluice__V1__SplitPlan *split, char out[64])
{
    char missing[32];
    out[0] = '\0';
    if (!split->fits)
        snprintf(out, 64, "lacks %s", format_bytes(split->missing_bytes, missing));
    else if (split->recommended)
        snprintf(out, 64, "recommended");
    else if (split->not_supported[0])
        snprintf(out, 64, "not supported");
    return out;
}

/* The largest bytes of a rank. */
static uint64_t most_bytes(const Sluice__V1__SplitPlan *split, bool wire)
{
    uint64_t most = 0;
    for (size_t i = 0; i < split->n_ranks; i++) {
        const Sluice__V1__DevicePlan *rank = split->ranks[i];
        uint64_t n = wire ? rank->wire_token_bytes : rank->weight_bytes;
        most = n > most ? n : most;
    }
    return most;
}

static void add_split(struct output_table *table, const Sluice__V1__SplitPlan *split)
{
    char tp[16], pp[16], replicas[16], weights[32], tokens[32], at_once[16], alone[32], all[32],
        prompt[32], wire[32], note[64];
    const Sluice__V1__Prediction *p = split->prediction;
    snprintf(tp, sizeof(tp), "%" PRIu32, split->tp);
    snprintf(pp, sizeof(pp), "%" PRIu32, split->pp);
    snprintf(replicas, sizeof(replicas), "%" PRIu32, split->n_replicas);
    snprintf(tokens, sizeof(tokens), "%" PRIu64, split->n_kv_tokens);
    snprintf(at_once, sizeof(at_once), "%" PRIu32, p->n_requests);
    const char *cells[] = {tp,
                           pp,
                           replicas,
                           format_bytes(most_bytes(split, false), weights),
                           split->fits ? tokens : "-",
                           split->fits ? at_once : "-",
                           split->fits ? format_rate(p->tokens_per_second_alone, alone) : "-",
                           split->fits ? format_rate(p->tokens_per_second, all) : "-",
                           split->fits ? format_rate(p->prompt_tokens_per_second, prompt) : "-",
                           format_bytes(most_bytes(split, true), wire),
                           note_of(split, note)};
    output_table_add(table, cells);
}

static void print_splits(const Sluice__V1__GroupPlan *group)
{
    static const char *const headers[] = {"TP",           "PP",         "REPLICAS",  "WEIGHTS/RANK",
                                          "KV TOKENS",    "REQUESTS",   "ONE TOK/S", "ALL TOK/S",
                                          "PROMPT TOK/S", "WIRE/TOKEN", "NOTE"};
    struct output_table table;
    output_table_init(&table, N_OF(headers), headers);
    for (size_t i = 0; i < group->n_splits; i++)
        if (!group->splits[i]->refusal[0] && group->splits[i]->prediction)
            add_split(&table, group->splits[i]);
    if (table.n_rows)
        output_table_print(&table);
    output_table_fini(&table);
}

static void print_refusals(const Sluice__V1__GroupPlan *group)
{
    for (size_t i = 0; i < group->n_splits; i++) {
        const Sluice__V1__SplitPlan *split = group->splits[i];
        if (split->refusal[0])
            printf("tp %" PRIu32 " x pp %" PRIu32 " is impossible: %s\n", split->tp, split->pp,
                   split->refusal);
    }
}

static void print_ranks(const Sluice__V1__SplitPlan *split)
{
    char sizes[5][32];
    printf("ranks of tp %" PRIu32 " x pp %" PRIu32 ":\n", split->tp, split->pp);
    for (size_t i = 0; i < split->n_ranks; i++) {
        const Sluice__V1__DevicePlan *r = split->ranks[i];
        printf("  rank %" PRIu32 ", stage %" PRIu32 ", layers %" PRIu32 "-%" PRIu32
               ": weights %s + KV %s + workspace %s",
               r->rank, r->stage, r->first_layer, r->first_layer + r->n_layers - 1,
               format_bytes(r->weight_bytes, sizes[0]), format_bytes(r->kv_bytes, sizes[1]),
               format_bytes(r->workspace_bytes, sizes[2]));
        if (r->state_bytes)
            printf(" + states %s", format_bytes(r->state_bytes, sizes[3]));
        printf(", sends %s a token\n", format_bytes(r->wire_token_bytes, sizes[4]));
    }
    if (split->kv_copies > 1)
        printf("  each K and V head is held by %" PRIu32 " ranks, as there are fewer heads than "
               "ranks\n",
               split->kv_copies);
    if (split->prediction->wire_share > 0)
        printf(
            "  a single request: %.0f %% of a step exchanges sums and rows; prompts: stages wait "
            "%.0f %% of the time\n",
            100 * split->prediction->wire_share, 100 * split->prediction->bubble);
}

/* The last line: what to do. */
static void print_choice(const Sluice__V1__GroupPlan *group)
{
    const Sluice__V1__SplitPlan *best = fastest(group, true), *later = fastest(group, false);
    if (later && (!best || later->prediction->tokens_per_second >
                               1.01 * best->prediction->tokens_per_second))
        printf("fastest by prediction: tp %" PRIu32 " x pp %" PRIu32
               ", but this version refuses to load it: %s\n",
               later->tp, later->pp, later->not_supported);
    if (best)
        printf("recommended: --tp %" PRIu32 " --pp %" PRIu32 "%s\n", best->tp, best->pp,
               best->n_replicas > 1 ? ", with the other devices for further replicas" : "");
    else if (!later)
        puts("no split fits; use more devices, a smaller format, or a lower --context-length");
    else
        puts("no split that fits can be loaded by this version");
}

void plan_text_print(const Sluice__V1__GroupPlan *group)
{
    const Sluice__V1__SplitPlan *shown = fastest(group, true);
    shown = shown ? shown : fastest(group, false);
    print_figures(group);
    print_splits(group);
    print_refusals(group);
    if (shown)
        print_ranks(shown);
    print_choice(group);
}
