#include "manager/settings/paths.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/beneath.h"

static const char longest_worker_socket[] = "/replica-r999999999/worker.sock";

enum { SOCKET_MAX_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };

static int join(const char *option, const char *folder, const char *name, char out[PATH_MAX],
                struct error *err)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: the path is too long", option);
    return 0;
}

/* Writes the folder as an absolute path without links. `make`: creates the folder where missing;
 * else a missing folder's path stays as given. */
static int ensure_folder(const char *option, const char *path, bool make, char out[PATH_MAX],
                         struct error *err)
{
    struct stat st;
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_errno(err, errno, "--%s: %s", option, path);
    if (!make && access(path, F_OK) != 0 && errno == ENOENT) {
        snprintf(out, PATH_MAX, "%s", path);
        return 0;
    }
    if (!realpath(path, out) || stat(out, &st) != 0)
        return error_errno(err, errno, "--%s: %s", option, path);
    if (!S_ISDIR(st.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: %s is not a folder", option, path);
    if (access(out, R_OK | W_OK | X_OK) != 0)
        return error_errno(err, errno, "--%s: %s", option, path);
    return 0;
}

static int default_state_dir(bool make, char out[PATH_MAX], struct error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX];
    if (state && state[0] == '/')
        return join("state-dir", state, "sluice", out, err);
    if (!home || home[0] != '/')
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--state-dir: is required where HOME is not set");
    if (join("state-dir", home, ".local", folder, err) != 0)
        return err->status;
    if (make)
        (void)mkdir(folder, 0755);
    if (join("state-dir", home, ".local/state", folder, err) != 0)
        return err->status;
    if (make)
        (void)mkdir(folder, 0700);
    return join("state-dir", folder, "sluice", out, err);
}

static int find_worker(const char *given, char out[PATH_MAX], struct error *err)
{
    char path[PATH_MAX] = "";
    struct stat st;
    if (*given) {
        snprintf(path, sizeof(path), "%s", given);
    } else {
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("sluice-worker"));
        char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
        if (!slash)
            return error_set(err, STATUS_INTERNAL,
                             "--worker: the program sluice-worker is not found; give its path");
        memcpy(slash + 1, "sluice-worker", sizeof("sluice-worker"));
    }
    if (!realpath(path, out))
        return error_errno(err, errno, "--worker: %s", path);
    if (access(out, X_OK) != 0)
        return error_errno(err, errno, "--worker: %s", path);
    if (stat(out, &st) != 0 || !S_ISREG(st.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--worker: %s is not a program", path);
    return 0;
}

static int check_socket(const char *option, size_t n_bytes, const char *path, struct error *err)
{
    if (n_bytes <= SOCKET_MAX_BYTES)
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--%s: socket paths below %s would have up to %zu bytes, and %d is the limit: "
                     "choose a shorter path",
                     option, path, n_bytes, SOCKET_MAX_BYTES);
}

static int prepare_socket(const struct settings *settings, struct paths *paths, struct error *err)
{
    if (!*settings->socket)
        return join("run-dir", paths->run_dir, "manager.sock", paths->socket, err);
    if (settings->socket[0] != '/')
        return error_set(err, STATUS_INVALID_ARGUMENT, "--socket: %s is not an absolute path",
                         settings->socket);
    snprintf(paths->socket, sizeof(paths->socket), "%s", settings->socket);
    return check_socket("socket", strlen(paths->socket), paths->socket, err);
}

/* Fills in state_dir, database and lock. */
static int find_state(const struct settings *settings, bool make, struct paths *paths,
                      struct error *err)
{
    char given[PATH_MAX];
    if (*settings->state_dir)
        snprintf(given, sizeof(given), "%s", settings->state_dir);
    else if (default_state_dir(make, given, err) != 0)
        return err->status;
    if (ensure_folder("state-dir", given, make, paths->state_dir, err) != 0 ||
        join("state-dir", paths->state_dir, "sluice.db", paths->database, err) != 0)
        return err->status;
    return join("state-dir", paths->state_dir, "sluice.lock", paths->lock, err);
}

int paths_prepare_state(const struct settings *settings, struct paths *out_paths, struct error *err)
{
    memset(out_paths, 0, sizeof(*out_paths));
    if (find_state(settings, false, out_paths, err) != 0)
        return err->status;
    if (access(out_paths->state_dir, F_OK) != 0)
        return error_errno(err, errno, "--state-dir: %s", out_paths->state_dir);
    return 0;
}

static int find_all(const struct settings *settings, bool make, struct paths *paths,
                    struct error *err)
{
    char given[PATH_MAX];
    memset(paths, 0, sizeof(*paths));
    if (find_state(settings, make, paths, err) != 0)
        return err->status;
    if (*settings->run_dir)
        snprintf(given, sizeof(given), "%s", settings->run_dir);
    else if (join("state-dir", paths->state_dir, "run", given, err) != 0)
        return err->status;
    if (ensure_folder("run-dir", given, make, paths->run_dir, err) != 0)
        return err->status;
    if (make && chmod(paths->run_dir, 0700) != 0)
        return error_errno(err, errno, "--run-dir: %s", paths->run_dir);
    if (check_socket("run-dir", strlen(paths->run_dir) + sizeof(longest_worker_socket) - 1,
                     paths->run_dir, err) != 0 ||
        join("run-dir", paths->run_dir, "manager.lock", paths->run_lock, err) != 0 ||
        prepare_socket(settings, paths, err) != 0 ||
        find_worker(settings->worker, paths->worker, err) != 0)
        return err->status;
    if (*settings->model_root && !realpath(settings->model_root, paths->model_root))
        return error_errno(err, errno, "--model-root: %s", settings->model_root);
    if (*settings->model_root && beneath_check(paths->model_root, err) != 0)
        return error_prefix(err, "--model-root");
    return 0;
}

static void point_settings(struct settings *settings, struct paths *paths)
{
    settings->state_dir = paths->state_dir;
    settings->run_dir = paths->run_dir;
    settings->socket = paths->socket;
    settings->worker = paths->worker;
    settings->model_root = paths->model_root;
}

int paths_check(struct settings *settings, struct paths *out_paths, bool *out_new,
                struct error *err)
{
    if (find_all(settings, false, out_paths, err) != 0)
        return err->status;
    *out_new = access(out_paths->database, F_OK) != 0;
    point_settings(settings, out_paths);
    return 0;
}

int paths_prepare(struct settings *settings, struct paths *out_paths, struct error *err)
{
    if (find_all(settings, true, out_paths, err) != 0)
        return err->status;
    point_settings(settings, out_paths);
    return 0;
}
