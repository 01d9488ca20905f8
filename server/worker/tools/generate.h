/* generate.h: `sluice-worker generate`: one prompt, its answer as text on standard output while it
 * is made. */
#pragma once

struct error;
struct settings;

int generate_run(const struct settings *settings, struct error *err);
