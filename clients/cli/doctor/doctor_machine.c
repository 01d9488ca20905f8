/* doctor_machine.c: checks of the machine. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/system/beneath.h"
#include "base/system/cpu.h"
#include "base/system/memory_limit.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/worker_tool.h"
#include "proto/rpc/message/message.h"

/* less than a small model and its KV cache need */
#define LITTLE_MEMORY_BYTES (1ULL << 30)

enum { PROBE_TIMEOUT_MS = 20000, FEW_FILES = 4096, CLOCK_YEAR_MIN = 2024, CLOCK_YEAR_MAX = 2100 };

static void check_kernels(struct doctor *doctor, const Sluice__Worker__V1__ProbeReport *report)
{
    const struct cpu_features *cpu = cpu_features();
    const char *set = report->cpu_kernels;
    const char *hint = report->amx_unusable_reason[0] ? "; no amx: " : "";
    if (strcmp(set, "ref") == 0)
        doctor_add(
            doctor, DOCTOR_WARN, "kernels",
            "use a processor with AVX2, FMA and F16C, or enable these for the virtual machine",
            "kernel set \"ref\" on %s: works, but slowly, because AVX2 is missing", cpu->brand);
    else
        doctor_add(doctor, DOCTOR_OK, "kernels", NULL, "\"%s\" on %s, %d CPUs%s%s", set, cpu->brand,
                   cpu_count(), hint, report->amx_unusable_reason);
}

static void check_devices(struct doctor *doctor, const Sluice__Worker__V1__ProbeReport *report)
{
    size_t n_gpus = 0;
    char remedy[DOCTOR_REMEDY_BYTES];
    for (size_t i = 0; i < report->n_devices; i++) {
        const Sluice__V1__Device *device = report->devices[i];
        if (strncmp(device->name, "cuda", 4) != 0)
            continue;
        n_gpus++;
        if (device->unusable_reason[0])
            doctor_add(
                doctor, DOCTOR_WARN, "cuda",
                doctor_remedy(doctor, remedy, "sluice devices%F   # shows more about the device"),
                "%s is unusable: %s", device->name, device->unusable_reason);
        else
            doctor_add(doctor, DOCTOR_OK, "cuda", NULL, "%s: %s", device->name,
                       device->description);
    }
    if (n_gpus)
        return;
    /* A machine without a GPU is fine. A GPU that cannot be used is a warning. */
    bool has_gpu = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0;
    doctor_add(doctor, has_gpu ? DOCTOR_WARN : DOCTOR_OK, "cuda",
               has_gpu
                   ? "install the driver's libcuda.so.1 and give this user access to /dev/nvidia*"
                   : NULL,
               "no CUDA devices: %s",
               report->cuda_unusable_reason[0] ? report->cuda_unusable_reason : "none found");
}

static void check_worker(struct doctor *doctor)
{
    const char *argv[WORKER_TOOL_MAX_ARGS] = {"", "probe", "--text=false"};
    Sluice__Worker__V1__ToolReport *report;
    struct error err;
    if (worker_tool_run(argv, SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE, PROBE_TIMEOUT_MS,
                        &report, &err) != 0) {
        doctor_add(
            doctor, DOCTOR_FAIL, "worker",
            "install sluice-worker beside this program, and run `sluice-worker probe --text`",
            "sluice-worker cannot examine the machine: %s", err.message);
        return;
    }
    const char *version = report->probe->software_version;
    if (strcmp(version, SLUICE_VERSION) != 0)
        doctor_add(doctor, DOCTOR_WARN, "worker", "install all programs of the same version",
                   "sluice-worker has version %s, but this program has version %s", version,
                   SLUICE_VERSION);
    check_kernels(doctor, report->probe);
    check_devices(doctor, report->probe);
    rpc_message_free(&report->base);
}

/* Reads the word in brackets of "always [madvise] never". Empty if the file is missing. */
static void read_choice(const char *path, char out[32])
{
    char text[256] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0)
        close(fd);
    const char *begin = n > 0 ? strchr(text, '[') : NULL;
    snprintf(out, 32, "%.*s", begin ? (int)strcspn(begin + 1, "]") : 0, begin ? begin + 1 : "");
}

static void check_huge_pages(struct doctor *doctor)
{
    char choice[32];
    read_choice("/sys/kernel/mm/transparent_hugepage/enabled", choice);
    if (strcmp(choice, "always") == 0 || strcmp(choice, "madvise") == 0)
        doctor_add(doctor, DOCTOR_OK, "huge pages", NULL, "transparent huge pages: %s", choice);
    else
        doctor_add(doctor, DOCTOR_WARN, "huge pages",
                   choice[0] ? "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
                             : "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
                   "transparent huge pages: %s; the KV cache uses small pages, which is slower",
                   choice[0] ? choice : "this kernel has none");
}

static void format_limit(rlim_t limit, char out[32])
{
    snprintf(out, 32, limit == RLIM_INFINITY ? "unlimited" : "%" PRIu64, (uint64_t)limit);
}

