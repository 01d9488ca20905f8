/* bench_ab.c: two choices of a variable, measured alternately. Each run is a process of its own,
 * because the backend reads its variables once. The order turns with each round: a b, b a, a b. So
 * a drift of the card's clock meets both. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/gpu/bench/bench_gpu.h"

enum { MAX_ROUNDS = 16, MAX_KEYS = 512, KEY = 96, MAX_ARGUMENTS = 64, LATER_WARM_MS = 300 };

static const int64_t LEAST_PATIENCE_NS = 10 * NS_PER_S;

extern char **environ;

struct ab_key {
    char name[KEY];
    double seconds[2][MAX_ROUNDS]; /* a time per choice and round; 0: none */
};

struct ab {
    char variable[64], values[2][192];
    uint32_t n_rounds, n_keys;
    int64_t end_ns, longest_ns; /* no run begins that may last beyond the end */
    struct ab_key *keys;
};

static bool parse_choice(const char *choice, struct ab *ab)
{
    const char *equals = strchr(choice, '='), *comma = equals ? strchr(equals, ',') : NULL;
    if (comma == NULL || equals == choice || strchr(comma + 1, ',') != NULL)
        return false;
    int n = snprintf(ab->variable, sizeof(ab->variable), "%.*s", (int)(equals - choice), choice);
    int n_first = snprintf(ab->values[0], sizeof(ab->values[0]), "%.*s", (int)(comma - equals - 1),
                           equals + 1);
    int n_second = snprintf(ab->values[1], sizeof(ab->values[1]), "%s", comma + 1);
    return n < (int)sizeof(ab->variable) && n_first < (int)sizeof(ab->values[0]) &&
           n_second < (int)sizeof(ab->values[1]);
}

static struct ab_key *key_of(struct ab *ab, const char *name)
{
    for (uint32_t i = 0; i < ab->n_keys; i++)
        if (strcmp(ab->keys[i].name, name) == 0)
            return &ab->keys[i];
    if (ab->n_keys == MAX_KEYS)
        return NULL;
    struct ab_key *key = &ab->keys[ab->n_keys++];
    snprintf(key->name, sizeof(key->name), "%.*s", KEY - 1, name);
    return key;
}

static void read_record(struct ab *ab, const char *path, int choice, uint32_t round)
{
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        char *tab = strchr(line, '\t');
        if (tab == NULL)
            continue;
        *tab = 0;
        struct ab_key *key = key_of(ab, line);
        if (key)
            key->seconds[choice][round] = strtod(tab + 1, NULL);
    }
    if (file)
        fclose(file);
}

/* Waits for a child, until end_ns at most: a kernel may hang. Returns its exit status. */
static int wait_for(pid_t pid, int64_t end_ns)
{
    sigset_t child;
    int status = 0;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int64_t left = end_ns - clock_now_ns();
        pid_t ended = waitpid(pid, &status, left > 0 ? WNOHANG : 0);
        if (ended == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (ended < 0 && errno != EINTR)
            return errno;
        const struct timespec wait = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
        if (left > 0 && sigtimedwait(&child, NULL, &wait) < 0 && errno == EAGAIN)
            kill(pid, SIGKILL);
    }
}

/* Runs this program, or the one of SLUICE_BENCH_PROGRAM, with the other arguments. Discards its
 * table. Returns its exit status. */
static int run_child(int argc, char **argv, const char *record, const char *warm_ms, bool builds,
                     int64_t end_ns)
{
    char *args[MAX_ARGUMENTS + 8 + 1];
    /* for example the bench of an older build */
    const char *program = getenv("SLUICE_BENCH_PROGRAM");
    int n = 0;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    for (int i = 0; i < argc && n < MAX_ARGUMENTS; i++) {
        if (strcmp(argv[i], "--ab") == 0 || strcmp(argv[i], "--rounds") == 0 ||
            strcmp(argv[i], "--most") == 0)
            i++;
        else
            args[n++] = argv[i];
    }
    const char *const added[] = {"--no-ceilings", "--record", record, "--warm",
                                 warm_ms,         "--repeat", "0.1"};
    /* An older build does not know the last option. */
    const size_t n_added = sizeof(added) / sizeof(added[0]) - (builds ? 2 : 0);
    for (size_t i = 0; i < n_added; i++)
        args[n++] = (char *)(uintptr_t)added[i]; /* posix_spawn only reads them */
    args[n] = NULL;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1, 0);
    int rc = posix_spawn(&pid, program ? program : "/proc/self/exe", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        return rc;
    return wait_for(pid, end_ns);
}

