#include "manager/settings/fit_policy.h"

#include <stddef.h>
#include <string.h>

bool fit_policy_parse(const char *word, enum fit_policy *out_policy)
{
    static const char *const words[] = {
        [FIT_AUTO] = "auto", [FIT_SPREAD] = "spread", [FIT_PACK] = "pack"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word, words[i]) != 0)
            continue;
        *out_policy = (enum fit_policy)i;
        return true;
    }
    return false;
}
