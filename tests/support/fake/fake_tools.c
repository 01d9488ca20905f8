/* fake_tools.c: the answers of fake_worker.c in the modes inspect, plan and probe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sha256.h"
#include "sluice/worker/v1/report.pb-c.h"
#include "tests/support/fake/fake_script.h"

static int print_report(const Sluice__Worker__V1__ToolReport *report, int status)
{
    size_t n = protobuf_c_message_get_packed_size(&report->base);
    uint8_t *bytes = malloc(n ? n : 1);
    if (!bytes)
        return 1;
    protobuf_c_message_pack(&report->base, bytes);
    fwrite(bytes, 1, n, stdout);
    free(bytes);
    return status;
}

static int inspect(void)
{
    Sluice__Worker__V1__ToolReport report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__InspectReport result = SLUICE__WORKER__V1__INSPECT_REPORT__INIT;
    Sluice__V1__Error problem = SLUICE__V1__ERROR__INIT;
    Sluice__V1__ModelInfo info = SLUICE__V1__MODEL_INFO__INIT;
    struct sha256 *sha = NULL;
    struct error err;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    if (fake_has("bad")) {
        problem.code = 3;
        problem.message =
            fake_word("offset 8: n_tensors: 9223372036854775808 is over the limit 65536");
        problem.reason = fake_word("MODEL_FILE_INVALID");
        report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_ERROR;
        report.error = &problem;
        return print_report(&report, 1);
    }
    if (sha256_create(&sha, &err) != 0)
        return 1;
    sha256_update(sha, fake_script, strlen(fake_script));
    sha256_final(sha, digest);
    sha256_hex(digest, hex);
    info.architecture = fake_word("fake");
    info.format = fake_word("script");
    info.weights_digest = hex;
    info.context_length = info.trained_context_length = (uint32_t)fake_number("context=", 2048);
    result.info = &info;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT;
    report.inspect = &result;
    return print_report(&report, 0);
}

/* Reports two CPU nodes. Reports GPUs only if SLUICE_FAKE_GPUS gives their number. */
static int probe(void)
{
    enum { N_CPUS = 2, MAX_GPUS = 8 };
    Sluice__Worker__V1__ToolReport report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__ProbeReport result = SLUICE__WORKER__V1__PROBE_REPORT__INIT;
    Sluice__V1__Device devices[N_CPUS + MAX_GPUS], *list[N_CPUS + MAX_GPUS];
    char names[N_CPUS + MAX_GPUS][16], uuids[MAX_GPUS][16];
    const char *gpus = getenv("SLUICE_FAKE_GPUS");
    uint32_t n_gpus = gpus ? (uint32_t)strtoul(gpus, NULL, 10) % (MAX_GPUS + 1) : 1;
    for (uint32_t i = 0; i < N_CPUS + n_gpus; i++) {
        bool is_gpu = i >= N_CPUS;
        uint32_t index = is_gpu ? i - N_CPUS : i;
        list[i] = &devices[i];
        sluice__v1__device__init(list[i]);
        snprintf(names[i], sizeof(names[i]), "%s:%u", is_gpu ? "cuda" : "cpu", index);
        devices[i].name = names[i];
        devices[i].index = index;
        devices[i].kind = is_gpu ? SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA
                                 : SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
        devices[i].has_numa_node = !is_gpu;
        devices[i].numa_node = is_gpu ? 0 : index;
        if (is_gpu && gpus) {
            snprintf(uuids[index], sizeof(uuids[index]), "GPU-%u", index);
            devices[i].uuid = uuids[index];
        } else if (is_gpu) {
            devices[i].unusable_reason = fake_word("no driver");
        }
    }
    result.n_devices = N_CPUS + n_gpus;
    result.devices = list;
    if (!gpus)
        result.cuda_unusable_reason = fake_word("no driver");
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE;
    report.probe = &result;
    return print_report(&report, 0);
}

static int plan(void)
{
    Sluice__Worker__V1__ToolReport report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__V1__Plan result = SLUICE__V1__PLAN__INIT;
    result.packed_bytes = (uint64_t)fake_number("bytes=", 1000000);
    result.fits = 1;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN;
    report.plan = &result;
    return print_report(&report, 0);
}

int fake_tool(const char *mode)
{
    if (fake_has("slow_tool"))
        pause();
    if (fake_has("crash_tool"))
        abort();
    if (strcmp(mode, "inspect") == 0)
        return inspect();
    if (strcmp(mode, "plan") == 0)
        return plan();
    if (strcmp(mode, "probe") == 0)
        return probe();
    return 2;
}
