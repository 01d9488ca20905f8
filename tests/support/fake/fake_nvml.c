/* fake_nvml.c: a libnvidia-ml.so.1 without GPUs, for SLUICE_NVML_LIBRARY. SLUICE_FAKE_NVML names a
 * file that every call reads again. A line each:
 *
 *     init=N        nvmlInit answers N
 *     waits=N       waiting for events answers N, at once
 *     silent        no GPU reports events
 *     hangs         the call for memory does not return
 *     gpu I WORDS   describes GPU I; words: uuid=TEXT bus=TEXT name=TEXT total=BYTES used=BYTES
 *                   busy=PERCENT membusy=PERCENT heat=C power=MW limit=MW sm=MHZ mem=MHZ
 *                   throttle=BITS ecc1=N ecc2=N gone=N (every call answers N)
 *     xid I N       GPU I had the Xid N
 *     process I PID BYTES   the process has memory of GPU I
 *
 * Figures that have no word are not supported. Each Xid is reported once, in the order of the
 * lines. Xids that the file has when events are first requested are history and not reported. With
 * FAKE_NVML_OLD the library is that of an old driver: throttle reasons have their older name, and
 * there are no events. With FAKE_NVML_BROKEN the library lacks required functions. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, MAX_GPUS = 16, LINE = 1024 };

static int gpus[MAX_GPUS]; /* the handle of GPU i is &gpus[i] */

static FILE *scenario(void)
{
    const char *path = getenv("SLUICE_FAKE_NVML");
    return path ? fopen(path, "re") : NULL;
}

/* "name=" as a word of a line. */
static bool word(const char *line, const char *name, char *out, size_t n_bytes)
{
    size_t n = strlen(name);
    for (const char *at = line; (at = strstr(at, name)) != NULL; at += n)
        if (at == line || at[-1] == ' ') {
            size_t length = strcspn(at + n, " \n");
            snprintf(out, n_bytes, "%.*s", (int)length, at + n);
            return true;
        }
    return false;
}

static bool find_line(const char *begin, char line[LINE])
{
    FILE *file = scenario();
    bool found = false;
    while (file && !found && fgets(line, LINE, file))
        found = strncmp(line, begin, strlen(begin)) == 0;
    if (file)
        fclose(file);
    return found;
}

static unsigned index_of(void *device)
{
    return (unsigned)((int *)device - gpus);
}

static int text(void *device, const char *name, char *out, unsigned n_bytes)
{
    char line[LINE], begin[32], value[32];
    snprintf(begin, sizeof(begin), "gpu %u ", index_of(device));
    if (!find_line(begin, line))
        return INVALID;
    if (word(line, "gone=", value, sizeof(value)))
        return (int)strtol(value, NULL, 10);
    return word(line, name, out, n_bytes) ? OK : NOT_SUPPORTED;
}

static int number(void *device, const char *name, unsigned long long *out)
{
    char value[32];
    int rc = text(device, name, value, sizeof(value));
    if (rc == OK)
        *out = strtoull(value, NULL, 0);
    return rc;
}

static int small(void *device, const char *name, unsigned *out)
{
    unsigned long long value;
    int rc = number(device, name, &value);
    if (rc == OK)
        *out = (unsigned)value;
    return rc;
}

static int answer(const char *name, int otherwise)
{
    char line[LINE];
    return find_line(name, line) ? (int)strtol(line + strlen(name), NULL, 10) : otherwise;
}

#define EXPORT __attribute__((visibility("default")))
#define FUNCTION(name, ...)                                                                        \
    EXPORT int name(__VA_ARGS__);                                                                  \
    EXPORT int name(__VA_ARGS__)

FUNCTION(nvmlInit_v2, void)
{
    return answer("init=", OK);
}

FUNCTION(nvmlShutdown, void)
{
    return OK;
}

EXPORT const char *nvmlErrorString(int code);
EXPORT const char *nvmlErrorString(int code)
{
    return code == 9    ? "Driver Not Loaded"
           : code == 15 ? "GPU is lost"
           : code == 16 ? "GPU requires reset"
                        : "Unknown Error";
}

FUNCTION(nvmlDeviceGetCount_v2, unsigned *out)
{
    char line[LINE], begin[32];
    for (*out = 0; *out < MAX_GPUS; (*out)++) {
        snprintf(begin, sizeof(begin), "gpu %u ", *out);
        if (!find_line(begin, line))
            break;
    }
    return OK;
}

#ifndef FAKE_NVML_BROKEN
FUNCTION(nvmlDeviceGetHandleByIndex_v2, unsigned index, void **out)
{
    if (index >= MAX_GPUS)
        return INVALID;
    *out = &gpus[index];
    return OK;
}
#endif

FUNCTION(nvmlSystemGetDriverVersion, char *out, unsigned n_bytes)
{
    snprintf(out, n_bytes, "580.0.fake");
    return OK;
}

FUNCTION(nvmlDeviceGetName, void *device, char *out, unsigned n_bytes)
{
    return text(device, "name=", out, n_bytes);
}

