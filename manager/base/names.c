#include "manager/base/names.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/device_name.h"

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static bool is_first_char(char c)
{
    return is_name_char(c) && c != '.' && c != '_' && c != '-';
}

static int check(const char *field, const char *text, size_t max_bytes, bool first,
                 struct error *err)
{
    size_t n = strlen(text);
    if (n == 0)
        return error_field(err, field, "is required");
    if (n > max_bytes)
        return error_field(err, field, "%zu bytes; %zu is the limit", n, max_bytes);
    if (first && !is_first_char(text[0]))
        return error_field(err, field, "must start with a letter or digit");
    for (size_t i = 0; i < n; i++)
        if (!is_name_char(text[i]))
            return error_field(err, field, "byte %zu is not one of a-z A-Z 0-9 . _ -", i);
    return 0;
}

int name_check(const char *field, const char *name, struct error *err)
{
    return check(field, name, NAME_MAX_BYTES, true, err);
}

int name_check_version(const char *field, const char *version, struct error *err)
{
    return check(field, version, VERSION_MAX_BYTES, false, err);
}

int name_check_request_id(const char *request_id, struct error *err)
{
    size_t n = strlen(request_id);
    return n <= REQUEST_ID_MAX_BYTES ? 0
                                     : error_field(err, "request_id", "%zu bytes; %d is the limit",
                                                   n, REQUEST_ID_MAX_BYTES);
}

static int add_device(const char *field, const char *kind, unsigned long index,
                      struct device_names *names, struct error *err)
{
    char name[DEVICE_NAME_BYTES];
    snprintf(name, sizeof(name), "%s:%lu", kind, index);
    for (size_t i = 0; i < names->n_names; i++)
        if (strcmp(names->names[i], name) == 0)
            return error_field(err, field, "%s is given twice", name);
    if (names->n_names == DEVICES_MAX)
        return error_field(err, field, "more than %d devices", DEVICES_MAX);
    memcpy(names->names[names->n_names++], name, sizeof(name));
    return 0;
}

/* Parses a device number at *at and moves *at past it. */
static bool parse_index(const char **at, unsigned long *out)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    *out = strtoul(*at, &end, 10);
    bool good = end - *at <= 4;
    *at = end;
    return good;
}

static int bad_syntax(const char *field, const char *text, struct error *err)
{
    char meant[64] = "";
    bool known = device_name_meant(text, meant, sizeof(meant));
    return error_field(err, field, "\"%.40s\" must be written like cpu:0-1 or cuda:0,1%s%s", text,
                       known ? "; write " : "", meant);
}

static int parse_one(const char *field, const char *text, struct device_names *names, char kind[8],
                     struct error *err)
{
    static const char *const kinds[] = {"cpu", "cuda"};
    const char *colon = strchr(text, ':');
    size_t i_kind = 0;
    while (i_kind < 2 && (!colon || strlen(kinds[i_kind]) != (size_t)(colon - text) ||
                          strncmp(text, kinds[i_kind], (size_t)(colon - text)) != 0))
        i_kind++;
    if (i_kind == 2)
        return bad_syntax(field, text, err);
    if (*kind && strcmp(kind, kinds[i_kind]) != 0)
        return error_field(err, field, "devices must be of one kind, not %s and %s", kind,
                           kinds[i_kind]);
    snprintf(kind, 8, "%s", kinds[i_kind]);
    const char *at = colon;
    do {
        unsigned long first, last;
        at++;
        if (!parse_index(&at, &first))
            return bad_syntax(field, text, err);
        last = first;
        if (*at == '-' && (at++, !parse_index(&at, &last) || last < first))
            return error_field(err, field, "\"%.40s\" has a bad range at byte %td", text,
                               at - text);
        for (unsigned long i = first; i <= last; i++)
            if (add_device(field, kind, i, names, err) != 0)
                return err->status;
    } while (*at == ',');
    if (*at)
        return bad_syntax(field, text, err);
    return 0;
}

int name_parse_devices(const char *field, char *const *texts, size_t n_texts,
                       struct device_names *out_names, struct error *err)
{
    struct device_names names = {.n_names = 0};
    char kind[8] = "";
    if (n_texts == 0)
        return error_field(err, field, "at least one device is required");
    for (size_t i = 0; i < n_texts; i++)
        if (parse_one(field, texts[i], &names, kind, err) != 0)
            return err->status;
    *out_names = names;
    return 0;
}
