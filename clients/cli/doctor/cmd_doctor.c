/* cmd_doctor.c: `doctor`: finds faults of an installation and advises what to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "clients/cli/doctor/doctor.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"

static const char *const level_names[] = {"ok", "warn", "fail"};

static const char *text_of(const char *text)
{
    return text ? text : "";
}

static void print_findings(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->n_findings; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        printf("%-4s  %-15s  ", level_names[finding->level], finding->check);
        printable_write(stdout, text_of(finding->message));
        putchar('\n');
        if (text_of(finding->remedy)[0]) {
            printf("%23s-> ", "");
            printable_write(stdout, finding->remedy);
            putchar('\n');
        }
    }
    size_t n_warn = doctor->n_of[DOCTOR_WARN], n_fail = doctor->n_of[DOCTOR_FAIL];
    printf("%zu ok, %zu warning%s, %zu failure%s\n", doctor->n_of[DOCTOR_OK], n_warn,
           n_warn == 1 ? "" : "s", n_fail, n_fail == 1 ? "" : "s");
}

static void print_object(const struct doctor *doctor)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < doctor->n_findings; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        json_array_append_new(rows, json_pack("{s:s,s:s,s:s,s:s}", "check", finding->check, "level",
                                              level_names[finding->level], "message",
                                              text_of(finding->message), "remedy",
                                              text_of(finding->remedy)));
    }
    json_t *object = json_pack(
        "{s:I,s:I,s:I,s:{s:I,s:I},s:o}", "n_ok", (json_int_t)doctor->n_of[DOCTOR_OK], "n_warn",
        (json_int_t)doctor->n_of[DOCTOR_WARN], "n_fail", (json_int_t)doctor->n_of[DOCTOR_FAIL],
        "memory", "free_bytes", (json_int_t)doctor->memory.free_bytes, "total_bytes",
        (json_int_t)doctor->memory.total_bytes, "findings", rows);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    puts(text ? text : "{\"error\":{\"code\":\"INTERNAL\"}}");
    free(text);
    json_decref(object);
}

static int run_doctor(struct cli *cli)
{
    struct doctor doctor = {.cli = cli};
    doctor_check_machine(&doctor);
    doctor_check_state(&doctor);
    doctor_check_programs(&doctor);
    doctor_check_memory(&doctor);
    doctor_check_ports(&doctor);
    for (size_t i = 0; cli_word(cli, i); i++)
        doctor_check_model(&doctor, cli_word(cli, i));
    if (cli->settings.json)
        print_object(&doctor);
    else
        print_findings(&doctor);
    int rc = doctor.n_of[DOCTOR_FAIL] != 0;
    doctor_fini(&doctor);
    return rc;
}

static const struct option_spec doctor_specs[] = {
    {"listen", 'l', OPTION_STRING, CLI_OPTION(listen), "127.0.0.1:8001", "ADDR:PORT",
     "address of the data plane; must be free or in use by this server", 0, 0},
    {"http-listen", 0, OPTION_STRING, CLI_OPTION(http_listen), "127.0.0.1:8000", "ADDR:PORT",
     "address of HTTP, checked likewise; empty: off", 0, 0},
    {"metrics", 0, OPTION_STRING, CLI_OPTION(metrics), "127.0.0.1:8002", "ADDR:PORT",
     "address of the server's /metrics, checked likewise; empty: off", 0, 0},
    {"manager-metrics", 0, OPTION_STRING, CLI_OPTION(manager_metrics), "127.0.0.1:8004",
     "ADDR:PORT", "address of the manager's /metrics, checked likewise", 0, 0},
};
static const struct manual_example doctor_examples[] = {
    {"sluice doctor", NULL},
    {"sluice doctor ./SmolLM2-135M-Instruct.Q4_1.gguf", "also checks if this file can be served"},
    {"sluice doctor --json | jq '.findings[] | select(.level == \"fail\")'", NULL},
};

const struct cli_command cmd_doctor = {
    .name = "doctor",
    .arguments = "[PATH...]",
    .summary = "find faults and advise what to do",
    .description =
        "Checks the machine: processor and kernels, CUDA, huge pages, limits, kernel facilities, "
        "clock. Checks the state directory and its locks, manager and servers, ports, and model "
        "files. Changes nothing. Prints a line for each check: ok, "
        "warn (works, but less well) or fail. The next line says what to do, as a "
        "command to paste if possible. Exit status 1 if a check fails.",
    .examples = doctor_examples,
    .n_examples = CLI_N(doctor_examples),
    .specs = doctor_specs,
    .n_specs = CLI_N(doctor_specs),
    .groups = CLI_MANAGE,
    .see_also = "sluice-status(1), sluice-devices-list(1)",
    .run = run_doctor,
};
