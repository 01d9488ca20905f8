/* fuzz_config.c: fuzzes a config file for a table with every type of option. The file lies in
 * memory. A refusal must have a text, and an accepted value must lie within its bounds. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/settings/options.h"

struct settings {
    const char *text;
    bool flag;
    uint64_t count, time_ms;
    double factor;
};

static const struct option_spec specs[] = {
    {"text", 't', OPTION_STRING, offsetof(struct settings, text), "x", "TEXT", "a text", 0, 0},
    {"flag", 0, OPTION_BOOL, offsetof(struct settings, flag), "false", NULL, "a flag", 0, 0},
    {"max-count", 0, OPTION_U64, offsetof(struct settings, count), "4M", "N", "a count", 16,
     1 << 30},
    {"wait-time", 0, OPTION_MS, offsetof(struct settings, time_ms), "10s", "TIME", "a time", 5,
     3600000},
    {"factor", 0, OPTION_F64, offsetof(struct settings, factor), "1.5", "X", "a factor", 0, 0},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    struct settings s;
    struct options *options = NULL;
    struct error err;
    if (fd < 0)
        fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    char program[] = "fuzz", flag[] = "--config";
    char *argv[] = {program, flag, path, NULL};
    error_clear(&err);
    int rc =
        options_parse("fuzz", specs, sizeof(specs) / sizeof(specs[0]), 3, argv, &s, &options, &err);
    if (rc != 0) {
        if (err.status != rc || !err.message[0])
            abort();
        return 0;
    }
    if (!s.text || s.count < 16 || s.count > 1 << 30 || s.time_ms < 5 || s.time_ms > 3600000 ||
        !isfinite(s.factor))
        abort();
    options_destroy(options);
    return 0;
}
