/* paths.h: where a user's state lies. One thread. */
#pragma once

#include <stddef.h>

struct error;

/* $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. Negative where neither is set or it does not
 * fit. */
int paths_default_state(char *out, size_t n_out);
/* dir/name, less what says nothing ("./" before it, "/" behind). Cut where it does not fit. */
void paths_join(const char *dir, const char *name, char *out, size_t n_out);
/* The directory and those above it, mode 0700. */
int paths_make_dir(const char *path, struct error *err);
