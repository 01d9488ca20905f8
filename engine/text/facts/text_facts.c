#define TEXT_FACTS_BODIES
#include "engine/text/facts/text_facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"

void text_facts_init(struct text_facts *facts, const char *file)
{
    *facts = (struct text_facts){.file = file,
                                 .pre = "default",
                                 .bos_id = TOKENIZER_NO_ID,
                                 .eos_id = TOKENIZER_NO_ID,
                                 .unknown_id = TOKENIZER_NO_ID,
                                 .padding_id = TOKENIZER_NO_ID};
    for (uint32_t i = 0; i < TOKENIZER_N_FIM; i++)
        facts->fim_ids[i] = TOKENIZER_NO_ID;
    arena_init(&facts->arena, 1 << 18, 0);
}

void text_facts_fini(struct text_facts *facts)
{
    arena_fini(&facts->arena);
    *facts = (struct text_facts){0};
}

int text_facts_bad(const struct text_facts *facts, const char *part, struct error *err,
                   const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (facts->ckpt)
        return checkpoint_bad_key(facts->ckpt, part, err, "%s", text);
    error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s: %s; %s", facts->file, part, text,
              CHECKPOINT_REMEDY);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int text_facts_missing(const struct text_facts *facts, const char *part, struct error *err)
{
    return facts->ckpt ? checkpoint_missing_key(facts->ckpt, part, err)
                       : text_facts_bad(facts, part, err, "is missing");
}

int text_facts_unbuilt(const struct text_facts *facts, const char *part, struct error *err,
                       const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (facts->ckpt)
        checkpoint_unbuilt_key(facts->ckpt, part, err, "%s", text);
    else
        error_set(err, STATUS_UNIMPLEMENTED, "%s: %s: %s", facts->file, part, text);
    return error_reason(err, REASON_TOKENIZER_UNSUPPORTED);
}

int text_facts_note(struct text_facts *facts, struct error *err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (facts->n_notes == TOKENIZER_MAX_NOTES)
        return 0;
    const char *note = arena_strndup(&facts->arena, text, strlen(text));
    if (!note)
        return text_facts_no_memory(err);
    facts->notes[facts->n_notes++] = note;
    return 0;
}

int text_facts_drop_template(struct text_facts *facts, const char *name, struct error *err)
{
    char escaped[ESCAPE_MAX_BYTES];
    facts->drops_templates = true;
    return text_facts_note(facts, err,
                           "The model has more than %d named chat templates; template \"%s\" and "
                           "those after it are not kept.",
                           TOKENIZER_MAX_TEMPLATES, escape_text(name, strlen(name), escaped));
}

int text_facts_add_template(struct text_facts *facts, const char *name, const char *text,
                            struct error *err)
{
    if (strcmp(name, "default") == 0) {
        facts->chat_template = text;
        return 0;
    }
    for (uint32_t i = 0; i < facts->n_templates; i++)
        if (strcmp(facts->templates[i].name, name) == 0) {
            facts->templates[i].text = text;
            return 0;
        }
    if (facts->n_templates == TOKENIZER_MAX_TEMPLATES) {
        return facts->drops_templates ? 0 : text_facts_drop_template(facts, name, err);
    }
    facts->templates[facts->n_templates++] = (struct text_template){name, text};
    return 0;
}

void text_facts_add_end(struct text_facts *facts, int64_t id)
{
    if (id < 0 || id >= facts->n_tokens || facts->n_end_ids == TOKENIZER_MAX_END_IDS)
        return;
    for (uint32_t i = 0; i < facts->n_end_ids; i++)
        if (facts->end_ids[i] == (uint32_t)id)
            return;
    facts->end_ids[facts->n_end_ids++] = (uint32_t)id;
}

/* Texts of tokens that end a turn or a document. Many files lack the keys for such tokens, or name
 * the wrong token; then the text decides. The list is that of llama.cpp (llama-vocab.cpp,
 * special_eog_ids). */
