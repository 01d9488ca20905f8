#include "base/format.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

const char *format_bytes(uint64_t n_bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n_bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

const char *format_ms(uint64_t ms, char out[32])
{
    if (ms < 1000)
        snprintf(out, 32, "%" PRIu64 " ms", ms);
    else if (ms < 120000)
        snprintf(out, 32, "%.1f s", (double)ms / 1000);
    else if (ms < 7200000)
        snprintf(out, 32, "%" PRIu64 " min", ms / 60000);
    else
        snprintf(out, 32, "%" PRIu64 " h", ms / 3600000);
    return out;
}

const char *format_latency(double ms, char out[32])
{
    bool seconds = ms >= 999.5;
    double value = seconds ? ms / 1000 : ms;
    snprintf(out, 32, "%.*f %s",
             value < 9.995   ? 2
             : value < 99.95 ? 1
                             : 0,
             value, seconds ? "s" : "ms");
    return out;
}
