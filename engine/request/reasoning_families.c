#include "engine/request/reasoning_families.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "engine/text/tokenizer.h"

#define TAGS(begin, end)                                                                           \
    {                                                                                              \
        {REASONING_BEGINS, begin, REASONING_THINKS}, {REASONING_THINKS, end, REASONING_ANSWERS},   \
    }

/* The first row that fits counts, so special rows come before common ones. */
static const struct reasoning_family families[] = {
    /* gpt-oss: channels of messages. A message's end opens the next message. */
    {"harmony",
     {{REASONING_BEGINS, "<|channel|>analysis<|message|>", REASONING_THINKS},
      {REASONING_BEGINS, "<|channel|>final<|message|>", REASONING_ANSWERS},
      {REASONING_THINKS, "<|end|><|start|>assistant", REASONING_BEGINS},
      {REASONING_ANSWERS, "<|end|><|start|>assistant", REASONING_BEGINS}}},
    {"gemma", TAGS("<|channel>thought\n", "<channel|>")},
    {"command", TAGS("<|START_THINKING|>", "<|END_THINKING|>")},
    {"mistral", TAGS("[THINK]", "[/THINK]")},
    {"seed", TAGS("<seed:think>", "</seed:think>")},
    {"apertus", TAGS("<|inner_prefix|>", "<|inner_suffix|>")},
    {"kimi", TAGS("◁think▷", "◁/think▷")},
    {"granite", TAGS("Here is my thought process:", "Here is my response:")},
    {"exaone", TAGS("<thought>", "</thought>")},
    /* DeepSeek, EXAONE 4, GLM, MiniMax, Nemotron, Phi-4, Qwen, SmolLM3 and more */
    {"think", TAGS("<think>", "</think>")},
};
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

const struct reasoning_family *reasoning_families_in_template(const char *text)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strstr(text, families[i].moves[0].marker) || strstr(text, families[i].moves[1].marker))
            return &families[i];
    return NULL;
}

static bool is_special(const struct tokenizer *tok, const char *text)
{
    int32_t id = tokenizer_find(tok, text, strlen(text));
    enum token_kind kind =
        id == TOKENIZER_NO_ID ? TOKEN_NORMAL : tokenizer_token_kind(tok, (uint32_t)id);
    return kind == TOKEN_CONTROL || kind == TOKEN_USER_DEFINED;
}

const struct reasoning_family *reasoning_families_of(const struct tokenizer *tok)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    const struct reasoning_family *found =
        info->chat_template ? reasoning_families_in_template(info->chat_template) : NULL;
    for (uint32_t i = 0; i < info->n_templates && !found; i++)
        found = reasoning_families_in_template(info->templates[i].text);
    for (size_t i = 0; i < N_FAMILIES && !found; i++)
        if (is_special(tok, families[i].moves[0].marker) &&
            is_special(tok, families[i].moves[1].marker))
            found = &families[i];
    return found;
}
