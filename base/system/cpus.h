/* cpus.h: sets of CPUs: as they are written ("0-7,16-23"), and as the kernel keeps them for a
 * thread. Plain data. Any thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct strbuf;

enum { CPUS_MAX = 4096, CPUS_WORDS = CPUS_MAX / 64 };

/* A zeroed set is empty. */
struct cpus {
    uint64_t words[CPUS_WORDS];
};

static inline bool cpus_has(const struct cpus *set, uint32_t cpu)
{
    return cpu < CPUS_MAX && (set->words[cpu / 64] >> cpu % 64 & 1);
}

/* cpu < CPUS_MAX. */
static inline void cpus_add(struct cpus *set, uint32_t cpu)
{
    set->words[cpu / 64] |= 1ULL << cpu % 64;
}

uint32_t cpus_count(const struct cpus *set);
bool cpus_equal(const struct cpus *a, const struct cpus *b);
/* The first CPU from `from` on; CPUS_MAX: there is none. */
uint32_t cpus_next(const struct cpus *set, uint32_t from);
void cpus_and(struct cpus *set, const struct cpus *other);
void cpus_or(struct cpus *set, const struct cpus *other);
void cpus_remove(struct cpus *set, const struct cpus *other);

/* Reads a list of numbers and ranges parted by commas from *at, up to `end` or a byte that cannot
 * go on with it, and adds them to *set; *at is then the first byte not taken. INVALID_ARGUMENT says
 * what is wrong at which byte of `text`; `what` begins the message. */
int cpus_read(const char *what, const char *text, const char **at, struct cpus *set,
              struct error *err);
/* The whole of `text`; a line end may follow. An empty text is an empty set. */
int cpus_parse(const char *what, const char *text, struct cpus *out, struct error *err);
/* Appends it as cpus_parse() reads it. */
void cpus_format(const struct cpus *set, struct strbuf *out);

/* What the calling thread may run on: its affinity mask, which lies within the cgroup's cpuset. */
int cpus_allowed(struct cpus *out, struct error *err);
/* Confines the calling thread, and those that it starts from then on, or another thread. The kernel
 * refuses a set of which nothing is allowed. */
int cpus_confine(const struct cpus *set, struct error *err);
int cpus_confine_thread(pthread_t thread, const struct cpus *set, struct error *err);
/* Confines every thread of this process, and so all that they start from then on. */
int cpus_confine_process(const struct cpus *set, struct error *err);
