#include "clients/cli/inspect/inspect_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/strbuf.h"
#include "clients/cli/term/output.h"

/* The width of a line's label, and of a list before it is cut. */
enum { LABEL_WIDTH = 14, MOST_LIST_BYTES = 72 };

static void print_label(const char *label)
{
    printf("%-*s", LABEL_WIDTH, label);
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* Formats a count: "596.1 M". Returns out. */
static const char *format_count(uint64_t n, char out[32])
{
    static const char units[] = " KMGT";
    double value = (double)n;
    size_t i = 0;
    for (; value >= 1000 && units[i + 1]; i++)
        value /= 1000;
    if (i)
        snprintf(out, 32, "%.1f %c", value, units[i]);
    else
        snprintf(out, 32, "%" PRIu64, n);
    return out;
}

/* --- layers --- */

/* Appends ascending numbers as ranges: "0-4, 6-10". A long list ends with "...". */
static void add_ranges(const uint32_t *numbers, size_t n, struct strbuf *out)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && numbers[end] == numbers[end - 1] + 1;)
            end++;
        strbuf_add_str(out, i ? ", " : "");
        if (out->n_bytes > MOST_LIST_BYTES) {
            strbuf_add_str(out, "...");
            return;
        }
        strbuf_printf(out, "%" PRIu32, numbers[i]);
        if (end > i + 1)
            strbuf_printf(out, "-%" PRIu32, numbers[end - 1]);
    }
}

static void print_state(const Sluice__V1__LayerKind *kind)
{
    char size[32];
    if (kind->n_state_heads)
        printf(", %" PRIu32 " state heads (%" PRIu32 " key) of %" PRIu32 " x %" PRIu32,
               kind->n_state_heads, kind->n_state_key_heads, kind->state_key_dim,
               kind->state_value_dim);
    if (kind->state_bytes)
        printf(", convolution of %" PRIu32 ", state %s", kind->conv_width,
               format_bytes(kind->state_bytes, size));
}

static void print_attention(const Sluice__V1__LayerKind *kind)
{
    printf(" %s", kind->reach);
    if (kind->reach_tokens)
        printf(" %" PRIu32, kind->reach_tokens);
    printf(", %" PRIu32 " heads (%" PRIu32 " KV) of %" PRIu32, kind->n_heads, kind->n_kv_heads,
           kind->key_dim);
    if (kind->value_dim != kind->key_dim)
        printf(" (values of %" PRIu32 ")", kind->value_dim);
    if (kind->has_rope)
        printf(", rope %" PRIu32, kind->rope);
    else
        printf(", no rope");
}

static void print_mixer(const Sluice__V1__LayerKind *kind)
{
    if (strcmp(kind->mixer, "none") == 0) {
        printf("no attention");
        return;
    }
    printf("%s", kind->mixer);
    if (kind->n_heads)
        print_attention(kind);
    print_state(kind);
}

static void print_ffn(const Sluice__V1__LayerKind *kind)
{
    if (strcmp(kind->ffn, "experts") == 0)
        printf("; FFN of experts, %s, %s", kind->ffn_form, kind->activation);
    else if (strcmp(kind->ffn, "dense") == 0)
        printf("; FFN %s, %s, %" PRIu32, kind->ffn_form, kind->activation, kind->ffn_dim);
    else
        printf("; no FFN");
}

static void print_layers(const Sluice__V1__Inspection *in)
{
    for (size_t i = 0; i < in->n_layers; i++) {
        const Sluice__V1__LayerKind *kind = in->layers[i];
        struct strbuf ranges;
        strbuf_init(&ranges, 0);
        print_label(i ? "" : "layers");
        printf("%zu layer%s: ", kind->n_layers, plural(kind->n_layers));
        print_mixer(kind);
        print_ffn(kind);
        putchar('\n');
        if (in->n_layers > 1) {
            add_ranges(kind->layers, kind->n_layers, &ranges);
            print_label("");
            printf("  numbers %s\n", strbuf_str(&ranges));
        }
        strbuf_fini(&ranges);
    }
}

