#include "engine/template/value/unicode.h"

#include <utf8proc.h>

bool unicode_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 31);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool unicode_is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool unicode_is_printable(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 0x20 && cp < 0x7F;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

bool unicode_is_alphabetic(uint32_t cp)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool unicode_is_numeric(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

bool unicode_is_upper(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU;
}

bool unicode_is_lower(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LL;
}

bool unicode_is_cased(uint32_t cp)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

size_t unicode_convert(uint32_t cp, enum unicode_case to, uint32_t out[3])
{
    if (cp == 0xDF && to != UNICODE_LOWER) { /* sharp s: SS, or Ss */
        out[0] = 'S';
        out[1] = to == UNICODE_UPPER ? 'S' : 's';
        return 2;
    }
    if (cp == 0x130 && to == UNICODE_LOWER) { /* I with dot: i and a combining dot */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    utf8proc_int32_t in = (utf8proc_int32_t)cp;
    out[0] = (uint32_t)(to == UNICODE_UPPER   ? utf8proc_toupper(in)
                        : to == UNICODE_LOWER ? utf8proc_tolower(in)
                                              : utf8proc_totitle(in));
    return 1;
}

size_t unicode_count(const char *text, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}
