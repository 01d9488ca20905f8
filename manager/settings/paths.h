/* paths.h: where the manager keeps things, made absolute and checked before anything is started.
 * One thread, at start. */
#pragma once

#include <limits.h>

#include "manager/settings/settings.h"

struct error;

struct paths {
    char state_dir[PATH_MAX];
    char run_dir[PATH_MAX];
    char socket[PATH_MAX];
    char database[PATH_MAX];
    char lock[PATH_MAX];
    char run_lock[PATH_MAX]; /* in run_dir, which is one manager's */
    char worker[PATH_MAX];
    char model_root[PATH_MAX];
};

/* Makes the folders (0700), finds the worker program (beside this one by default), checks that
 * every socket's path fits 107 bytes, and points the settings at the results, which must live as
 * long as they. Errors name the option. */
int paths_prepare(struct settings *settings, struct paths *out_paths, struct error *err);
/* Whether that would do; makes nothing, and takes folders that are not there yet for good.
 * *out_new: there is no database yet. Points the settings as paths_prepare does. */
int paths_check(struct settings *settings, struct paths *out_paths, bool *out_new,
                struct error *err);
/* Of the state directory alone, which must be there: state_dir, database and lock. */
int paths_prepare_state(const struct settings *settings, struct paths *out_paths,
                        struct error *err);
