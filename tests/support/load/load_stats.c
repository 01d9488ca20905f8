#include "tests/support/load/load_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static void read_stat(int pid, struct process_usage *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    const char *at = strrchr(text, ')');
    unsigned long long ticks = 0;
    for (int field = 2; at && field < 24; field++) {
        at = strchr(at + 1, ' ');
        if (at && (field + 1 == 14 || field + 1 == 15))
            ticks += strtoull(at + 1, NULL, 10);
        if (at && field + 1 == 20)
            out->n_threads = strtoull(at + 1, NULL, 10);
        if (at && field + 1 == 24)
            out->rss_bytes = strtoull(at + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    out->cpu_ns =
        (int64_t)(ticks * (unsigned long long)NS_PER_S / (unsigned long long)sysconf(_SC_CLK_TCK));
}

void process_usage_read(int pid, struct process_usage *out_usage)
{
    char path[64];
    memset(out_usage, 0, sizeof(*out_usage));
    read_stat(pid, out_usage);
    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        out_usage->n_fds++;
    if (dir)
        closedir(dir);
    out_usage->n_fds -= out_usage->n_fds >= 2 ? 2 : 0; /* . and .. */
}
