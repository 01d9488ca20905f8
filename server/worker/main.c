/* sluice-worker: one model on one device group. `serve` is a replica; the other modes do one
 * task and end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "base/system/device_name.h"
#include "server/worker/base/message.h"
#include "server/worker/base/process.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/place.h"
#include "server/worker/place/sandbox.h"
#include "server/worker/serve/serve.h"
#include "server/worker/tools/generate.h"
#include "server/worker/tools/tool.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* N_MODES prints the manual of the program. */
static void print_manual(enum settings_mode mode, bool roff)
{
    struct strbuf text = {0};
    if (mode == N_MODES)
        settings_overview(roff, &text);
    else
        settings_manual(mode, roff, &text);
    fputs(strbuf_str(&text), stdout);
    strbuf_fini(&text);
}

static int usage_error(const struct error *err)
{
    fprintf(stderr, "sluice-worker: %s\n", err->message);
    return EXIT_USAGE;
}

static int write_all(const void *bytes, size_t n_bytes)
{
    const char *at = bytes;
    while (n_bytes) {
        ssize_t n = write(STDOUT_FILENO, at, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

static int print_report(const Sluice__Worker__V1__ToolReport *report, bool text)
{
    int rc;
    if (text) {
        struct strbuf out = {0};
        message_print(&report->base, 0, &out);
        rc = write_all(strbuf_str(&out), out.n_bytes);
        strbuf_fini(&out);
        return rc;
    }
    size_t n = sluice__worker__v1__tool_report__get_packed_size(report);
    uint8_t *bytes = malloc(n + 1);
    if (!bytes)
        return -1;
    sluice__worker__v1__tool_report__pack(report, bytes);
    rc = write_all(bytes, n);
    free(bytes);
    return rc;
}

static int quantize(const struct settings *settings, struct arena *arena,
                    Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    (void)settings;
    (void)arena;
    (void)report;
    return error_set(err, STATUS_UNIMPLEMENTED, "quantize: not supported");
}

static int run_tool(enum settings_mode mode, const struct settings *settings)
{
    bool text = settings->text || isatty(STDOUT_FILENO); /* a terminal gets text in place of
                                                          * protobuf */
    int (*const tools[N_MODES])(const struct settings *, struct arena *,
                                Sluice__Worker__V1__ToolReport *, struct error *) = {
        [MODE_INSPECT] = tool_inspect, [MODE_PLAN] = tool_plan,    [MODE_PROBE] = tool_probe,
        [MODE_BENCH] = tool_bench,     [MODE_QUANTIZE] = quantize,
    };
    Sluice__Worker__V1__ToolReport report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    struct error err = {0};
    struct arena arena;
    arena_init(&arena, 64 * 1024, 0);
    int rc = place_failure(settings->place, &err);
    if (!rc)
        rc = tools[mode](settings, &arena, &report, &err);
    if (!rc && arena.exhausted) /* names are missing in the report */
        rc = error_set(&err, STATUS_RESOURCE_EXHAUSTED, "no memory for the report");
    if (rc) {
        report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_ERROR;
        report.error = message_error(&arena, &err);
        /* Programs read the error in the report; people read it on standard error only. */
        if (text || mode == MODE_QUANTIZE)
            report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT__NOT_SET;
        /* `sluice bench engine` passes standard error on and prints the error itself. */
        if (text || mode != MODE_BENCH)
            fprintf(stderr, "sluice-worker: %s: %s\n", status_name(err.status), err.message);
    }
    if (report.result_case && print_report(&report, text) != 0) {
        fprintf(stderr, "sluice-worker: standard output: %s\n", strerror(errno));
        rc = STATUS_UNAVAILABLE;
    }
    bool refused = report.result_case == SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN &&
                   !report.plan->fits && !report.plan->n_groups;
    arena_fini(&arena);
    return rc || refused ? EXIT_FAILED : 0;
}

/* Places this process, before it has further threads. The mode reports a failure. */
static void place_mode(enum settings_mode mode, struct settings *settings, struct place *place)
{
    struct error *err = &place->failure;
    bool runs = mode != MODE_PLAN && mode != MODE_INSPECT;
    if (place_init(place, settings, "/sys", err) == 0 && runs)
        (void)place_enter(place, err);
    if (place->devices[0])
        settings->devices = place->devices;
    settings->place = place;
}

/* Restricts the process before the first thread starts and the first untrusted byte is read. */
static int harden(enum settings_mode mode, const struct settings *settings, struct error *err)
{
    bool one_shot = mode != MODE_SERVE && mode != MODE_GENERATE && mode != MODE_BENCH;
    bool plans = mode != MODE_INSPECT || settings->plan;
    bool gpu = plans && device_name_is_gpu(settings->devices);
    const struct sandbox_wishes wishes = {
        .network = gpu && settings->tp * settings->pp > 1,
        .connect = gpu || mode == MODE_PROBE,
    };
    process_harden(one_shot);
    if (settings->no_sandbox || sandbox_enter(&wishes, err) == 0)
        return 0;
    log_error(LOG_EVENT("no sandbox"), LOG_STR("why", err->message));
    return error_prefix(err, "sandbox (--no-sandbox turns it off)");
}

static int run_mode(enum settings_mode mode, const struct settings *settings)
{
    struct error err = {0};
    if (harden(mode, settings, &err) != 0) {
        fprintf(stderr, "sluice-worker: %s: %s\n", status_name(err.status), err.message);
        return EXIT_FAILED;
    }
    if (mode == MODE_SERVE)
        return serve_run(settings);
    if (mode != MODE_GENERATE)
        return run_tool(mode, settings);
    if (place_failure(settings->place, &err) == 0 && generate_run(settings, &err) == 0)
        return 0;
    fprintf(stderr, "sluice-worker: %s: %s\n", status_name(err.status), err.message);
    return EXIT_FAILED;
}

static int run_placed(enum settings_mode mode, struct settings *settings)
{
    struct place place = {0};
    bool placed = mode == MODE_SERVE || mode == MODE_GENERATE || mode == MODE_BENCH ||
                  mode == MODE_PLAN || (mode == MODE_INSPECT && settings->plan);
    if (placed)
        place_mode(mode, settings, &place);
    int exit_status = run_mode(mode, settings);
    settings->place = NULL; /* place_fini frees the place and its device names */
    settings->devices = "";
    place_fini(&place);
    return exit_status;
}

static int start(enum settings_mode mode, int argc, char *argv[])
{
    struct settings settings;
    struct options *options = NULL;
    struct error err;
    enum log_level level = LOG_LEVEL_INFO;
    enum log_format format = LOG_FORMAT_KV;
    if (settings_parse(mode, argc, argv, &settings, &options, &err) != 0)
        return usage_error(&err);
    int exit_status = 0;
    if (settings.help) {
        print_manual(mode, false);
    } else {
        (void)log_level_parse(settings.log_level, &level); /* the option table has checked the
                                                            * values */
        (void)log_format_parse(settings.log_format, &format);
        log_init("sluice-worker", level, format);
        exit_status = run_placed(mode, &settings);
    }
    settings_free(&settings, options);
    return exit_status;
}

int main(int argc, char *argv[])
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_manual(N_MODES, false);
        return argc < 2 ? EXIT_USAGE : 0;
    }
    if (strcmp(argv[1], "--man") == 0) {
        print_manual(argc > 2 ? settings_find_mode(argv[2]) : N_MODES, true);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("sluice-worker %s\n", SLUICE_VERSION);
        return 0;
    }
    enum settings_mode mode = settings_find_mode(argv[1]);
    if (mode == N_MODES) {
        fprintf(stderr, "sluice-worker: \"%s\" is not a mode (see sluice-worker --help)\n",
                argv[1]);
        return EXIT_USAGE;
    }
    return start(mode, argc - 1, argv + 1);
}
