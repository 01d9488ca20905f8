#include "engine/text/source/base64.h"

#include <stdint.h>

static int value_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

bool base64_decode(const char *text, size_t n_text, char *out, size_t *out_n)
{
    size_t n = 0, n_data = n_text;
    if (n_text % 4)
        return false;
    while (n_data && n_text - n_data < 2 && text[n_data - 1] == '=')
        n_data--;
    uint32_t bits = 0;
    for (size_t i = 0; i < n_data; i++) {
        int value = value_of(text[i]);
        if (value < 0)
            return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 == 3) {
            out[n++] = (char)(bits >> 16);
            out[n++] = (char)(bits >> 8);
            out[n++] = (char)bits;
            bits = 0;
        }
    }
    if (n_data % 4 == 2)
        out[n++] = (char)(bits >> 4);
    if (n_data % 4 == 3) {
        out[n++] = (char)(bits >> 10);
        out[n++] = (char)(bits >> 2);
    }
    *out_n = n;
    return true;
}
