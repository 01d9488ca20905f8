#include "clients/cli/shell/model_name.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void model_name_from_path(const char *path, char out_name[64])
{
    const char *slash = strrchr(path, '/');
    const char *stem = slash ? slash + 1 : path;
    size_t n = strlen(stem), k = 0;
    if (n > 5 && strcmp(stem + n - 5, ".gguf") == 0)
        n -= 5;
    for (size_t i = 0; i < n && k < 63; i++) {
        unsigned char c = (unsigned char)tolower((unsigned char)stem[i]);
        bool plain = c < 0x80 && (isalnum(c) || c == '.' || c == '_' || c == '-');
        if (k == 0 && !(c < 0x80 && isalnum(c)))
            continue;
        out_name[k++] = plain ? (char)c : '-';
    }
    out_name[k] = '\0';
    if (!k)
        snprintf(out_name, 64, "model");
}
