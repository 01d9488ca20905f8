#include "manager/host/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ev.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "manager/base/message.h"
#include "manager/host/process.h"
#include "proto/rpc/message/message.h"

enum { OUTPUT_MAX_BYTES = 16 << 20, OPEN_FILES = 4096 /* a model may have 2,048 files */ };

struct tool {
    struct tool *next; /* in a list of the runner */
    struct tool_runner *runner;
    char *argv[PROCESS_MAX_ARGUMENTS];
    pb_launch *record; /* or NULL */
    tool_done_fn *done;
    void *arg;
    struct process process;
    ev_io output_watch, exit_watch;
    ev_timer timeout;
    int output_fd; /* -1: end of the output */
    bool exited;
    struct process_end end;
    struct strbuf output;
    struct error err; /* why the tool was killed */
};

struct tool_runner {
    struct tool_config config;
    struct tool *running, *waiting;
    uint32_t n_running, n_waiting;
};

static void tool_free(struct tool *tool)
{
    for (size_t i = 1; i < PROCESS_MAX_ARGUMENTS && tool->argv[i]; i++)
        free(tool->argv[i]);
    if (tool->record)
        message_free(&tool->record->base);
    process_fini(&tool->process);
    if (tool->output_fd >= 0)
        close(tool->output_fd);
    strbuf_fini(&tool->output);
    free(tool);
}

static void unlink_tool(struct tool **list, struct tool *tool)
{
    while (*list && *list != tool)
        list = &(*list)->next;
    if (*list)
        *list = tool->next;
}

static void start_waiting(struct tool_runner *runner);

/* Delivers the result of the run: a report, the report's error, or why there is no report. */
static void deliver(struct tool *tool)
{
    struct error err = tool->err;
    ProtobufCMessage *message = NULL;
    const pb_tool *report = NULL;
    if (err.status == 0 && tool->output.n_bytes == 0) {
        if (tool->end.signal_number)
            error_set(&err, STATUS_INTERNAL, "the one-shot process was ended by signal %d",
                      tool->end.signal_number);
        else
            error_set(&err, STATUS_INTERNAL,
                      "the one-shot process ended with status %d and no report",
                      tool->end.exit_status);
        error_reason(&err, tool->end.signal_number ? REASON_TOOL_CRASHED : REASON_TOOL_FAILED);
    } else if (err.status == 0 && rpc_message_parse(&sluice__worker__v1__tool_report__descriptor,
                                                    strbuf_str(&tool->output), tool->output.n_bytes,
                                                    &message, &err) == 0) {
        report = (const pb_tool *)message;
        if (report->result_case == SLUICE__WORKER__V1__TOOL_REPORT__RESULT_ERROR)
            message_to_error(&report->error->base, &err);
        else if (report->result_case == SLUICE__WORKER__V1__TOOL_REPORT__RESULT__NOT_SET)
            error_set(&err, STATUS_INTERNAL, "the one-shot process sent an empty report");
    }
    tool->done(tool->arg, err.status == 0 ? report : NULL, &err);
    rpc_message_free(message);
}

static void finish(struct tool *tool)
{
    struct tool_runner *runner = tool->runner;
    if (!tool->exited || tool->output_fd >= 0)
        return;
    ev_timer_stop(runner->config.loop, &tool->timeout);
    unlink_tool(&runner->running, tool);
    runner->n_running--;
    deliver(tool);
    tool_free(tool);
    start_waiting(runner);
}

static void kill_tool(struct tool *tool, int rc, const char *text)
{
    if (tool->err.status == 0)
        error_set(&tool->err, rc, "%s", text);
    process_signal(&tool->process, SIGKILL);
}

static void on_output(struct ev_loop *loop, ev_io *watcher, int events)
{
    struct tool *tool = watcher->data;
    char buffer[16384];
    (void)events;
    ssize_t n = read(tool->output_fd, buffer, sizeof(buffer));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        if (tool->err.status == 0 && !strbuf_add(&tool->output, buffer, (size_t)n))
            kill_tool(tool, STATUS_RESOURCE_EXHAUSTED,
                      "the one-shot process wrote more than 16 MiB");
        return;
    }
    ev_io_stop(loop, watcher);
    close(tool->output_fd);
    tool->output_fd = -1;
    finish(tool);
}

static void on_exit_seen(struct ev_loop *loop, ev_io *watcher, int events)
{
    struct tool *tool = watcher->data;
    (void)events;
    if (!process_ended(&tool->process, &tool->end))
        return;
    ev_io_stop(loop, watcher);
    tool->exited = true;
    finish(tool);
}

static void on_timeout(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)loop;
    (void)events;
    kill_tool(watcher->data, STATUS_DEADLINE_EXCEEDED, "the one-shot process took too long");
}

static void set_limit(pid_t pid, __rlimit_resource_t resource, rlim_t value)
{
    struct rlimit limit = {.rlim_cur = value, .rlim_max = value};
    /* Fails where the process has ended already, or may not have so many files anyway. */
    (void)prlimit(pid, resource, &limit, NULL);
}

