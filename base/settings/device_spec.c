#include "base/settings/device_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Decoding reads 2.4 TB/s on an H100: docs/log/2026-11-27-gpu-h200.md has 148 tokens/s of an 8B
 * model in bf16. The other GPUs have the same share of their nominal bandwidth. Products are the
 * measured ones (H100, H200), or 0.8 of the nominal figure. Links are 0.85 of NVLink's nominal
 * figure in one direction. Latencies are estimates: no collective ran on several GPUs yet.
 *
 * A core of a CPU reads as much as a server core of 2023 does. Figures of CPUs differ by factors,
 * so a measured read= and compute= should replace them. */
static const struct device_spec kinds[] = {
    {.kind = "h100",
     .is_gpu = true,
     .memory_bytes = 84e9,
     .read_bytes_s = 2.4e12,
     .ops_s = 680e12,
     .link_bytes_s = 380e9,
     .latency_s = 6e-6,
     .net_bytes_s = 40e9,
     .net_latency_s = 15e-6,
     .step_s = 100e-6},
    {.kind = "h200",
     .is_gpu = true,
     .memory_bytes = 149e9,
     .read_bytes_s = 3.4e12,
     .ops_s = 665e12,
     .link_bytes_s = 380e9,
     .latency_s = 6e-6,
     .net_bytes_s = 40e9,
     .net_latency_s = 15e-6,
     .step_s = 100e-6},
    {.kind = "a100",
     .is_gpu = true,
     .memory_bytes = 84e9,
     .read_bytes_s = 1.45e12,
     .ops_s = 250e12,
     .link_bytes_s = 255e9,
     .latency_s = 8e-6,
     .net_bytes_s = 20e9,
     .net_latency_s = 15e-6,
     .step_s = 100e-6},
    /* any other GPU: the word gives memory, read and compute */
    {.kind = "gpu",
     .is_gpu = true,
     .link_bytes_s = 20e9,
     .latency_s = 15e-6,
     .net_bytes_s = 10e9,
     .net_latency_s = 20e-6,
     .step_s = 100e-6},
    {.kind = "cpu",
     .read_bytes_s = 12e9,
     .shared_bytes_s = 200e9,
     .ops_s = 0.5e12,
     .link_bytes_s = 8e9,
     .latency_s = 3e-6,
     .net_bytes_s = 1e9,
     .net_latency_s = 50e-6,
     .step_s = 50e-6},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]), SHOWN = 60 };

struct key {
    const char *name;
    size_t offset;
    double unit, min, max;
};

#define AT(field) offsetof(struct device_spec, field)
static const struct key keys[] = {
    {"memory", AT(memory_bytes), 1, 1e6, 1e15},   {"read", AT(read_bytes_s), 1, 1e6, 1e15},
    {"shared", AT(shared_bytes_s), 1, 1e6, 1e15}, {"compute", AT(ops_s), 1, 1e6, 1e18},
    {"link", AT(link_bytes_s), 1, 1e6, 1e15},     {"latency", AT(latency_s), 1e-6, 0, 1e6},
    {"net", AT(net_bytes_s), 1, 1e3, 1e15},       {"netlatency", AT(net_latency_s), 1e-6, 0, 1e6},
    {"step", AT(step_s), 1e-6, 0, 1e6},
};

enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

static int shown(size_t n)
{
    return n < SHOWN ? (int)n : SHOWN;
}

static const struct device_spec *find_kind(const char *word, size_t n)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (strlen(kinds[i].kind) == n && memcmp(kinds[i].kind, word, n) == 0)
            return &kinds[i];
    return NULL;
}

/* Takes "8x" from the begin of the word. Returns false if it begins otherwise. */
static bool take_count(const char **at, const char *end, uint32_t *out)
{
    const char *c = *at;
    uint32_t count = 0;
    for (; c < end && *c >= '0' && *c <= '9'; c++)
        count = count > DEVICE_SPEC_MAX_DEVICES ? count : count * 10 + (uint32_t)(*c - '0');
    if (c == *at || c >= end || *c != 'x')
        return false;
    *out = count;
    *at = c + 1;
    return true;
}

static const char *head_end(const char *word, size_t n)
{
    const char *colon = n ? memchr(word, ':', n) : NULL;
    return colon ? colon : word + n;
}

bool device_spec_is_description(const char *word, size_t n)
{
    const char *at = word, *end = head_end(word, n);
    uint32_t count;
    bool counted = take_count(&at, end, &count);
    return counted || find_kind(at, (size_t)(end - at));
}

