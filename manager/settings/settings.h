/* settings.h: the manager's flags. Single-threaded, at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/settings/fit_policy.h"
#include "manager/settings/memory_budget.h"
#include "proto/rpc/server/access.h"

struct error;
struct option_spec;
struct options;
struct reload;
struct strbuf;

enum { SETTINGS_MAX_CRASHES = 64 }; /* the highest crash_limit */

struct settings {
    const char *state_dir;
    const char *run_dir;
    const char *socket;
    const char *manage_group, *manage_listen;
    struct access_config access;
    const char *worker;
    const char *model_root;
    const char *log_level;
    const char *log_format;
    const char *metrics;
    uint64_t drain_grace_ms;
    uint64_t restart_backoff_initial_ms;
    uint64_t restart_backoff_max_ms;
    uint64_t crash_window_ms;
    uint64_t crash_limit;
    uint64_t kill_grace_ms;
    uint64_t connect_timeout_ms;
    uint64_t load_timeout_ms;
    uint64_t tool_timeout_ms;
    uint64_t max_open_operations;
    uint64_t max_replicas;
    const char *memory_budget_text, *placement_text;
    struct memory_budget memory_budget; /* parsed from the texts by settings_parse() */
    enum fit_policy placement;
    uint64_t event_retention;
    uint64_t stall_timeout_ms;
    uint64_t slow_reader_ms;
    bool stop_workers_on_exit;
    bool json; /* for check, backup and restore */
    bool origin;
    bool help;
    bool man;
    bool version;
};

/* Parses the flags. Strings in `out_settings` are borrowed from *out_options (owned). */
int settings_parse(int argc, char *const argv[], struct settings *out_settings,
                   struct options **out_options, struct error *err);
/* The same for check, backup and restore, which also take a file: at most one positional. */
int settings_parse_offline(int argc, char *const argv[], struct settings *out_settings,
                           struct options **out_options, struct error *err);
/* The options of those commands, for their help. */
const struct option_spec *settings_offline_specs(size_t *out_n);
/* Prepares settings_reload(). `argv` is borrowed as long as the result. */
struct reload *settings_watch(int argc, char *const argv[], const struct settings *settings);
/* Reads the settings again (SIGHUP) from the same sources. Settings that can change at run time
 * are set in `settings`, also log level and log format. Changes of other settings are only
 * logged. After an error everything stays unchanged. */
void settings_reload(struct reload *reload, struct settings *settings);
/* Checks the values of `settings` that are given as texts. */
int settings_check(const struct settings *settings, struct error *err);
/* Appends the text of --help, or the man page. */
void settings_manual(bool roff, struct strbuf *out);
