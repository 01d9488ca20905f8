/* log.h: one line per event on stderr, key=value or JSON. Programs log; libraries log only at
 * debug. Any thread: each line is one write(2). Values are escaped, so a value from outside cannot
 * add a line or a terminal escape sequence.
 *
 *     log_info(LOG_EVENT("replica ready"), LOG_STR("replica", id), LOG_U64("load_ms", ms));
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
enum log_format { LOG_FORMAT_KV, LOG_FORMAT_JSON };
enum log_value_type { LOG_VALUE_END, LOG_VALUE_STR, LOG_VALUE_U64, LOG_VALUE_I64, LOG_VALUE_F64 };

struct log_pair {
    enum log_value_type type;
    const char *key;
    const char *str;
    uint64_t u64;
    double f64;
};

#define LOG_EVENT(text)  ((struct log_pair){.type = LOG_VALUE_STR, .key = "event", .str = (text)})
#define LOG_STR(name, s) ((struct log_pair){.type = LOG_VALUE_STR, .key = (name), .str = (s)})
#define LOG_U64(name, n)                                                                           \
    ((struct log_pair){.type = LOG_VALUE_U64, .key = (name), .u64 = (uint64_t)(n)})
#define LOG_I64(name, n)                                                                           \
    ((struct log_pair){.type = LOG_VALUE_I64, .key = (name), .u64 = (uint64_t)(n)})
#define LOG_F64(name, x) ((struct log_pair){.type = LOG_VALUE_F64, .key = (name), .f64 = (x)})
#define LOG_END          ((struct log_pair){.type = LOG_VALUE_END})

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, (const struct log_pair[]){__VA_ARGS__, LOG_END})
#define log_info(...)  log_write(LOG_LEVEL_INFO, (const struct log_pair[]){__VA_ARGS__, LOG_END})
#define log_warn(...)  log_write(LOG_LEVEL_WARN, (const struct log_pair[]){__VA_ARGS__, LOG_END})
#define log_error(...) log_write(LOG_LEVEL_ERROR, (const struct log_pair[]){__VA_ARGS__, LOG_END})

/* Sets program name, level and format of all later lines; call once at start. `program` is borrowed
 * for the life of the process. */
void log_init(const char *program, enum log_level min_level, enum log_format format);
/* Changes level and format while the program runs. */
void log_set(enum log_level min_level, enum log_format format);

/* Parses "debug", "info", "warn" or "error" ("kv" or "json"). Any other text returns false and
 * leaves the output untouched. */
bool log_level_parse(const char *text, enum log_level *out_level);
bool log_format_parse(const char *text, enum log_format *out_format);

/* `pairs` ends with LOG_END. A line has at most 4 KiB. A string that does not fit is cut between
 * code points, and later pairs are left out. The line stays valid JSON in that format. A NULL
 * string is written as an empty string. */
void log_write(enum log_level level, const struct log_pair *pairs);
