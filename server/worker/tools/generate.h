/* generate.h: `sluice-worker generate`: streams the answer to a prompt to standard output. */
#pragma once

struct error;
struct settings;

int generate_run(const struct settings *settings, struct error *err);