static const char *const end_texts[] = {
    "<|eot_id|>",      "<|im_end|>",    "<|end|>",
    "<|return|>",      "<|call|>",      "<|flush|>",
    "<|calls|>",       "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|eom_id|>",    "<end_of_utterance>",
    "< EOT >",         "_<EOT>",        "[EOT]",
    "[EOS]",           "</s>",          "<｜end▁of▁sentence｜>",
    "<turn|>",
};
enum { N_END_TEXTS = sizeof(end_texts) / sizeof(end_texts[0]) };
_Static_assert(N_END_TEXTS + 3 <= TOKENIZER_MAX_END_IDS, "each end text has a place");

void text_facts_find_ends(struct text_facts *facts)
{
    int64_t found[N_END_TEXTS];
    bool has_return = false, has_call = false;
    for (uint32_t e = 0; e < N_END_TEXTS; e++)
        found[e] = TOKENIZER_NO_ID;
    for (uint32_t i = 0; i < facts->n_tokens; i++) {
        const struct text_token *t = &facts->tokens[i];
        if (!t->text || (t->kind != TOKEN_CONTROL && t->kind != TOKEN_USER_DEFINED))
            continue;
        for (uint32_t e = 0; e < N_END_TEXTS; e++)
            if (strlen(end_texts[e]) == t->n_text && memcmp(end_texts[e], t->text, t->n_text) == 0)
                found[e] = i;
        has_return |= t->n_text == 10 && memcmp(t->text, "<|return|>", 10) == 0;
        has_call |= t->n_text == 8 && memcmp(t->text, "<|call|>", 8) == 0;
    }
    /* In the harmony format <|end|> separates channels of one answer. Beside another eos, </s> is a
     * tag of HTML (Gemma). */
    for (uint32_t e = 0; e < N_END_TEXTS; e++) {
        bool separates = has_return && has_call && strcmp(end_texts[e], "<|end|>") == 0;
        bool is_tag = facts->eos_id != TOKENIZER_NO_ID && strcmp(end_texts[e], "</s>") == 0;
        if (!separates && !is_tag)
            text_facts_add_end(facts, found[e]);
    }
}

int text_facts_add_normal(struct text_facts *facts, struct normal_step step, struct error *err)
{
    if (facts->n_normal == TEXT_MAX_STEPS)
        return text_facts_unbuilt(facts, "normalizer", err,
                                  "more than %d steps; use a model with fewer", TEXT_MAX_STEPS);
    facts->normal[facts->n_normal++] = step;
    return 0;
}

int text_facts_add_split(struct text_facts *facts, struct split_step step, struct error *err)
{
    if (facts->n_splits == TEXT_MAX_STEPS)
        return text_facts_unbuilt(facts, "pre_tokenizer", err,
                                  "more than %d steps; use a model with fewer", TEXT_MAX_STEPS);
    facts->splits[facts->n_splits++] = step;
    return 0;
}

void text_facts_add_literal(struct text_facts *facts, uint32_t id, const char *text, size_t n_bytes,
                            bool is_control, int flags)
{
    struct text_token *t = &facts->tokens[id];
    t->text = text;
    t->n_text = n_bytes < UINT32_MAX ? (uint32_t)n_bytes : UINT32_MAX;
    t->kind = (uint8_t)(is_control ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    t->flags = (uint8_t)flags;
}

int text_facts_add_marks(struct text_facts *facts, bool add_prefix, bool squeeze, struct error *err)
{
    int rc = 0;
    if (squeeze)
        rc = text_facts_add_normal(facts, (struct normal_step){NORMAL_SQUEEZE, " ", NULL, 1, 0},
                                   err);
    if (!rc && add_prefix)
        rc = text_facts_add_normal(facts, (struct normal_step){NORMAL_PREPEND, NULL, " ", 0, 1},
                                   err);
    if (!rc)
        rc = text_facts_add_normal(
            facts, (struct normal_step){NORMAL_REPLACE, " ", TEXT_SPACE_MARK, 1, 3}, err);
    facts->n_before_literals = facts->n_normal;
    return rc;
}

int text_facts_byte_of(const char *text, size_t n_bytes)
{
    if (n_bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}