static void print_ropes(const Sluice__V1__Inspection *in)
{
    for (size_t i = 0; i < in->n_ropes; i++) {
        const Sluice__V1__RopeSet *rope = in->ropes[i];
        print_label(i ? "" : "ropes");
        printf("rope %" PRIu32 ": %" PRIu32 " dimensions, base %g", rope->rope, rope->n_rotated,
               rope->frequency_base);
        if (strcmp(rope->scaling, "none") != 0)
            printf(", scaling %s by %g from %.0f tokens", rope->scaling, rope->factor,
                   rope->original_context);
        putchar('\n');
    }
}

static void print_experts(const Sluice__V1__ExpertFacts *experts)
{
    if (!experts)
        return;
    print_label("experts");
    printf("%" PRIu32 " of %" PRIu32 " for each token, %" PRIu32 " wide", experts->n_used,
           experts->n_experts, experts->ffn_dim);
    if (experts->shared_ffn_dim)
        printf(", %" PRIu32 " shared", experts->shared_ffn_dim);
    if (experts->n_groups > 1)
        printf(", %" PRIu32 " of %" PRIu32 " groups", experts->n_groups_used, experts->n_groups);
    printf("; score %s%s", experts->score, experts->renormalised ? ", renormalised" : "");
    if (experts->scale < 1 || experts->scale > 1)
        printf(", times %g", experts->scale);
    putchar('\n');
}

/* --- the model --- */

static void print_model(const char *source, const Sluice__V1__Inspection *in)
{
    char size[32];
    print_label("model");
    printf("%s\n", source);
    print_label("files");
    printf("%s, %" PRIu32 " file%s, %s\n", in->info->format, in->n_files, plural(in->n_files),
           format_bytes(in->file_bytes, size));
    if (in->info->display_name[0]) {
        print_label("name");
        printf("%s\n", in->info->display_name);
    }
    print_label("architecture");
    printf("%s", in->info->architecture[0] ? in->info->architecture : "not named");
    if (in->n_layers)
        printf(", %" PRIu32 " layers, hidden %" PRIu32 ", %s norms, %s residual, output matrix %s",
               in->info->n_layers, in->info->hidden_dim, in->norm, in->residual,
               in->tied_output ? "tied" : "of its own");
    putchar('\n');
    if (in->unsupported_reason[0]) {
        print_label("not served");
        printf("%s\n", in->unsupported_reason);
    }
}

static void print_parameters(const Sluice__V1__Inspection *in)
{
    char count[32];
    print_label("parameters");
    if (!in->n_layers) {
        printf("%s in the files\n", format_count(in->info->n_parameters, count));
        return;
    }
    printf("%s", format_count(in->n_loaded_parameters, count));
    if (in->n_active_parameters < in->n_loaded_parameters)
        printf(", of which a token uses %s", format_count(in->n_active_parameters, count));
    if (in->info->n_parameters > in->n_loaded_parameters)
        printf("; %s more in the files are ignored",
               format_count(in->info->n_parameters - in->n_loaded_parameters, count));
    putchar('\n');
}

static void print_formats(const Sluice__V1__Inspection *in)
{
    char size[32], count[32];
    for (size_t i = 0; i < in->n_formats; i++) {
        const Sluice__V1__TensorFormat *format = in->formats[i];
        print_label(i ? "" : "formats");
        printf("%s: %" PRIu32 " tensor%s, %s parameters, %s\n", format->format, format->n_tensors,
               plural(format->n_tensors), format_count(format->n_parameters, count),
               format_bytes(format->bytes, size));
    }
}

static void print_context(const Sluice__V1__Inspection *in)
{
    if (!in->info->context_length)
        return;
    print_label("context");
    if (in->info->context_length < in->info->trained_context_length)
        printf("served up to %" PRIu32 " of %" PRIu32 " tokens", in->info->context_length,
               in->info->trained_context_length);
    else
        printf("%" PRIu32 " tokens", in->info->context_length);
    printf("%s%s\n", in->context_limit[0] ? ": " : "", in->context_limit);
}