static void set_limits(struct tool *tool)
{
    pid_t pid = tool->process.pid;
    rlim_t seconds = (rlim_t)(tool->runner->config.timeout_ms / 1000 + 1);
    set_limit(pid, RLIMIT_CPU, seconds);
    set_limit(pid, RLIMIT_FSIZE, 0);
    set_limit(pid, RLIMIT_CORE, 0);
    set_limit(pid, RLIMIT_NOFILE, OPEN_FILES);
}

static int start(struct tool *tool, struct error *err)
{
    struct tool_runner *runner = tool->runner;
    struct ev_loop *loop = runner->config.loop;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return error_errno(err, errno, "pipe");
    /* Only the manager's end: the tool's end must block. */
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    struct process_launch launch = {
        .program = runner->config.program,
        .argv = tool->argv,
        .env = runner->config.environment,
        .stdout_fd = fds[1],
        .record = tool->record,
    };
    int rc = process_spawn(&launch, &tool->process, err);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        return rc;
    }
    set_limits(tool);
    tool->output_fd = fds[0];
    ev_io_init(&tool->output_watch, on_output, fds[0], EV_READ);
    ev_io_init(&tool->exit_watch, on_exit_seen, tool->process.pidfd, EV_READ);
    ev_timer_init(&tool->timeout, on_timeout, (double)runner->config.timeout_ms / 1e3, 0.);
    tool->output_watch.data = tool->exit_watch.data = tool->timeout.data = tool;
    ev_io_start(loop, &tool->output_watch);
    ev_io_start(loop, &tool->exit_watch);
    ev_timer_start(loop, &tool->timeout);
    tool->next = runner->running;
    runner->running = tool;
    runner->n_running++;
    return 0;
}

static void start_waiting(struct tool_runner *runner)
{
    while (runner->waiting && runner->n_running < runner->config.max_running) {
        struct tool *tool = runner->waiting;
        struct error err;
        runner->waiting = tool->next;
        runner->n_waiting--;
        if (start(tool, &err) != 0) {
            tool->done(tool->arg, NULL, &err);
            tool_free(tool);
        }
    }
}

int tool_runner_create(const struct tool_config *config, struct tool_runner **out_runner,
                       struct error *err)
{
    struct tool_runner *runner = calloc(1, sizeof(*runner));
    if (!runner)
        return error_no_memory(err);
    runner->config = *config;
    if (!runner->config.max_running)
        runner->config.max_running = 4;
    if (!runner->config.max_waiting)
        runner->config.max_waiting = 64;
    *out_runner = runner;
    return 0;
}

void tool_runner_destroy(struct tool_runner *runner)
{
    struct error err;
    if (!runner)
        return;
    error_set(&err, STATUS_CANCELLED, "the manager is stopping");
    for (struct tool *tool = runner->waiting, *next; tool; tool = next) {
        next = tool->next;
        tool->done(tool->arg, NULL, &err);
        tool_free(tool);
    }
    for (struct tool *tool = runner->running, *next; tool; tool = next) {
        next = tool->next;
        ev_io_stop(runner->config.loop, &tool->output_watch);
        ev_io_stop(runner->config.loop, &tool->exit_watch);
        ev_timer_stop(runner->config.loop, &tool->timeout);
        process_signal(&tool->process, SIGKILL);
        tool->done(tool->arg, NULL, &err);
        tool_free(tool);
    }
    free(runner);
}

int tool_run(struct tool_runner *runner, const char *const *arguments, const pb_launch *record,
             tool_done_fn *done, void *arg, struct error *err)
{
    if (runner->n_waiting >= runner->config.max_waiting) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%u one-shot processes are waiting: that is the limit; try again",
                  runner->n_waiting);
        err->retry_after_ms = 1000;
        return error_reason(err, REASON_TOO_MANY_TOOLS);
    }
    struct tool *tool = calloc(1, sizeof(*tool));
    if (!tool)
        return error_no_memory(err);
    tool->runner = runner;
    tool->done = done;
    tool->arg = arg;
    tool->output_fd = -1;
    tool->process.pidfd = -1;
    strbuf_init(&tool->output, OUTPUT_MAX_BYTES);
    static char program_name[] = "sluice-worker";
    tool->argv[0] = program_name;
    for (size_t i = 0; arguments[i]; i++) {
        if (i + 2 >= PROCESS_MAX_ARGUMENTS || !(tool->argv[i + 1] = strdup(arguments[i]))) {
            tool_free(tool);
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "too many arguments");
        }
    }
    if (record && !(tool->record = MESSAGE_COPY(pb_launch, record))) {
        tool_free(tool);
        return error_no_memory(err);
    }
    struct tool **tail = &runner->waiting;
    while (*tail)
        tail = &(*tail)->next;
    *tail = tool;
    runner->n_waiting++;
    start_waiting(runner);
    return 0;
}
