#include "base/utf8.h"

#include <string.h>

size_t utf8_decode(const char *text, size_t n_bytes, uint32_t *out_code_point)
{
    const unsigned char *s = (const unsigned char *)text;
    if (!n_bytes)
        return 0;
    if (s[0] < 0x80) {
        *out_code_point = s[0];
        return 1;
    }
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n_bytes < length)
        return 0;
    uint32_t point = s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (s[i] & 0x3Fu);
    }
    if ((length == 3 && point < 0x800) || (length == 4 && (point < 0x10000 || point > 0x10FFFF)))
        return 0;
    if (point >= 0xD800 && point <= 0xDFFF)
        return 0;
    *out_code_point = point;
    return length;
}

/* Returns eight bytes of the text from i on, the first in the lowest byte. Zeros stand for bytes
 * after the end; no byte after the end is read. */
static uint64_t eight_from(const char *text, size_t i, size_t n_bytes)
{
    uint64_t eight = 0;
    uint32_t first, last;
    size_t n = n_bytes - i;
    if (n >= 8) {
        memcpy(&eight, text + i, sizeof(eight));
    } else if (n >= 4) { /* two loads that overlap */
        memcpy(&first, text + i, sizeof(first));
        memcpy(&last, text + n_bytes - sizeof(last), sizeof(last));
        eight = first | (uint64_t)last << (8 * (n - 4));
    } else {
        for (size_t k = 0; k < n; k++)
            eight |= (uint64_t)(unsigned char)text[i + k] << (8 * k);
    }
    return eight;
}

bool utf8_valid(const char *text, size_t n_bytes, size_t *out_offset)
{
    for (size_t i = 0; i < n_bytes;) {
        uint64_t high = eight_from(text, i, n_bytes) & UINT64_C(0x8080808080808080);
        if (!high) {
            i += 8;
            continue;
        }
        i += (size_t)__builtin_ctzll(high) / 8; /* skip the ASCII bytes */
        uint32_t point;
        size_t length = utf8_decode(text + i, n_bytes - i, &point);
        if (!length) {
            if (out_offset)
                *out_offset = i;
            return false;
        }
        i += length;
    }
    return true;
}

size_t utf8_encode(uint32_t code_point, char out[4])
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xC0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point >= 0xD800 && code_point <= 0xDFFF)
        return 0;
    if (code_point < 0x10000) {
        out[0] = (char)(0xE0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    if (code_point > 0x10FFFF)
        return 0;
    out[0] = (char)(0xF0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

size_t utf8_incomplete_tail(const char *text, size_t n_bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= n_bytes; back++) {
        unsigned char c = s[n_bytes - back];
        if ((c & 0xC0) == 0x80)
            continue;
        if (c < 0xC2 || c > 0xF4)
            return 0;
        size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        if (length <= back)
            return 0;
        /* The range of the second byte decides if the sequence can still be completed. */
        if (back >= 2) {
            unsigned char d = s[n_bytes - back + 1];
            if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) ||
                (c == 0xF4 && d > 0x8F))
                return 0;
        }
        return back;
    }
    return 0;
}