/* --- texts --- */

/* A token may be a newline or another control character, which would break the line. */
static void print_token(const Sluice__V1__NamedToken *token)
{
    printf("%" PRIu32 " ", token->id);
    for (const unsigned char *c = (const unsigned char *)token->text; *c; c++)
        if (*c < 0x20 || *c == 0x7F)
            printf("\\x%02X", (unsigned)*c);
        else
            putchar(*c);
}

static void print_tokens(const char *label, size_t n, Sluice__V1__NamedToken *const tokens[])
{
    if (!n)
        return;
    print_label(label);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ", " : "", stdout);
        print_token(tokens[i]);
    }
    putchar('\n');
}

static void print_tokenizer(const Sluice__V1__TokenizerFacts *tok)
{
    if (!tok)
        return;
    print_label("tokenizer");
    printf("%s (%s), vocabulary %" PRIu32 ", %" PRIu32 " added tokens (%" PRIu32 " control)",
           tok->model, tok->pre, tok->vocab_size, tok->n_added_tokens, tok->n_control_tokens);
    if (tok->n_holes)
        printf(", %" PRIu32 " ids without a token", tok->n_holes);
    putchar('\n');
    print_tokens("before prompt", tok->n_before_prompt, tok->before_prompt);
    print_tokens("after prompt", tok->n_after_prompt, tok->after_prompt);
    print_tokens("end tokens", tok->n_ends, tok->ends);
    print_tokens("fim tokens", tok->n_fim, tok->fim);
}

static void print_templates(const Sluice__V1__Inspection *in)
{
    print_label("templates");
    for (size_t i = 0; i < in->n_templates; i++)
        printf("%s%s%s", i ? ", " : "", in->templates[i]->name,
               in->templates[i]->error[0] ? " (refused)" : "");
    puts(in->n_templates ? "" : "none: send raw prompts");
    for (size_t i = 0; i < in->n_templates; i++)
        if (in->templates[i]->error[0]) {
            print_label("");
            printf("%s: %s\n", in->templates[i]->name, in->templates[i]->error);
        }
}

static void print_sampling(const Sluice__V1__DefaultSampling *sampling)
{
    if (!sampling)
        return;
    print_label("sampling");
    output_sampling(sampling);
    puts("  (for requests that give no value)");
}

/* Keys of one reason share a line, as there may be dozens. */
static void print_ignored_keys(const Sluice__V1__Inspection *in, size_t first)
{
    const char *why = in->ignored[first]->why, *comma = "";
    size_t n_bytes = 0, n_left = 0;
    print_label("ignored keys");
    for (size_t i = first; i < in->n_ignored; i++) {
        const Sluice__V1__IgnoredPart *part = in->ignored[i];
        if (part->kind != SLUICE__V1__IGNORED_KIND__IGNORED_KIND_KEY || strcmp(part->why, why) != 0)
            continue;
        n_bytes += strlen(part->rule) + 2;
        if (n_bytes > 4 * (size_t)MOST_LIST_BYTES) {
            n_left++;
            continue;
        }
        printf("%s%s", comma, part->rule);
        comma = ", ";
    }
    if (n_left)
        printf(" and %zu more (--json lists all)", n_left);
    printf(": %s\n", why);
}

static bool is_first_of_reason(const Sluice__V1__Inspection *in, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (in->ignored[k]->kind == in->ignored[i]->kind &&
            strcmp(in->ignored[k]->why, in->ignored[i]->why) == 0)
            return false;
    return true;
}

/* Prints the beginning of names that a rule covers; "%u" in the rule stands for a number. */
static void print_rule(const char *rule)
{
    for (; *rule; rule++) {
        bool number = rule[0] == '%' && rule[1] == 'u';
        putchar(number ? 'N' : *rule);
        rule += number;
    }
    putchar('*');
}

