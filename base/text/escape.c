#include "base/text/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static bool is_plain(uint32_t point)
{
    /* C0, DEL and C1 could move a terminal's cursor. U+2028 and U+2029 could start a line. U+202A
     * to U+202E and U+2066 to U+2069 change the order of displayed text. */
    return point >= 0x20 && point != '"' && point != '\\' && (point < 0x7F || point > 0x9F) &&
           (point < 0x2028 || point > 0x202E) && (point < 0x2066 || point > 0x2069);
}

const char *escape_text(const char *bytes, size_t n_bytes, char out[ESCAPE_MAX_BYTES])
{
    size_t n_out = 0;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t point = 0;
        size_t length = utf8_decode(bytes + i, n_bytes - i, &point);
        bool keep = length && is_plain(point);
        size_t take = length ? length : 1;
        size_t need = keep ? take : 4 * take;
        if (n_out + need + 4 > ESCAPE_MAX_BYTES) {
            memcpy(out + n_out, "...", 3);
            n_out += 3;
            break;
        }
        if (keep)
            memcpy(out + n_out, bytes + i, take);
        for (size_t k = 0; !keep && k < take; k++)
            snprintf(out + n_out + 4 * k, 5, "\\x%02x", (unsigned)(unsigned char)bytes[i + k]);
        n_out += need;
        i += take;
    }
    out[n_out] = '\0';
    return out;
}
