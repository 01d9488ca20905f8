/* cpus.h: sets of CPUs, as text ("0-7,16-23") and as the kernel's affinity masks. Plain data. Any
 * thread. */
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
/* Returns the first CPU ≥ `from`, or CPUS_MAX if there is none. */
uint32_t cpus_next(const struct cpus *set, uint32_t from);
void cpus_and(struct cpus *set, const struct cpus *other);
void cpus_or(struct cpus *set, const struct cpus *other);
void cpus_remove(struct cpus *set, const struct cpus *other);

/* Parses a list of comma-separated numbers and ranges at *at and adds the CPUs to *set. Parsing
 * ends at the end of the text or at a byte that cannot continue the list. *at then points to the
 * first byte that was not parsed. INVALID_ARGUMENT names the error and the byte of `text`; the
 * message begins with `what`. */
int cpus_read(const char *what, const char *text, const char **at, struct cpus *set,
              struct error *err);
/* Parses all of `text`; a line end may follow. An empty text is an empty set. */
int cpus_parse(const char *what, const char *text, struct cpus *out, struct error *err);
/* Appends the set in the form that cpus_parse() reads. */
void cpus_format(const struct cpus *set, struct strbuf *out);

/* Gets the CPUs that the calling thread may run on: its affinity mask, which lies within the
 * cgroup's cpuset. */
int cpus_allowed(struct cpus *out, struct error *err);
/* Confine the calling thread (and threads that it starts later), or another thread. The kernel
 * refuses a set without any allowed CPU. */
int cpus_confine(const struct cpus *set, struct error *err);
int cpus_confine_thread(pthread_t thread, const struct cpus *set, struct error *err);
/* Confines every thread of this process, and so all threads that they start later. */
int cpus_confine_process(const struct cpus *set, struct error *err);
