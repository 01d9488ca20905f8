/* inspect_source.h: MODEL of commands that read a model's files: a path, or a registered model.
 * Single-threaded. */
#pragma once

#include <stdbool.h>

struct cli;
struct error;

/* A word with a slash is a path. So is the name of anything in the current folder, unless the
 * command also gives a version or a group. */
bool inspect_source_is_path(const struct cli *cli);

/* Sets the next step after an error of a path's files. Other errors' texts name their step. */
void inspect_source_advise(struct cli *cli, const struct error *err);
/* The same after a failed call for a registered model, which may have been meant as a path. */
void inspect_source_advise_call(struct cli *cli, const struct error *err);
