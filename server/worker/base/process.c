#include "server/worker/base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ONE_SHOT_CPU_S = 60, ONE_SHOT_CPU_HARD_S = 70, OPEN_FILES = 8192 };
/* Added to oom_score_adj, whose unit is 1/1,000 of the memory of the machine or cgroup. So a worker
 * counts as larger by half of that memory. A manager or server never grows so large. */
enum { OOM_SCORE_ABOVE = 500, OOM_SCORE_MAX = 1000 };

static void limit(int resource, rlim_t soft, rlim_t hard)
{
    struct rlimit old;
    if (getrlimit((__rlimit_resource_t)resource, &old) == 0 && old.rlim_max < hard)
        hard = old.rlim_max; /* the parent has set a lower limit */
    struct rlimit value = {.rlim_cur = soft < hard ? soft : hard, .rlim_max = hard};
    setrlimit((__rlimit_resource_t)resource, &value);
}

/* Lets the kernel kill this process before others when memory runs out. A higher score needs no
 * privilege. The score does not matter if the file cannot be written. */
static void raise_oom_score(void)
{
    char text[16];
    FILE *file = fopen("/proc/self/oom_score_adj", "r+e");
    if (!file)
        return;
    if (fgets(text, sizeof(text), file)) {
        long adj = strtol(text, NULL, 10) + OOM_SCORE_ABOVE;
        rewind(file);
        fprintf(file, "%ld", adj < OOM_SCORE_MAX ? adj : OOM_SCORE_MAX);
    }
    fclose(file);
}

/* Each reader of a model opens all of its files, up to 2,048 (checkpoint_files.h). */
static void allow_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= OPEN_FILES)
        return;
    files.rlim_cur = files.rlim_max < OPEN_FILES ? files.rlim_max : OPEN_FILES;
    setrlimit(RLIMIT_NOFILE, &files);
}

void process_harden(bool one_shot)
{
    struct stat st;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    limit(RLIMIT_CORE, 0, 0);
    raise_oom_score();
    allow_files();
    if (!one_shot)
        return;
    limit(RLIMIT_CPU, ONE_SHOT_CPU_S, ONE_SHOT_CPU_HARD_S);
    if (fstat(STDOUT_FILENO, &st) == 0 && !S_ISREG(st.st_mode))
        limit(RLIMIT_FSIZE, 0, 0);
}

uint64_t process_start_ticks(void)
{
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return 0;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    /* The second field is the program's name in parentheses, with any characters. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Returns the value of a "Name:   123 kB" line of a /proc file, in bytes. */
static uint64_t kilobytes(const char *path, const char *name)
{
    char line[256];
    uint64_t bytes = 0;
    size_t n_name = strlen(name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, name, n_name) == 0 && line[n_name] == ':') {
            bytes = strtoull(line + n_name + 1, NULL, 10) * 1024;
            break;
        }
    fclose(file);
    return bytes;
}

uint64_t process_memory_bytes(void)
{
    return kilobytes("/proc/self/status", "RssAnon") + kilobytes("/proc/self/status", "RssShmem");
}
