#include "tests/simt/test/test_support.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void run_child_case(int argc, char **argv, const child_case *cases, size_t n_cases)
{
    if (argc < 2)
        return;
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (size_t i = 0; i < n_cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            exit(cases[i].run());
    fprintf(stderr, "no case %s\n", argv[1]);
    exit(99);
}

child_end in_child(const char *name, const std::vector<std::string> &settings)
{
    int ends[2], status = 0;
    pid_t child;
    std::vector<char *> environment;
    for (const std::string &s : settings) /* the first setting of a name wins */
        environment.push_back(const_cast<char *>(s.c_str()));
    for (char **e = environ; *e != NULL; e++)
        environment.push_back(*e);
    environment.push_back(NULL);
    char *arguments[] = {(char *)"child", (char *)name, NULL};
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    assert_int_equal(
        posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    child_end end = {0, 0, ""};
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
        end.said.append(buffer, (size_t)n);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return end;
}

void expect_abort(const char *name, const char *text)
{
    /* The text names the first thread, so turns are in order. */
    child_end end = in_child(name, {"SIMT_SHUFFLE=0"});
    if (end.signal != SIGABRT || end.said.find(text) == std::string::npos)
        fail_msg("%s: signal %d, code %d, wanted \"%s\" in:\n%s", name, end.signal, end.exit_code,
                 text, end.said.c_str());
}
