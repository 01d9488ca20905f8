#include "clients/cli/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/system/shell_word.h"
#include "base/utf8.h"
#include "clients/cli/shell/cli.h"

/* Copies the text; the caller owns the copy. Invalid UTF-8 becomes question marks. */
static char *copy_text(const char *text)
{
    char *copy = strdup(text);
    for (char *p = copy; p && !utf8_valid(copy, strlen(copy), NULL) && *p; p++)
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    return copy;
}

void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check,
                const char *remedy, const char *format, ...)
{
    struct strbuf text = {0};
    va_list args;
    struct doctor_finding *findings =
        realloc(doctor->findings, (doctor->n_findings + 1) * sizeof(*findings));
    doctor->n_of[level]++;
    if (!findings)
        return;
    va_start(args, format);
    strbuf_vprintf(&text, format, args);
    va_end(args);
    doctor->findings = findings;
    findings[doctor->n_findings++] = (struct doctor_finding){
        level, check, copy_text(strbuf_str(&text)), copy_text(remedy ? remedy : "")};
    strbuf_fini(&text);
}

const char *doctor_remedy(const struct doctor *doctor, char out[DOCTOR_REMEDY_BYTES],
                          const char *format, ...)
{
    char flags[CLI_HINT_BYTES];
    struct strbuf text;
    va_list args;
    strbuf_init(&text, DOCTOR_REMEDY_BYTES - 1);
    va_start(args, format);
    for (const char *p = format; *p; p++)
        if (p[0] == '%' && p[1] == 's' && p++)
            shell_word_add(&text, va_arg(args, const char *));
        else if (p[0] == '%' && p[1] == 'F' && p++)
            strbuf_add_str(&text, cli_hint_flags(doctor->cli, CLI_HINT_STATE, flags));
        else
            strbuf_add_char(&text, *p);
    va_end(args);
    snprintf(out, DOCTOR_REMEDY_BYTES, "%s", strbuf_str(&text));
    strbuf_fini(&text);
    return out;
}

void doctor_fini(struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->n_findings; i++) {
        free(doctor->findings[i].message);
        free(doctor->findings[i].remedy);
    }
    free(doctor->findings);
    *doctor = (struct doctor){0};
}
