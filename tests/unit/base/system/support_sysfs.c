#include "tests/unit/base/system/support_sysfs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ftw.h>

#include "base/error.h"
#include "tests/unit/base/support_cmocka.h"

char *sysfs_create(void)
{
    char *root = strdup("/tmp/sluice_sysfs_XXXXXX");
    assert_non_null(mkdtemp(root));
    return root;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void sysfs_destroy(char *root)
{
    assert_int_equal(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(root);
}

void sysfs_put(const char *root, const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    if (!text) {
        assert_int_equal(remove(full), 0);
        return;
    }
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

void sysfs_putf(const char *root, const char *text, const char *path_format, ...)
{
    char path[512];
    va_list args;
    va_start(args, path_format);
    vsnprintf(path, sizeof(path), path_format, args);
    va_end(args);
    sysfs_put(root, path, text);
}

/* Returns a list such as "0-3,16-19": CPUs first … first + n - 1, and their sibling threads. */
static const char *threads_of(const struct sysfs_machine *m, uint32_t first, uint32_t n)
{
    static char text[512];
    uint32_t all = m->n_packages * m->n_nodes * m->n_domains * m->n_cores;
    size_t at = 0;
    for (uint32_t t = 0; t < m->n_threads; t++) {
        uint32_t a = t * all + first, b = a + n - 1;
        at += (size_t)snprintf(text + at, sizeof(text) - at, b > a ? "%s%u-%u" : "%s%u",
                               t ? "," : "", a, b);
    }
    snprintf(text + at, sizeof(text) - at, "\n");
    return text;
}

static void put_cache(const char *root, const struct sysfs_machine *m, uint32_t cpu, uint32_t index,
                      const char *level, const char *type, const char *size, uint32_t first,
                      uint32_t n)
{
    const char *base = "devices/system/cpu";
    sysfs_putf(root, level, "%s/cpu%u/cache/index%u/level", base, cpu, index);
    sysfs_putf(root, type, "%s/cpu%u/cache/index%u/type", base, cpu, index);
    sysfs_putf(root, size, "%s/cpu%u/cache/index%u/size", base, cpu, index);
    sysfs_putf(root, threads_of(m, first, n), "%s/cpu%u/cache/index%u/shared_cpu_list", base, cpu,
               index);
}

void sysfs_make(const char *root, const struct sysfs_machine *m)
{
    uint32_t per_node = m->n_domains * m->n_cores, n_nodes = m->n_packages * m->n_nodes;
    uint32_t n_cores = per_node * n_nodes;
    char text[64];
    snprintf(text, sizeof(text), "0-%u\n", n_cores * m->n_threads - 1);
    sysfs_put(root, "devices/system/cpu/online", text);
    for (uint32_t cpu = 0; cpu < n_cores * m->n_threads; cpu++) {
        uint32_t core = cpu % n_cores, domain = core / m->n_cores * m->n_cores;
        sysfs_putf(root, threads_of(m, core, 1),
                   "devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        snprintf(text, sizeof(text), "%u\n", core / (per_node * m->n_nodes));
        sysfs_putf(root, text, "devices/system/cpu/cpu%u/topology/physical_package_id", cpu);
        put_cache(root, m, cpu, 0, "1\n", "Data\n", "32K\n", core, 1);
        put_cache(root, m, cpu, 1, "1\n", "Instruction\n", "32K\n", core, 1);
        put_cache(root, m, cpu, 2, "2\n", "Unified\n", "1024K\n", core, 1);
        put_cache(root, m, cpu, 3, "3\n", "Unified\n", "32768K\n", domain, m->n_cores);
    }
    snprintf(text, sizeof(text), "0-%u\n", n_nodes - 1);
    sysfs_put(root, "devices/system/node/online", text);
    for (uint32_t node = 0; node < n_nodes; node++)
        sysfs_putf(root, threads_of(m, node * per_node, per_node),
                   "devices/system/node/node%u/cpulist", node);
}

struct cpus sysfs_cpus(const char *list)
{
    struct cpus set;
    struct error err;
    assert_int_equal(cpus_parse("list", list, &set, &err), 0);
    return set;
}

void sysfs_assert_cpus(const struct cpus *set, const char *list)
{
    struct cpus wanted = sysfs_cpus(list);
    assert_true(cpus_equal(set, &wanted));
}
