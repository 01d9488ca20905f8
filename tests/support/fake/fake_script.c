#include "tests/support/fake/fake_script.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char fake_script[FAKE_SCRIPT_BYTES];

char *fake_word(const char *text)
{
    return (char *)(uintptr_t)text;
}

long fake_number_in(const char *script, const char *name, long otherwise)
{
    const char *at = strstr(script, name);
    return at ? strtol(at + strlen(name), NULL, 10) : otherwise;
}

long fake_number(const char *name, long otherwise)
{
    return fake_number_in(fake_script, name, otherwise);
}

bool fake_has(const char *name)
{
    return strstr(fake_script, name) != NULL;
}

void fake_read(const char *path, char script[FAKE_SCRIPT_BYTES])
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(script, 1, FAKE_SCRIPT_BYTES - 1, file) : 0;
    script[n] = '\0';
    if (file)
        fclose(file);
}

void fake_read_script(const char *path)
{
    fake_read(path, fake_script);
}