static void print_ignored(const Sluice__V1__Inspection *in)
{
    char size[32];
    for (size_t i = 0; i < in->n_ignored; i++) {
        const Sluice__V1__IgnoredPart *part = in->ignored[i];
        if (part->kind == SLUICE__V1__IGNORED_KIND__IGNORED_KIND_KEY) {
            if (is_first_of_reason(in, i))
                print_ignored_keys(in, i);
            continue;
        }
        bool rows = part->kind == SLUICE__V1__IGNORED_KIND__IGNORED_KIND_ROW;
        print_label("ignored");
        if (rows) {
            printf("%" PRIu64 " row%s of %s", part->n_parts, plural(part->n_parts), part->first);
        } else {
            printf("%" PRIu64 " tensor%s ", part->n_parts, plural(part->n_parts));
            print_rule(part->rule);
            printf(", such as %s", part->first);
        }
        printf(", %s: %s\n", format_bytes(part->bytes, size), part->why);
    }
}

/* --- memory --- */

static void print_plan(const Sluice__V1__Inspection *in)
{
    char sizes[5][32], states[48], layers[OUTPUT_STAGE_BYTES];
    const Sluice__V1__Plan *plan = in->plan;
    if (in->plan_error) {
        print_label("memory");
        printf("no plan: %s\n", in->plan_error->message);
    }
    if (!plan)
        return;
    for (size_t i = 0; i < plan->n_devices; i++) {
        const Sluice__V1__DevicePlan *d = plan->devices[i];
        uint64_t sum = d->weight_bytes + d->kv_bytes + d->state_bytes + d->workspace_bytes;
        states[0] = '\0';
        if (d->state_bytes)
            snprintf(states, sizeof(states), " + states %s",
                     format_bytes(d->state_bytes, sizes[4]));
        print_label(i ? "" : "memory");
        printf("%s rank %" PRIu32 "%s: weights %s + KV %s%s + workspace %s = %s, free %s\n",
               d->device, d->rank, output_layers(plan, d, layers),
               format_bytes(d->weight_bytes, sizes[0]), format_bytes(d->kv_bytes, sizes[1]), states,
               format_bytes(d->workspace_bytes, sizes[2]), format_bytes(sum, sizes[3]),
               format_bytes(d->free_bytes, sizes[4]));
    }
    print_label("");
    printf("one replica, tp %" PRIu32 "%s: %s\n", plan->tp, output_stages(plan, layers),
           plan->fits            ? "fits"
           : plan->n_state_slots ? "does not fit; lower --kv-tokens, --state-slots or "
                                   "--context-length"
                                 : "does not fit; lower --kv-tokens or --context-length");
    if (plan->prediction) {
        print_label("speed");
        output_prediction(plan);
    }
    print_label("KV cache");
    printf("%" PRIu64 " bytes per token, %" PRIu64 " tokens\n", plan->kv_token_bytes,
           plan->n_kv_tokens);
    if (plan->n_state_slots) {
        print_label("states");
        printf("%" PRIu32 " slots of %s, for %" PRIu32 " sequences at once\n", plan->n_state_slots,
               format_bytes(plan->state_slot_bytes, sizes[0]), plan->n_running_states);
    }
    if (plan->n_window_blocks) {
        print_label("windows");
        printf("%" PRIu64 " blocks, %s, for layers that see at most %" PRIu32 " tokens\n",
               plan->n_window_blocks, format_bytes(plan->window_bytes, sizes[0]),
               plan->window_tokens);
    }
    for (size_t i = 0; i < plan->n_notes; i++) {
        print_label("note");
        printf("%s\n", plan->notes[i]);
    }
}

void inspect_text_print(const char *source, const Sluice__V1__Inspection *in)
{
    print_model(source, in);
    print_layers(in);
    print_ropes(in);
    print_experts(in->experts);
    print_parameters(in);
    print_formats(in);
    print_context(in);
    print_tokenizer(in->tokenizer);
    print_templates(in);
    print_sampling(in->info->default_sampling);
    print_ignored(in);
    for (size_t i = 0; i < in->n_notes; i++) {
        print_label("note");
        printf("%s\n", in->notes[i]);
    }
    print_plan(in);
    print_label("digest");
    printf("%s\n", in->info->weights_digest);
}
