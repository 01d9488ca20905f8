#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"

enum { LINE_BYTES = 4096 };

static struct {
    const char *program;
    _Atomic int min_level, format;
} sink = {"sluice", LOG_LEVEL_INFO, LOG_FORMAT_KV};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

struct line {
    char text[LINE_BYTES];
    size_t n;
};

void log_init(const char *program, enum log_level min_level, enum log_format format)
{
    sink.program = program;
    log_set(min_level, format);
}

void log_set(enum log_level min_level, enum log_format format)
{
    sink.min_level = (int)min_level;
    sink.format = (int)format;
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

/* Room reserved at the end of every line for a quote, a brace and a newline. */
enum { TAIL_BYTES = 3 };

static size_t room(const struct line *line)
{
    size_t limit = sizeof(line->text) - TAIL_BYTES;
    return line->n < limit ? limit - line->n : 0;
}

/* Appends the whole text or nothing: a part of an escape or code point would change the meaning. */
static bool put(struct line *line, const char *text, size_t n)
{
    if (n > room(line))
        return false;
    memcpy(line->text + line->n, text, n);
    line->n += n;
    return true;
}

static bool put_str(struct line *line, const char *text)
{
    return put(line, text, strlen(text));
}

/* True for code points that move a terminal's cursor, end a line or change the text direction. */
static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x200E || c == 0x200F ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

/* Appends a quoted text with JSON escapes, in both formats. Bytes that are not UTF-8 become U+FFFD.
 * A text that does not fit is cut between code points; the closing quote always fits. */
static void put_quoted(struct line *line, const char *text)
{
    size_t n = strlen(text);
    bool fits = put_str(line, "\"");
    if (!fits)
        return;
    for (size_t i = 0; i < n && fits;) {
        char escaped[8];
        uint32_t c = 0;
        size_t n_step = utf8_decode(text + i, n - i, &c);
        if (n_step && (c == '"' || c == '\\'))
            snprintf(escaped, sizeof(escaped), "\\%c", (char)c);
        else if (!n_step || is_control(c))
            snprintf(escaped, sizeof(escaped), "\\u%04x", n_step ? (unsigned)c : 0xFFFDU);
        else
            escaped[0] = '\0';
        fits = escaped[0] ? put_str(line, escaped) : put(line, text + i, n_step);
        i += n_step ? n_step : 1;
    }
    line->text[line->n++] = '"'; /* fits always: TAIL_BYTES are reserved */
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

static bool put_key(struct line *line, const char *key)
{
    bool json = sink.format == LOG_FORMAT_JSON;
    return put_str(line, json ? ",\"" : " ") && put_str(line, key) &&
           put_str(line, json ? "\":" : "=");
}

static void number_text(const struct log_pair *pair, char *out, size_t n_out)
{
    if (pair->type == LOG_VALUE_U64)
        snprintf(out, n_out, "%" PRIu64, pair->u64);
    else if (pair->type == LOG_VALUE_I64)
        snprintf(out, n_out, "%" PRId64, (int64_t)pair->u64);
    else if (isfinite(pair->f64))
        snprintf(out, n_out, "%.6g", pair->f64);
    else
        snprintf(out, n_out, "null"); /* JSON has no NaN or infinity */
}

/* Leaves out a pair if its key and LEAST_BYTES for the value do not fit. */
static void put_pair(struct line *line, const struct log_pair *pair)
{
    enum { LEAST_BYTES = 48 };
    char number[LEAST_BYTES];
    const char *text = pair->str ? pair->str : "";
    if (strlen(pair->key) + LEAST_BYTES + 4 > room(line) || !put_key(line, pair->key))
        return;
    if (pair->type != LOG_VALUE_STR) {
        number_text(pair, number, sizeof(number));
        put_str(line, number);
    } else if (sink.format == LOG_FORMAT_JSON || !plain(text) || !put_str(line, text)) {
        put_quoted(line, text);
    }
}

void log_write(enum log_level level, const struct log_pair *pairs)
{
    if ((int)level < sink.min_level)
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
    /* Both formats take the same arguments, and both are literals above. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(head, sizeof(head), format, stamp, now.tv_nsec / 1000000, level_names[level],
             sink.program, (int)getpid());
#pragma GCC diagnostic pop
    put_str(&line, head);
    for (const struct log_pair *pair = pairs; pair->type != LOG_VALUE_END; pair++)
        put_pair(&line, pair);
    if (sink.format == LOG_FORMAT_JSON)
        line.text[line.n++] = '}';
    line.text[line.n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line.text, line.n);
    (void)written; /* a failed write must not stop the program */
}
