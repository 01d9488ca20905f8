/* doctor_state.c: checks of the state directory, its locks and model files. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/lock_file.h"
#include "base/system/path_access.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/worker_tool.h"
#include "proto/rpc/message/message.h"

enum { INSPECT_TIMEOUT_MS = 30000, PATH_BYTES = 1100 };

/* The store's write-ahead log grows to a few MiB before a checkpoint. The backup before a migration
 * needs the database's size again. */
static const uint64_t FEW_BYTES = 256ull << 20;

static const char *user_name(uid_t uid, char out[64])
{
    char buffer[1024];
    struct passwd entry, *found = NULL;
    if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) == 0 && found)
        snprintf(out, 64, "%.63s", entry.pw_name);
    else
        snprintf(out, 64, "uid %ld", (long)uid);
    return out;
}

static void check_space(struct doctor *doctor, const char *dir)
{
    struct statvfs space;
    char left[32], remedy[DOCTOR_REMEDY_BYTES];
    if (statvfs(dir, &space) != 0)
        return;
    uint64_t n_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    enum doctor_level level = n_bytes >= FEW_BYTES ? DOCTOR_OK
                              : n_bytes            ? DOCTOR_WARN
                                                   : DOCTOR_FAIL;
    doctor_add(doctor, level, "disk",
               level ? doctor_remedy(doctor, remedy,
                                     "du -xh %s | sort -h | tail   # free space on that disk: a "
                                     "full disk makes the manager refuse changes",
                                     dir)
                     : NULL,
               "%s free below %s", format_bytes(n_bytes, left), dir);
}

/* True if the directory can be used. A directory of another user without access cannot. */
static bool check_directory(struct doctor *doctor, const char *dir)
{
    struct stat at;
    char owner[64], remedy[DOCTOR_REMEDY_BYTES];
    if (stat(dir, &at) != 0) {
        bool absent = errno == ENOENT;
        doctor_add(doctor, absent ? DOCTOR_WARN : DOCTOR_FAIL, "state",
                   absent
                       ? doctor_remedy(doctor, remedy,
                                       "sluice serve%F   # creates the directory at its first "
                                       "start; or give another --state-dir")
                       : "run this command as the directory's owner, or give another --state-dir",
                   "%s: %s", dir, strerror(errno));
        return false;
    }
    if (!S_ISDIR(at.st_mode)) {
        doctor_add(doctor, DOCTOR_FAIL, "state", "give another --state-dir", "%s is no directory",
                   dir);
        return false;
    }
    user_name(at.st_uid, owner);
    if (access(dir, R_OK | W_OK | X_OK) != 0) {
        if (at.st_uid != geteuid() && (at.st_mode & 0700) == 0700)
            doctor_remedy(doctor, remedy, "sudo -u %s sluice doctor --state-dir %s", owner, dir);
        else
            doctor_remedy(doctor, remedy,
                          at.st_uid == geteuid() ? "chmod u+rwx %s" : "sudo chmod u+rwx %s", dir);
        doctor_add(doctor, DOCTOR_FAIL, "state", remedy, "%s, owner %s, mode %03o: %s", dir, owner,
                   at.st_mode & 0777, strerror(errno));
        return false;
    }
    bool open = (at.st_mode & 0022) != 0, foreign = at.st_uid != geteuid();
    if (open)
        doctor_remedy(doctor, remedy, "chmod go-w %s", dir);
    else
        doctor_remedy(doctor, remedy, "sudo -u %s sluice doctor --state-dir %s", owner, dir);
    doctor_add(doctor, open || foreign ? DOCTOR_WARN : DOCTOR_OK, "state",
               open || foreign ? remedy : NULL, "%s, owner %s, mode %03o%s", dir, owner,
               at.st_mode & 0777,
               open      ? ": other users may write there"
               : foreign ? ": belongs to another user"
                         : ", writable");
    return true;
}

/* Finds the holder of a lock file: 0 none, -1 unknown. False, with a finding, if the holder cannot
 * be determined. */
static bool find_holder(struct doctor *doctor, const char *check, const char *path, pid_t *out_pid)
{
    char remedy[DOCTOR_REMEDY_BYTES];
    struct error err;
    int fd, pidfd;
    *out_pid = 0;
    if (lock_file_open(path, &fd, &err) == 0) {
        *out_pid = lock_file_owner(fd, &pidfd);
        if (pidfd >= 0)
            close(pidfd);
        close(fd);
        return true;
    }
    if (err.status == STATUS_NOT_FOUND)
        return true;
    if (err.status == STATUS_PERMISSION_DENIED)
        doctor_add(doctor, DOCTOR_FAIL, check, "run this command as the file's owner", "%s",
                   err.message);
    else
        doctor_add(
            doctor, DOCTOR_FAIL, check,
            doctor_remedy(doctor, remedy, "ls -l %s   # shows what is there; move it away", path),
            "%s", err.message);
    return false;
}

