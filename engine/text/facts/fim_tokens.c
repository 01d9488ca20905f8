#include "engine/text/facts/fim_tokens.h"

#include <stdbool.h>
#include <string.h>

#include "engine/text/facts/text_facts.h"

/* Texts by family: prefix, suffix, middle, padding, repository name, separator of files. NULL: the
 * family has no such token. Models that want the suffix first, like Codestral, are not here. */
static const char *const families[][TOKENIZER_N_FIM] = {
    /* Qwen, CodeGemma */
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
     "<|file_sep|>"},
    /* StarCoder 2, Granite */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<repo_name>", "<file_sep>"},
    /* SantaCoder, Refact */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>", "<fim-repo>", NULL},
    /* DeepSeek */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL, NULL, NULL},
    /* GLM */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL, NULL},
    /* CodeLlama */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", NULL, NULL, NULL},
    {"<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>", NULL},
};
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static bool equals(const char *text, const struct text_token *token)
{
    return text && strlen(text) == token->n_text && memcmp(text, token->text, token->n_text) == 0;
}

/* A text that no merge makes may be of any kind: SentencePiece files of CodeLlama call it normal.
 */
static bool may_mark(const struct text_token *token)
{
    if (!token->text || !token->n_text)
        return false;
    if (token->kind == TOKEN_CONTROL || token->kind == TOKEN_USER_DEFINED)
        return true;
    return token->kind == TOKEN_NORMAL && token->n_text > 4 &&
           memcmp(token->text, TEXT_SPACE_MARK "<", 4) == 0;
}

static bool is_whole(const int32_t ids[TOKENIZER_N_FIM])
{
    return ids[TOKENIZER_FIM_PREFIX] >= 0 && ids[TOKENIZER_FIM_SUFFIX] >= 0 &&
           ids[TOKENIZER_FIM_MIDDLE] >= 0;
}

void fim_tokens_find(struct text_facts *facts)
{
    int32_t found[N_FAMILIES][TOKENIZER_N_FIM], *ids = facts->fim_ids;
    bool known = is_whole(ids);
    for (uint32_t f = 0; f < N_FAMILIES; f++)
        for (uint32_t k = 0; k < TOKENIZER_N_FIM; k++)
            found[f][k] = TOKENIZER_NO_ID;
    for (uint32_t i = 0; i < facts->n_tokens; i++)
        for (uint32_t f = 0; may_mark(&facts->tokens[i]) && f < N_FAMILIES; f++)
            for (uint32_t k = 0; k < TOKENIZER_N_FIM; k++)
                if (equals(families[f][k], &facts->tokens[i]))
                    found[f][k] = (int32_t)i;
    for (uint32_t f = 0; f < N_FAMILIES; f++) {
        bool fits = known ? found[f][TOKENIZER_FIM_PREFIX] == ids[TOKENIZER_FIM_PREFIX]
                          : is_whole(found[f]);
        if (!fits)
            continue;
        for (uint32_t k = 0; k < TOKENIZER_N_FIM; k++)
            if (!known || ids[k] < 0)
                ids[k] = found[f][k];
        return;
    }
    for (uint32_t k = 0; !known && k < TOKENIZER_N_FIM; k++)
        ids[k] = TOKENIZER_NO_ID;
}