/* A positive number with a suffix. Returns false for any other text. */
static bool read_value(const char *text, size_t n, double *out)
{
    static const char units[] = "KMGTP";
    char copy[32], *end;
    if (!n || n >= sizeof(copy) || text[0] < '0' || text[0] > '9')
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    *out = strtod(copy, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (long i = unit ? unit - units + 1 : 0; i > 0; i--)
        *out *= 1000;
    return strspn(copy, "0123456789.") == (size_t)(end - copy) && !end[unit ? 1 : 0];
}

static int take_name(const char *value, size_t n, struct device_spec *out, struct error *err)
{
    if (!n || n >= sizeof(out->name))
        return error_field(err, "groups", "name=%.*s: must have 1 to %d bytes", shown(n), value,
                           DEVICE_SPEC_NAME_BYTES - 1);
    snprintf(out->name, sizeof(out->name), "%.*s", (int)n, value);
    return 0;
}

static int take_key(const char *part, size_t n, struct device_spec *out, struct error *err)
{
    const char *equals = n ? memchr(part, '=', n) : NULL;
    size_t n_name = equals ? (size_t)(equals - part) : n;
    size_t n_value = equals ? n - n_name - 1 : 0;
    double value = 0;
    if (equals && n_name == 4 && memcmp(part, "name", 4) == 0)
        return take_name(equals + 1, n_value, out, err);
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        if (strlen(key->name) != n_name || memcmp(key->name, part, n_name) != 0)
            continue;
        if (!equals || !read_value(equals + 1, n_value, &value) || value < key->min ||
            value > key->max)
            return error_field(err, "groups",
                               "%.*s: the value must be a number from %g to %g, like 80G", shown(n),
                               part, key->min, key->max);
        if (out->is_gpu && key->offset == AT(shared_bytes_s))
            return error_field(err, "groups", "%.*s: only cores of a CPU share a memory", shown(n),
                               part);
        *(double *)(void *)((char *)out + key->offset) = value * key->unit;
        return 0;
    }
    return error_field(err, "groups",
                       "\"%.*s\" is no key; use memory, read, shared, compute, link, latency, "
                       "net, netlatency, step or name, like memory=80G",
                       shown(n_name), part);
}

/* A described GPU of no known kind has no figures of its own. */
static int check_figures(const struct device_spec *spec, struct error *err)
{
    const char *missing = spec->memory_bytes <= 0   ? "memory"
                          : spec->read_bytes_s <= 0 ? "read"
                          : spec->ops_s <= 0        ? "compute"
                                                    : NULL;
    if (!missing || !spec->is_gpu)
        return 0;
    return error_field(err, "groups",
                       "%s: kind %s has no figure for %s=; give it, like "
                       "2xgpu:memory=48G:read=700G:compute=180T",
                       spec->name, spec->kind, missing);
}

static int take_head(const char *word, const char *end, struct device_spec *out, struct error *err)
{
    const char *at = word;
    uint32_t first = 0, second = 0;
    bool one = take_count(&at, end, &first), two = one && take_count(&at, end, &second);
    const struct device_spec *kind = find_kind(at, (size_t)(end - at));
    uint32_t n_machines = two ? first : 1, n_devices = two ? second : first;
    if (!kind)
        return error_field(err, "groups",
                           "\"%.*s\": kind \"%.*s\" is not known; use h100, h200, a100, gpu or "
                           "cpu, like 8xh100",
                           shown((size_t)(end - word)), word, shown((size_t)(end - at)), at);
    if ((one && !first) || (two && !second) || n_machines > DEVICE_SPEC_MAX_DEVICES ||
        n_devices > DEVICE_SPEC_MAX_DEVICES)
        return error_field(err, "groups", "\"%.*s\": counts must be in 1..%d",
                           shown((size_t)(end - word)), word, DEVICE_SPEC_MAX_DEVICES);
    if (!kind->is_gpu && n_machines > 1)
        return error_field(err, "groups",
                           "\"%.*s\": ranks on the CPU share a machine; describe one, like 8xcpu",
                           shown((size_t)(end - word)), word);
    *out = *kind;
    out->n_machines = n_machines;
    out->n_devices = kind->is_gpu && !one ? 1 : n_devices;
    snprintf(out->name, sizeof(out->name), "%.*s", shown((size_t)(end - word)), word);
    return 0;
}

int device_spec_parse(const char *word, size_t n, struct device_spec *out, struct error *err)
{
    const char *end = word + n, *at = head_end(word, n);
    int rc = take_head(word, at, out, err);
    while (!rc && at < end) {
        const char *part = at + 1;
        at = head_end(part, (size_t)(end - part));
        rc = take_key(part, (size_t)(at - part), out, err);
    }
    return rc ? rc : check_figures(out, err);
}

const char *device_spec_kind_of(const char *product)
{
    static const char *const names[][2] = {{"H100", "h100"}, {"H200", "h200"}, {"A100", "a100"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strstr(product, names[i][0]))
            return names[i][1];
    return NULL;
}
