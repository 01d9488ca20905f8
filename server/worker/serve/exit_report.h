/* exit_report.h: the file exit.pb says how this process ended, for a manager that is not its
 * parent. The file is written beside exit.pb and renamed, so that readers see a complete file or
 * none. */
#pragma once

#include <stdint.h>

#include "sluice/worker/v1/report.pb-c.h"

struct error;
struct settings;

/* Fills the identity of the process. The caller sets cause and numbers. Strings are borrowed. */
void exit_report_init(Sluice__Worker__V1__ExitReport *report, const struct settings *settings,
                      uint64_t start_ticks);

/* Writes the report. Does nothing if the settings name no file. */
int exit_report_write(const struct settings *settings, Sluice__Worker__V1__ExitReport *report,
                      struct error *err);

/* From now on a fatal signal (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) first writes a report of
 * cause CRASH. Sanitizer builds report such signals themselves, so nothing is installed there.
 * Main thread, once; `settings` must live as long as the process. */
void exit_report_arm(const struct settings *settings, uint64_t start_ticks);