/* A run may last three times as long as the longest before, but at least LEAST_PATIENCE_NS. */
static int64_t end_of_run(const struct ab *ab)
{
    int64_t patience = 3 * ab->longest_ns, now = clock_now_ns();
    if (patience < LEAST_PATIENCE_NS)
        patience = LEAST_PATIENCE_NS;
    return ab->longest_ns == 0 || now + patience > ab->end_ns ? ab->end_ns : now + patience;
}

static int run_choice(struct ab *ab, int choice, uint32_t round, int argc, char **argv)
{
    char record[] = "/tmp/bench_ab.XXXXXX", warm_ms[16];
    const char *value = ab->values[choice];
    int fd = mkstemp(record);
    if (fd < 0)
        return 1;
    close(fd);
    snprintf(warm_ms, sizeof(warm_ms), "%d", round == 0 && choice == 0 ? 2000 : LATER_WARM_MS);
    int rc = *value ? setenv(ab->variable, value, 1) : unsetenv(ab->variable);
    if (rc == 0)
        rc = run_child(argc, argv, record, warm_ms,
                       strcmp(ab->variable, "SLUICE_BENCH_PROGRAM") == 0, end_of_run(ab));
    if (rc == 0)
        read_record(ab, record, choice, round);
    else
        printf("FAIL %s=%s: status %d in round %u\n", ab->variable, value, rc, round + 1);
    fflush(stdout);
    unlink(record);
    return rc;
}

/* Times of the key's choice, and ratios of the rounds that have both. */
static void print_key(const struct ab *ab, const struct ab_key *key)
{
    double times[2][MAX_ROUNDS], ratios[MAX_ROUNDS];
    uint32_t n[2] = {0, 0}, n_ratios = 0;
    for (uint32_t r = 0; r < ab->n_rounds; r++) {
        for (int c = 0; c < 2; c++)
            if (key->seconds[c][r] > 0.0)
                times[c][n[c]++] = key->seconds[c][r];
        if (key->seconds[0][r] > 0.0 && key->seconds[1][r] > 0.0)
            ratios[n_ratios++] = key->seconds[0][r] / key->seconds[1][r];
    }
    printf("| %s |", key->name);
    for (int c = 0; c < 2; c++)
        if (n[c] > 0)
            printf(" %.1f |", bench_time_of(times[c], n[c]).median * 1e6);
        else
            printf(" - |");
    if (n_ratios == 0) {
        printf(" - |\n");
        return;
    }
    struct bench_time ratio = bench_time_of(ratios, n_ratios);
    printf(" %.3f (%.3f to %.3f) |\n", ratio.median, ratio.least, ratios[n_ratios - 1]);
}

/* Runs all rounds, or until a choice fails or the time is over. Returns a failure's status. */
static int run_rounds(struct ab *ab, int argc, char **argv)
{
    for (uint32_t r = 0; r < ab->n_rounds; r++)
        for (int i = 0; i < 2; i++) {
            int64_t begin = clock_now_ns();
            if (begin + ab->longest_ns > ab->end_ns) {
                printf("The time is over in round %u.\n", r + 1);
                return 0;
            }
            int rc = run_choice(ab, r % 2 ? 1 - i : i, r, argc, argv);
            if (rc != 0)
                return rc;
            int64_t ns = clock_now_ns() - begin;
            ab->longest_ns = ns > ab->longest_ns ? ns : ab->longest_ns;
        }
    return 0;
}

int bench_ab(const char *choice, uint32_t n_rounds, double most_s, int argc, char **argv)
{
    struct ab ab = {.n_rounds = n_rounds > MAX_ROUNDS ? MAX_ROUNDS : n_rounds,
                    .end_ns = clock_now_ns() + (int64_t)(most_s * 1e9)};
    if (!parse_choice(choice, &ab)) {
        fprintf(stderr, "bench_cuda: --ab wants VARIABLE=a,b and not \"%s\"\n", choice);
        return 2;
    }
    sigset_t child; /* for wait_for() */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    ab.keys = calloc(MAX_KEYS, sizeof(*ab.keys));
    if (ab.keys == NULL)
        return 1;
    int rc = run_rounds(&ab, argc, argv);
    printf(
        "%s: median us of at most %u rounds; ratio a/b above 1: b is faster; least and most of the "
        "rounds.\n\n| call | a: %s | b: %s | a/b |\n| --- | --- | --- | --- |\n",
        ab.variable, ab.n_rounds, *ab.values[0] ? ab.values[0] : "(unset)",
        *ab.values[1] ? ab.values[1] : "(unset)");
    for (uint32_t i = 0; i < ab.n_keys; i++)
        print_key(&ab, &ab.keys[i]);
    printf("\n");
    free(ab.keys);
    return rc != 0;
}
