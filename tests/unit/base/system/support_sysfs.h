/* support_sysfs.h: trees like /sys in a folder of their own, for machines that are not there. */
#pragma once

#include <stdint.h>

#include "base/system/cpus.h"

/* Nodes per package, domains (one last-level cache each) per node, cores per domain, threads per
 * core. Cores are numbered first, in this order, then their second threads, as Linux does. */
struct sysfs_machine {
    uint32_t n_packages, n_nodes, n_domains, n_cores, n_threads;
};

char *sysfs_create(void); /* an empty folder; NULL-terminated path, owned */
void sysfs_destroy(char *root);
/* Writes a file below root and makes the folders to it; text NULL: removes it. */
void sysfs_put(const char *root, const char *path, const char *text);
void sysfs_putf(const char *root, const char *text, const char *path_format, ...)
    __attribute__((format(printf, 3, 4)));
void sysfs_make(const char *root, const struct sysfs_machine *machine);

/* sysfs_cpus() returns the CPUs of a list such as "0-3,8". sysfs_assert_cpus() fails the test
 * unless the set has exactly these CPUs. */
struct cpus sysfs_cpus(const char *list);
void sysfs_assert_cpus(const struct cpus *set, const char *list);
