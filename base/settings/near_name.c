#include "base/settings/near_name.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MIN_KEY = 3, SHORT_KEY = 4, MAX_KEY = 40, FAR = 3 };

static char plain_char(char c)
{
    return c == '_' ? '-' : c;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Returns the edit distance: letters to insert, delete, replace or swap with their neighbour. Both
 * texts have at most MAX_KEY bytes. */
static unsigned distance(const char *key, size_t n_key, const char *name, size_t n_name)
{
    uint8_t d[MAX_KEY + 1][MAX_KEY + 1];
    for (size_t i = 0; i <= n_key; i++)
        d[i][0] = (uint8_t)i;
    for (size_t j = 0; j <= n_name; j++)
        d[0][j] = (uint8_t)j;
    for (size_t i = 1; i <= n_key; i++)
        for (size_t j = 1; j <= n_name; j++) {
            char a = plain_char(key[i - 1]), b = name[j - 1];
            unsigned one = least(d[i - 1][j] + 1u, d[i][j - 1] + 1u);
            one = least(one, d[i - 1][j - 1] + (a == b ? 0u : 1u));
            if (i > 1 && j > 1 && a == name[j - 2] && plain_char(key[i - 2]) == b)
                one = least(one, d[i - 2][j - 2] + 1u);
            d[i][j] = (uint8_t)one;
        }
    return d[n_key][n_name];
}

struct near_name near_name_of(const char *word)
{
    size_t n = strlen(word);
    bool usable = n >= MIN_KEY && n <= MAX_KEY;
    return (struct near_name){.word = word,
                              .n_word = n,
                              .distance = !usable          ? 0
                                          : n <= SHORT_KEY ? FAR - 1
                                                           : FAR};
}

void near_name_try(struct near_name *near, const char *name)
{
    size_t n = strlen(name);
    if (!near->distance || n > MAX_KEY)
        return;
    unsigned far = distance(near->word, near->n_word, name, n);
    if (far < near->distance) {
        near->distance = far;
        near->name = name;
    }
}
