#include "clients/cli/serve/announce.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/printable.h"

static void write_object(const char *event, json_t *fields)
{
    json_t *object = fields ? fields : json_object();
    json_object_set_new(object, "event", json_string(event));
    char *text = json_dumps(object, JSON_COMPACT);
    if (text) {
        printf("%s\n", text);
        fflush(stdout);
    }
    free(text);
    json_decref(object);
}

void announce(const struct cli *cli, const char *event, json_t *fields, const char *format, ...)
{
    if (cli->settings.json) {
        write_object(event, fields);
        return;
    }
    struct strbuf text;
    va_list args;
    json_decref(fields);
    strbuf_init(&text, 0);
    va_start(args, format);
    strbuf_vprintf(&text, format, args);
    va_end(args);
    strbuf_add_char(&text, '\n');
    printable_write(stderr, strbuf_str(&text));
    strbuf_fini(&text);
}