FUNCTION(nvmlDeviceGetUUID, void *device, char *out, unsigned n_bytes)
{
    return text(device, "uuid=", out, n_bytes);
}

struct pci_info {
    char legacy[16];
    unsigned numbers[5];
    char bus_id[32];
};

FUNCTION(nvmlDeviceGetPciInfo_v3, void *device, struct pci_info *out)
{
    return text(device, "bus=", out->bus_id, sizeof(out->bus_id));
}

FUNCTION(nvmlDeviceGetMemoryInfo, void *device, unsigned long long out[3])
{
    char line[LINE];
    while (find_line("hangs", line))
        pause();
    int rc = number(device, "total=", &out[0]);
    if (rc == OK)
        rc = number(device, "used=", &out[2]);
    if (rc == OK)
        out[1] = out[0] - out[2];
    return rc;
}

FUNCTION(nvmlDeviceGetUtilizationRates, void *device, unsigned out[2])
{
    int rc = small(device, "busy=", &out[0]);
    return rc == OK ? small(device, "membusy=", &out[1]) : rc;
}

FUNCTION(nvmlDeviceGetTemperature, void *device, int sensor, unsigned *out)
{
    return sensor == 0 ? small(device, "heat=", out) : INVALID;
}

FUNCTION(nvmlDeviceGetPowerUsage, void *device, unsigned *out)
{
    return small(device, "power=", out);
}

FUNCTION(nvmlDeviceGetEnforcedPowerLimit, void *device, unsigned *out)
{
    return small(device, "limit=", out);
}

FUNCTION(nvmlDeviceGetClockInfo, void *device, int clock, unsigned *out)
{
    return small(device, clock == 1 ? "sm=" : "mem=", out);
}

FUNCTION(nvmlDeviceGetTotalEccErrors, void *device, int kind, int counter, unsigned long long *out)
{
    return counter != 0 ? INVALID : number(device, kind == 0 ? "ecc1=" : "ecc2=", out);
}

#ifdef FAKE_NVML_OLD
FUNCTION(nvmlDeviceGetCurrentClocksThrottleReasons, void *device, unsigned long long *out)
{
    return number(device, "throttle=", out);
}
#else
FUNCTION(nvmlDeviceGetCurrentClocksEventReasons, void *device, unsigned long long *out)
{
    return number(device, "throttle=", out);
}

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
};

FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, void *device, unsigned *n,
         struct process_info *out)
{
    char line[LINE], begin[32];
    unsigned capacity = *n;
    FILE *file = scenario();
    snprintf(begin, sizeof(begin), "process %u ", index_of(device));
    for (*n = 0; file && *n < capacity && fgets(line, sizeof(line), file);) {
        char *end;
        if (strncmp(line, begin, strlen(begin)) != 0)
            continue;
        out[*n] = (struct process_info){.pid = (unsigned)strtoul(line + strlen(begin), &end, 10)};
        out[(*n)++].used = strtoull(end, NULL, 10);
    }
    if (file)
        fclose(file);
    return OK;
}

static unsigned n_told; /* xid lines that were reported */

/* Finds the n-th xid line, counted from 0. */
static bool nth_xid(unsigned n, unsigned *out_index, unsigned long long *out_xid)
{
    char line[LINE];
    FILE *file = scenario();
    bool found = false;
    while (file && !found && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "xid ", 4) != 0 || !strchr(line, '\n') || n-- > 0)
            continue;
        char *end;
        *out_index = (unsigned)strtoul(line + 4, &end, 10);
        *out_xid = strtoull(end, NULL, 10);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

FUNCTION(nvmlEventSetCreate, void **out)
{
    unsigned index;
    unsigned long long xid;
    for (n_told = 0; nth_xid(n_told, &index, &xid);)
        n_told++;
    *out = &n_told;
    return OK;
}

FUNCTION(nvmlEventSetFree, void *set)
{
    return set ? OK : INVALID;
}

FUNCTION(nvmlDeviceRegisterEvents, void *device, unsigned long long types, void *set)
{
    char line[LINE];
    return device && set && types == 8 && !find_line("silent", line) ? OK : NOT_SUPPORTED;
}

struct event {
    void *device;
    unsigned long long type, data;
    unsigned instances[2];
};

FUNCTION(nvmlEventSetWait_v2, void *set, struct event *out, unsigned timeout_ms)
{
    const struct timespec turn = {.tv_nsec = 10000000};
    int rc = answer("waits=", OK);
    if (rc != OK || !set)
        return rc;
    for (unsigned waited_ms = 0;; waited_ms += 10) {
        unsigned index;
        unsigned long long xid;
        if (nth_xid(n_told, &index, &xid)) {
            n_told++;
            *out = (struct event){
                .device = index < MAX_GPUS ? &gpus[index] : NULL, .type = 8, .data = xid};
            return OK;
        }
        if (waited_ms >= timeout_ms)
            return TIMEOUT;
        nanosleep(&turn, NULL);
    }
}
#endif
