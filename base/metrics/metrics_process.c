#include "base/metrics/metrics_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/metrics/metrics.h"

enum {
    FAMILY_CPU,
    FAMILY_RESIDENT,
    FAMILY_VIRTUAL,
    FAMILY_FDS,
    FAMILY_MAX_FDS,
    FAMILY_THREADS,
    FAMILY_START,
    FAMILY_BUILD,
    N_FAMILIES
};

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_CPU] = {.name = "process_cpu_seconds_total",
                    .help = "User and system CPU time of the process.",
                    .type = METRIC_COUNTER},
    [FAMILY_RESIDENT] = {.name = "process_resident_memory_bytes",
                         .help = "Memory of the process that is in RAM, file pages included.",
                         .type = METRIC_GAUGE},
    [FAMILY_VIRTUAL] = {.name = "process_virtual_memory_bytes",
                        .help = "Address space of the process.",
                        .type = METRIC_GAUGE},
    [FAMILY_FDS] = {.name = "process_open_fds",
                    .help = "Open file descriptors.",
                    .type = METRIC_GAUGE},
    [FAMILY_MAX_FDS] = {.name = "process_max_fds",
                        .help = "Descriptors the process may open.",
                        .type = METRIC_GAUGE},
    [FAMILY_THREADS] = {.name = "process_threads",
                        .help = "Threads of the process.",
                        .type = METRIC_GAUGE},
    [FAMILY_START] = {.name = "process_start_time_seconds",
                      .help = "Start of the process, in seconds since the epoch.",
                      .type = METRIC_GAUGE},
    [FAMILY_BUILD] = {.name = "sluice_build_info",
                      .help = "1, with the program's name and version as labels.",
                      .type = METRIC_GAUGE,
                      .labels = {"program", "version"}},
};

/* Constant after metrics_process_add. A process has one registry and one program name. */
static struct {
    struct metrics_family *families[N_FAMILIES];
    const char *program;
    double start_seconds;
} state;

static ssize_t read_whole(const char *path, char *out, size_t n_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, n_out - 1) : -1;
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n;
}

/* Fields of /proc/self/stat from the third on. The second field, in parentheses, may contain any
 * byte. */
struct stat_fields {
    uint64_t n_threads, start_ticks, virtual_bytes, resident_pages;
};

static bool read_stat(struct stat_fields *out)
{
    enum { FIRST = 3, THREADS = 20, START = 22, VSIZE = 23, RSS = 24 };
    char text[1024];
    if (read_whole("/proc/self/stat", text, sizeof(text)) <= 0)
        return false;
    char *p = strrchr(text, ')');
    if (!p)
        return false;
    p += 2; /* skip ") "; then comes the state, a letter */
    for (int i = FIRST; i <= RSS && *p; i++) {
        char *end = strchr(p, ' ');
        uint64_t value = strtoull(p, NULL, 10);
        if (i == THREADS)
            out->n_threads = value;
        else if (i == START)
            out->start_ticks = value;
        else if (i == VSIZE)
            out->virtual_bytes = value;
        else if (i == RSS)
            out->resident_pages = value;
        p = end ? end + 1 : p + strlen(p);
    }
    return true;
}

static uint64_t count_fds(void)
{
    uint64_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n ? n - 1 : 0; /* without the descriptor of the listing itself */
}

static void collect(void *arg, struct metrics_sink *sink)
{
    struct timespec cpu = {0};
    struct rlimit fds = {0};
    struct stat_fields fields = {0};
    const char *const build[] = {state.program, SLUICE_VERSION};
    (void)arg;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    metrics_sample(sink, state.families[FAMILY_CPU], NULL,
                   (double)cpu.tv_sec + (double)cpu.tv_nsec / NS_PER_S);
    if (read_stat(&fields)) {
        metrics_sample(sink, state.families[FAMILY_RESIDENT], NULL,
                       (double)fields.resident_pages * (double)sysconf(_SC_PAGESIZE));
        metrics_sample(sink, state.families[FAMILY_VIRTUAL], NULL, (double)fields.virtual_bytes);
        metrics_sample(sink, state.families[FAMILY_THREADS], NULL, (double)fields.n_threads);
    }
    metrics_sample(sink, state.families[FAMILY_FDS], NULL, (double)count_fds());
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        metrics_sample(sink, state.families[FAMILY_MAX_FDS], NULL, (double)fds.rlim_cur);
    metrics_sample(sink, state.families[FAMILY_START], NULL, state.start_seconds);
    metrics_sample(sink, state.families[FAMILY_BUILD], build, 1);
}

int metrics_process_add(struct metrics *metrics, const char *program, struct error *err)
{
    struct stat_fields fields = {0};
    struct timespec booted = {0};
    state.program = program;
    read_stat(&fields);
    clock_gettime(CLOCK_BOOTTIME, &booted);
    double since_boot = (double)booted.tv_sec + (double)booted.tv_nsec / NS_PER_S;
    double age = since_boot - (double)fields.start_ticks / (double)sysconf(_SC_CLK_TCK);
    state.start_seconds = (double)clock_wall_ns() / NS_PER_S - age;
    if (metrics_add(metrics, specs, N_FAMILIES, state.families, err) != 0)
        return err->status;
    return metrics_add_collector(metrics, collect, NULL, err);
}
