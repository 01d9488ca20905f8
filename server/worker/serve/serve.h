/* serve.h: `sluice-worker serve`: one replica from its start to its end. */
#pragma once

struct settings;

/* The process's exit status: 0 where it was asked to end, 1 where it could not load. */
int serve_run(const struct settings *settings);
