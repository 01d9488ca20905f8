#include "base/system/cpus.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"

uint32_t cpus_count(const struct cpus *set)
{
    uint32_t n = 0;
    for (int i = 0; i < CPUS_WORDS; i++)
        n += (uint32_t)__builtin_popcountll(set->words[i]);
    return n;
}

bool cpus_equal(const struct cpus *a, const struct cpus *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

uint32_t cpus_next(const struct cpus *set, uint32_t from)
{
    for (uint32_t i = from / 64; i < CPUS_WORDS; i++) {
        uint64_t word = set->words[i];
        if (i == from / 64)
            word &= ~0ULL << from % 64;
        if (word)
            return i * 64 + (uint32_t)__builtin_ctzll(word);
    }
    return CPUS_MAX;
}

void cpus_and(struct cpus *set, const struct cpus *other)
{
    for (int i = 0; i < CPUS_WORDS; i++)
        set->words[i] &= other->words[i];
}

void cpus_or(struct cpus *set, const struct cpus *other)
{
    for (int i = 0; i < CPUS_WORDS; i++)
        set->words[i] |= other->words[i];
}

void cpus_remove(struct cpus *set, const struct cpus *other)
{
    for (int i = 0; i < CPUS_WORDS; i++)
        set->words[i] &= ~other->words[i];
}

static int read_cpu(const char *what, const char *text, const char **at, uint32_t *out,
                    struct error *err)
{
    uint32_t cpu = 0;
    const char *digit = *at;
    for (; *digit >= '0' && *digit <= '9'; digit++)
        cpu = cpu < CPUS_MAX ? cpu * 10 + (uint32_t)(*digit - '0') : cpu;
    if (digit == *at)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: \"%.60s\": no CPU number at byte %td",
                         what, text, *at - text);
    if (cpu >= CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: \"%.60s\": CPU at byte %td: numbers go from 0 to %d", what, text,
                         *at - text, CPUS_MAX - 1);
    *at = digit;
    *out = cpu;
    return 0;
}

int cpus_read(const char *what, const char *text, const char **at, struct cpus *set,
              struct error *err)
{
    for (;; (*at)++) {
        uint32_t first = 0, last = 0;
        const char *begin = *at;
        int rc = read_cpu(what, text, at, &first, err);
        last = first;
        if (!rc && **at == '-') {
            (*at)++;
            rc = read_cpu(what, text, at, &last, err);
        }
        if (rc)
            return rc;
        if (last < first)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: \"%.60s\": the range at byte %td runs from %u back to %u", what,
                             text, begin - text, first, last);
        for (uint32_t cpu = first; cpu <= last; cpu++)
            cpus_add(set, cpu);
        /* After a comma the caller may accept something else than a number. */
        if (**at != ',' || (*at)[1] < '0' || (*at)[1] > '9')
            return 0;
    }
}

int cpus_parse(const char *what, const char *text, struct cpus *out, struct error *err)
{
    struct cpus set = {{0}};
    const char *at = text;
    if (*at && *at != '\n') {
        int rc = cpus_read(what, text, &at, &set, err);
        if (rc)
            return rc;
    }
    if (*at == '\n')
        at++;
    if (*at)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: \"%.60s\": byte %td does not belong to a list of CPUs", what, text,
                         at - text);
    *out = set;
    return 0;
}

void cpus_format(const struct cpus *set, struct strbuf *out)
{
    const char *comma = "";
    for (uint32_t first = cpus_next(set, 0); first < CPUS_MAX;) {
        uint32_t last = first;
        while (cpus_has(set, last + 1))
            last++;
        strbuf_printf(out, last > first ? "%s%u-%u" : "%s%u", comma, first, last);
        comma = ",";
        first = cpus_next(set, last + 1);
    }
}

int cpus_allowed(struct cpus *out, struct error *err)
{
    struct cpus set = {{0}};
    /* A system call, because the C library's set ends at 1,024 CPUs. The call returns the number of
     * bytes written. */
    if (syscall(SYS_sched_getaffinity, 0, sizeof(set.words), set.words) < 0)
        return error_errno(err, errno, "cannot get the allowed CPUs");
    *out = set;
    return 0;
}

static int refused(int err_no, const struct cpus *set, struct error *err)
{
    struct strbuf text;
    strbuf_init(&text, 128);
    cpus_format(set, &text);
    error_errno(err, err_no, "cannot confine a thread to CPUs %s", strbuf_str(&text));
    strbuf_fini(&text);
    return err->status;
}

int cpus_confine(const struct cpus *set, struct error *err)
{
    if (syscall(SYS_sched_setaffinity, 0, sizeof(set->words), set->words) != 0)
        return refused(errno, set, err);
    return 0;
}

int cpus_confine_thread(pthread_t thread, const struct cpus *set, struct error *err)
{
    int rc = pthread_setaffinity_np(thread, sizeof(set->words),
                                    (const cpu_set_t *)(const void *)set->words);
    return rc ? refused(rc, set, err) : 0;
}

/* Confines the present threads to `set`. *out_n_elsewhere counts threads that could have run
 * elsewhere. */
static int confine_tasks(const struct cpus *set, uint32_t *out_n_elsewhere, struct error *err)
{
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks)
        return error_errno(err, errno, "/proc/self/task");
    const struct dirent *entry;
    int rc = 0;
    while (!rc && (entry = readdir(tasks)) != NULL) {
        struct cpus now = {{0}};
        int thread = entry->d_name[0] == '.' ? 0 : (int)strtol(entry->d_name, NULL, 10);
        if (!thread || syscall(SYS_sched_getaffinity, thread, sizeof(now.words), now.words) < 0)
            continue; /* the thread has ended */
        cpus_remove(&now, set);
        if (syscall(SYS_sched_setaffinity, thread, sizeof(set->words), set->words) == 0)
            *out_n_elsewhere += cpus_next(&now, 0) < CPUS_MAX;
        else if (errno != ESRCH)
            rc = refused(errno, set, err);
    }
    closedir(tasks);
    return rc;
}

int cpus_confine_process(const struct cpus *set, struct error *err)
{
    uint32_t n_elsewhere;
    int rc;
    do { /* a thread that was free until now may have started another thread during the walk */
        n_elsewhere = 0;
        rc = confine_tasks(set, &n_elsewhere, err);
    } while (!rc && n_elsewhere);
    return rc;
}
