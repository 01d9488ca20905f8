/* serve.h: `sluice-worker serve`: one replica from its start to its end. */
#pragma once

struct settings;

/* Returns the process's exit status: 0 after a requested end, 1 if the load failed. */
int serve_run(const struct settings *settings);