/* Adds a finding for a lock that a foreign program holds. */
static void add_foreign_holder(struct doctor *doctor, const char *check, const char *path,
                               pid_t pid)
{
    char link[64], program[PATH_BYTES], remedy[DOCTOR_REMEDY_BYTES];
    snprintf(link, sizeof(link), "/proc/%ld/exe", (long)pid);
    ssize_t n = pid > 0 ? readlink(link, program, sizeof(program) - 1) : 0;
    program[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : "a process";
    bool of_manager = strcmp(check, "database lock") == 0;
    doctor_remedy(doctor, remedy,
                  of_manager ? "lsof %s   # shows the process; stop it, or no manager can start"
                             : "lsof %s   # shows the process; stop it, or no server can start",
                  path);
    if (pid > 0)
        doctor_add(doctor, DOCTOR_FAIL, check, remedy,
                   "%s is held by %.200s, pid %ld, which is no %s", path, name, (long)pid,
                   of_manager ? "manager" : "server");
    else
        doctor_add(doctor, DOCTOR_FAIL, check, remedy, "%s is held by an unknown process", path);
}

static void check_lock(struct doctor *doctor, const char *dir)
{
    char path[PATH_BYTES];
    pid_t pid;
    snprintf(path, sizeof(path), "%s/sluice.lock", dir);
    if (!find_holder(doctor, "database lock", path, &pid))
        return;
    if (!pid)
        doctor_add(doctor, DOCTOR_OK, "database lock", NULL, "free: no manager runs here");
    else if (pid > 0 && stray_runs(pid, "sluice-manager")) {
        doctor->lock_pids[0] = pid;
        doctor_add(doctor, DOCTOR_OK, "database lock", NULL, "held by sluice-manager, pid %ld",
                   (long)pid);
    } else
        add_foreign_holder(doctor, "database lock", path, pid);
}

/* Checks that the database file exists. `sluice-manager check` checks its contents. */
static void check_database(struct doctor *doctor, const char *dir)
{
    char path[PATH_BYTES], log[PATH_BYTES + 8], remedy[DOCTOR_REMEDY_BYTES], size[32];
    struct stat at, left;
    snprintf(path, sizeof(path), "%s/sluice.db", dir);
    snprintf(log, sizeof(log), "%s-wal", path);
    if (stat(path, &at) != 0 && errno == ENOENT && stat(log, &left) == 0 && left.st_size > 0)
        doctor_add(doctor, DOCTOR_FAIL, "database",
                   doctor_remedy(doctor, remedy, "sluice-manager check --state-dir %s", dir),
                   "%s is missing but its log exists, so no manager can start", path);
    else if (stat(path, &at) != 0 && errno == ENOENT)
        doctor_add(doctor, DOCTOR_OK, "database", NULL, "none yet");
    else if (stat(path, &at) != 0)
        doctor_add(doctor, DOCTOR_FAIL, "database", "run this command as the file's owner",
                   "%s: %s", path, strerror(errno));
    else if (!S_ISREG(at.st_mode))
        doctor_add(
            doctor, DOCTOR_FAIL, "database",
            doctor_remedy(doctor, remedy, "ls -ld %s   # shows what is there; move it away", path),
            "%s: is no regular file", path);
    else
        doctor_add(doctor, DOCTOR_OK, "database", NULL,
                   "%s, %s; to check its contents, stop the manager and run `sluice-manager check`",
                   path, format_bytes((uint64_t)at.st_size, size));
}

/* Checks the lock of the server that keeps its routes here, with or without `sluice serve`. */
static void check_server_lock(struct doctor *doctor, const char *dir)
{
    char path[PATH_BYTES], remedy[DOCTOR_REMEDY_BYTES];
    struct error err;
    pid_t pid;
    if (cli_program_setting(doctor->cli, "server", "lock-file", path, sizeof(path), &err) != 0 ||
        !path[0])
        snprintf(path, sizeof(path), "%s/routes.pb.lock", dir);
    if (!find_holder(doctor, "server lock", path, &pid))
        return;
    if (pid > 0 && stray_runs(pid, "sluice-server"))
        doctor->lock_pids[1] = pid;
    if (!pid)
        doctor_add(doctor, DOCTOR_OK, "server lock", NULL, "%s is free: no server runs here", path);
    else if (pid < 0 || !stray_runs(pid, "sluice-server"))
        add_foreign_holder(doctor, "server lock", path, pid);
    else if (stray_manager(dir))
        doctor_add(doctor, DOCTOR_OK, "server lock", NULL, "held by sluice-server, pid %ld",
                   (long)pid);
    else
        doctor_add(doctor, DOCTOR_WARN, "server lock",
                   doctor_remedy(doctor, remedy,
                                 "sluice stop%F   # stops the server; else `sluice serve` cannot "
                                 "start. A new manager would use the server"),
                   "%s is held by sluice-server, pid %ld, and no manager runs here: the server "
                   "uses its last routes",
                   path, (long)pid);
}

/* Warns if a killed `sluice serve` has left its manager behind: nothing starts manager and server
 * again. A manager of systemd, or one that was started by hand, needs no serve. */
static void check_supervision(struct doctor *doctor, const char *dir)
{
    char remedy[DOCTOR_REMEDY_BYTES];
    pid_t manager = stray_manager(dir);
    if (manager <= 0 || !stray_was_served(manager) || cli_is_served(dir))
        return;
    doctor_add(doctor, DOCTOR_WARN, "supervision",
               doctor_remedy(doctor, remedy,
                             "sluice stop%F; sluice serve%F   # loads the same models again"),
               "the `sluice serve` that started sluice-manager, pid %ld, has ended, so nothing "
               "starts manager and server again",
               (long)manager);
}

void doctor_check_state(struct doctor *doctor)
{
    const char *dir = doctor->cli->state_dir;
    struct error err;
    if (cli_need_state(doctor->cli, &err) != 0) {
        doctor_add(doctor, DOCTOR_FAIL, "state", "give --state-dir, or set HOME", "%s",
                   err.message);
        return;
    }
    if (!check_directory(doctor, dir))
        return;
    check_space(doctor, dir);
    check_database(doctor, dir);
    check_lock(doctor, dir);
    check_server_lock(doctor, dir);
    check_supervision(doctor, dir);
}

/* --- the model --- */

/* False, with a finding, if the file or folder cannot be read. */
static bool check_readable(struct doctor *doctor, const char *path, bool *out_is_folder)
{
    struct stat at;
    struct path_access access;
    if (path_access_find(AT_FDCWD, path, &access)) {
        doctor_add(doctor, DOCTOR_FAIL, "model", access.command, "%s", access.text);
        return false;
    }
    if (stat(path, &at) != 0) {
        doctor_add(doctor, DOCTOR_FAIL, "model", "give the path of an existing file or folder",
                   "%s: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISREG(at.st_mode) && !S_ISDIR(at.st_mode)) {
        doctor_add(doctor, DOCTOR_FAIL, "model", "give a GGUF file or a model's folder",
                   "%s is a pipe, socket or device", path);
        return false;
    }
    *out_is_folder = S_ISDIR(at.st_mode);
    return true;
}

void doctor_check_model(struct doctor *doctor, const char *path)
{
    const char *argv[WORKER_TOOL_MAX_ARGS] = {"", "inspect", path, "--text=false"};
    Sluice__Worker__V1__ToolReport *report;
    struct error err;
    uint64_t n_bytes = 0;
    char size[32];
    bool is_folder = false;
    if (!check_readable(doctor, path, &is_folder))
        return;
    if (worker_tool_run(argv, SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT, INSPECT_TIMEOUT_MS,
                        &report, &err) != 0) {
        doctor_add(doctor, DOCTOR_FAIL, "model",
                   is_folder ? "get the model again: its folder is damaged, incomplete or no model"
                             : "get the file again: it is damaged, incomplete or no model",
                   "%s: %s", path, err.message);
        return;
    }
    const Sluice__Worker__V1__InspectReport *inspect = report->inspect;
    for (size_t i = 0; i < inspect->n_files; i++)
        n_bytes += inspect->files[i]->size_bytes;
    if (inspect->unsupported_reason[0])
        doctor_add(doctor, DOCTOR_FAIL, "model", "see docs/use/models.md for supported models",
                   "%s can be read but not served: %s", path, inspect->unsupported_reason);
    else
        doctor_add(doctor, DOCTOR_OK, "model", NULL, "%s: %s, %u tensors, %s", path,
                   inspect->info ? inspect->info->architecture : "", inspect->tensor_count,
                   format_bytes(n_bytes, size));
    if (inspect->chat_template_error[0])
        doctor_add(doctor, DOCTOR_WARN, "model", "send raw prompts instead of chat messages",
                   "the model's chat template cannot be rendered: %s",
                   inspect->chat_template_error);
    rpc_message_free(&report->base);
}
