#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

static struct {
    const char *program;
    enum log_level min_level;
    enum log_format format;
} sink = {"sluice", LOG_LEVEL_INFO, LOG_FORMAT_KV};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

struct line {
    char text[LINE_BYTES];
    size_t n;
};

void log_init(const char *program, enum log_level min_level, enum log_format format)
{
    sink.program = program;
    sink.min_level = min_level;
    sink.format = format;
}

bool log_level_parse(const char *text, enum log_level *out_level)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out_level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

bool log_format_parse(const char *text, enum log_format *out_format)
{
    if (strcmp(text, "kv") == 0)
        *out_format = LOG_FORMAT_KV;
    else if (strcmp(text, "json") == 0)
        *out_format = LOG_FORMAT_JSON;
    else
        return false;
    return true;
}

bool log_enabled(enum log_level level)
{
    return level >= sink.min_level;
}

static void put(struct line *line, const char *text, size_t n)
{
    size_t room = sizeof(line->text) - 2 - line->n; /* keeps a place for the newline */
    if (n > room)
        n = room;
    memcpy(line->text + line->n, text, n);
    line->n += n;
}

static void put_str(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* Escapes as JSON does, which suits both formats. Bytes from 0x80 pass: strings are UTF-8 where
 * they entered. */
static void put_quoted(struct line *line, const char *text)
{
    put_str(line, "\"");
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        char escaped[8];
        if (c == '"' || c == '\\') {
            snprintf(escaped, sizeof(escaped), "\\%c", c);
            put_str(line, escaped);
        } else if (c < 0x20 || c == 0x7F) {
            snprintf(escaped, sizeof(escaped), "\\u%04x", c);
            put_str(line, escaped);
        } else {
            put(line, p, 1);
        }
    }
    put_str(line, "\"");
}

static bool plain(const char *text)
{
    if (!*text)
        return false;
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7F)
            return false;
    }
    return true;
}

static void put_pair(struct line *line, const struct log_pair *pair)
{
    char number[48];
    bool json = sink.format == LOG_FORMAT_JSON;
    if (json) {
        put_str(line, ",");
        put_quoted(line, pair->key);
        put_str(line, ":");
    } else {
        put_str(line, " ");
        put_str(line, pair->key);
        put_str(line, "=");
    }
    switch (pair->type) {
    case LOG_VALUE_STR: {
        const char *text = pair->str ? pair->str : "";
        if (!json && plain(text))
            put_str(line, text);
        else
            put_quoted(line, text);
        return;
    }
    case LOG_VALUE_U64:
        snprintf(number, sizeof(number), "%" PRIu64, pair->u64);
        break;
    case LOG_VALUE_I64:
        snprintf(number, sizeof(number), "%" PRId64, (int64_t)pair->u64);
        break;
    default:
        snprintf(number, sizeof(number), "%.6g", pair->f64);
        break;
    }
    put_str(line, number);
}

void log_write(enum log_level level, const struct log_pair *pairs)
{
    if (!log_enabled(level))
        return;
    struct line line = {.n = 0};
    struct timespec now;
    struct tm tm;
    char head[160];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    char stamp[32];
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    const char *format =
        sink.format == LOG_FORMAT_JSON
            ? "{\"ts\":\"%s.%03ldZ\",\"level\":\"%s\",\"program\":\"%s\",\"pid\":%d"
            : "ts=%s.%03ldZ level=%s program=%s pid=%d";
    /* Both formats take the same arguments; the literal above is the only source of the string. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(head, sizeof(head), format, stamp, now.tv_nsec / 1000000, level_names[level],
             sink.program, (int)getpid());
#pragma GCC diagnostic pop
    put_str(&line, head);
    for (const struct log_pair *pair = pairs; pair->type != LOG_VALUE_END; pair++)
        put_pair(&line, pair);
    if (sink.format == LOG_FORMAT_JSON)
        put_str(&line, "}");
    line.text[line.n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line.text, line.n);
    (void)written; /* a log that cannot be written must not stop the program */
}