static void check_limits(struct doctor *doctor)
{
    struct rlimit files, locked;
    char soft[32], hard[32];
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        bool few = files.rlim_max < FEW_FILES; /* the server raises the soft limit itself */
        format_limit(files.rlim_cur, soft);
        format_limit(files.rlim_max, hard);
        doctor_add(doctor, few ? DOCTOR_WARN : DOCTOR_OK, "open files",
                   few ? "ulimit -Hn 65536   # as root, or LimitNOFILE= of the unit: each "
                         "connection needs a file"
                       : NULL,
                   "RLIMIT_NOFILE %s, maximum %s", soft, hard);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        format_limit(locked.rlim_cur, soft);
        doctor_add(doctor, DOCTOR_OK, "locked memory", NULL,
                   "RLIMIT_MEMLOCK %s%s; Sluice locks no memory itself, but a GPU driver may", soft,
                   locked.rlim_cur == RLIM_INFINITY ? "" : " bytes");
    }
}

static void check_facility(struct doctor *doctor, const char *name, bool there, const char *since,
                           const char *why)
{
    int err_no = errno;
    char remedy[160];
    if (there) {
        doctor_add(doctor, DOCTOR_OK, name, NULL, "available");
        return;
    }
    snprintf(remedy, sizeof(remedy),
             "use Linux %s or later; in a container, allow the call in the seccomp profile", since);
    doctor_add(doctor, DOCTOR_FAIL, name, remedy, "not available (%s): %s", strerror(err_no), why);
}

static void check_facilities(struct doctor *doctor)
{
    struct error err;
    errno = ENOSYS;
    check_facility(
        doctor, "openat2", beneath_check("/", &err) == 0, "5.6",
        "without it the manager cannot confine paths to the model root and does not start");
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    check_facility(doctor, "pidfd", fd >= 0, "5.3",
                   "without it the manager cannot supervise its workers");
    if (fd >= 0)
        close(fd);
    fd = memfd_create("sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool sealed =
        fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
    check_facility(doctor, "memfd sealing", sealed, "3.17",
                   "without it replicas cannot share packed weights, and no version can be parked");
    if (fd >= 0)
        close(fd);
    uint32_t action = SECCOMP_RET_ERRNO;
    bool filters = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
    check_facility(doctor, "seccomp", filters, "4.14",
                   "without it a worker cannot build its sandbox and does not start");
}

static void check_clock(struct doctor *doctor)
{
    time_t now = (time_t)(clock_wall_ns() / NS_PER_S);
    struct tm tm;
    char text[64];
    gmtime_r(&now, &tm);
    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
    bool sane = tm.tm_year + 1900 >= CLOCK_YEAR_MIN && tm.tm_year + 1900 < CLOCK_YEAR_MAX;
    doctor_add(
        doctor, sane ? DOCTOR_OK : DOCTOR_FAIL, "clock",
        sane ? NULL
             : "sudo timedatectl set-ntp true   # certificates and records need the right time",
        "%s%s", text, sane ? "" : ", which is impossible");
}

/* True if the manager that answered runs on this machine. */
static bool is_manager_here(long pid)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
    FILE *file = pid ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    bool is_here = fgets(name, sizeof(name), file) && strncmp(name, "sluice-manager", 14) == 0;
    fclose(file);
    return is_here;
}

void doctor_check_memory(struct doctor *doctor)
{
    struct memory_limit limit;
    char text[MEMORY_LIMIT_TEXT], machine[32];
    bool is_manager = is_manager_here(doctor->manager_pid);
    if (!memory_limit_read("", is_manager ? (pid_t)doctor->manager_pid : 0, &limit)) {
        doctor_add(doctor, DOCTOR_WARN, "memory", "mount -t proc proc /proc   # as root",
                   "cannot read /proc/meminfo, so no model can be loaded");
        return;
    }
    doctor->memory = limit;
    bool is_little = limit.free_bytes < LITTLE_MEMORY_BYTES;
    char loaded[DOCTOR_REMEDY_BYTES];
    const char *remedy =
        limit.group_limit_bytes
            ? "raise the limit: MemoryMax= of the unit, or --memory of the container"
            : doctor_remedy(doctor, loaded, "sluice ps%F   # shows replicas to unload or park");
    memory_limit_text(&limit, text);
    if (limit.group_limit_bytes)
        doctor_add(doctor, is_little ? DOCTOR_WARN : DOCTOR_OK, "memory", is_little ? remedy : NULL,
                   "%s%s%s%s, the limit for %s; the machine has %s free", text,
                   limit.group[0] ? " (" : "", limit.group, limit.group[0] ? ")" : "",
                   is_manager ? "the manager and its workers" : "programs started from here",
                   format_bytes(limit.machine_free_bytes, machine));
    else
        doctor_add(doctor, is_little ? DOCTOR_WARN : DOCTOR_OK, "memory", is_little ? remedy : NULL,
                   "%s of %s", text, format_bytes(limit.total_bytes, machine));
}

void doctor_check_machine(struct doctor *doctor)
{
    check_worker(doctor);
    check_huge_pages(doctor);
    check_limits(doctor);
    check_facilities(doctor);
    check_clock(doctor);
}
