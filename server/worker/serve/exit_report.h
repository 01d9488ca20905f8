/* exit_report.h: the file exit.pb that tells how this process ended, for a manager that is not its
 * parent. Written to a file beside it and renamed, so that a reader sees all or nothing. */
#pragma once

#include <stdint.h>

#include "sluice/worker/v1/report.pb-c.h"

struct error;
struct settings;

/* What the process is; cause and numbers are the caller's. Strings are borrowed. */
void exit_report_init(Sluice__Worker__V1__ExitReport *report, const struct settings *settings,
                      uint64_t start_ticks);

/* Nothing where the settings name no file. */
int exit_report_write(const struct settings *settings, Sluice__Worker__V1__ExitReport *report,
                      struct error *err);

/* From now on a fatal signal (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) leaves a report of cause
 * CRASH before the process dies by it. Not in sanitizer builds, which report such signals
 * themselves. Main thread, once; `settings` lives as long as the process. */
void exit_report_arm(const struct settings *settings, uint64_t start_ticks);
