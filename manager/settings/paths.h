/* paths.h: the manager's files and folders as absolute paths, checked before anything starts.
 * Single-threaded, at start. */
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
    char run_lock[PATH_MAX]; /* lock in run_dir, which only one manager may use */
    char worker[PATH_MAX];
    char model_root[PATH_MAX];
};

/* Creates the folders (0700), finds the worker program (by default beside this program), and
 * checks that every socket path fits 107 bytes. Points the settings at *out_paths, which must
 * live as long as the settings. Errors name the option. */
int paths_prepare(struct settings *settings, struct paths *out_paths, struct error *err);
/* Makes the checks of paths_prepare() and creates nothing. A missing folder is no error. *out_new:
 * true if there is no database yet. Points the settings like paths_prepare(). */
int paths_check(struct settings *settings, struct paths *out_paths, bool *out_new,
                struct error *err);
/* Prepares the state directory alone, which must exist: state_dir, database and lock. */
int paths_prepare_state(const struct settings *settings, struct paths *out_paths,
                        struct error *err);
