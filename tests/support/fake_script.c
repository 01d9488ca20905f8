#include "tests/support/fake_script.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char fake_script[FAKE_SCRIPT_BYTES];

char *fake_word(const char *text)
{
    return (char *)(uintptr_t)text;
}

long fake_number(const char *name, long otherwise)
{
    const char *at = strstr(fake_script, name);
    return at ? strtol(at + strlen(name), NULL, 10) : otherwise;
}

bool fake_has(const char *name)
{
    return strstr(fake_script, name) != NULL;
}

void fake_read_script(const char *path)
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(fake_script, 1, sizeof(fake_script) - 1, file) : 0;
    fake_script[n] = '\0';
    if (file)
        fclose(file);
}
