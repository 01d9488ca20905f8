#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "server/gateway/replicas/route_table.h"
#include "tests/unit/base/support_cmocka.h"

typedef Sluice__Manager__V1__RouteTable table_message;

enum { MAX = 8 };
static route rows[MAX];
static route *list[MAX];

/* A table of rows "model version weight default loaded". */
static struct route_table *make(size_t n, const char *const (*spec)[2], const int (*flags)[3])
{
    table_message message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    struct route_table *table;
    struct error err;
    for (size_t i = 0; i < n; i++) {
        rows[i] = (route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[i].model = (char *)(uintptr_t)spec[i][0];
        rows[i].version = (char *)(uintptr_t)spec[i][1];
        rows[i].traffic_weight = (uint32_t)flags[i][0];
        rows[i].is_default = flags[i][1];
        rows[i].loaded = flags[i][2];
        rows[i].sequence = i;
        list[i] = &rows[i];
    }
    message.generation = 42;
    message.routes = list;
    message.n_routes = n;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    return table;
}

static int pick(const struct route_table *table, const char *model, const char *version,
                uint64_t draw, const route **out_route, struct error *err)
{
    const struct route_wish wish = {.model = model, .version = version, .draw = draw};
    return route_table_pick(table, &wish, out_route, err);
}

static void test_named_version_and_its_errors(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}, {"m", "2"}};
    static const int flags[][3] = {{0, 0, 1}, {0, 0, 0}};
    struct route_table *table = make(2, spec, flags);
    const route *found;
    struct error err;
    assert_int_equal(pick(table, "m", "1", 0, &found, &err), 0);
    assert_string_equal(found->version, "1");
    assert_int_equal(pick(table, "m", "2", 0, &found, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_NOT_LOADED);
    assert_int_equal(pick(table, "m", "3", 0, &found, &err), STATUS_NOT_FOUND);
    assert_int_equal(err.reason, REASON_VERSION_NOT_FOUND);
    assert_int_equal(pick(table, "x", "", 0, &found, &err), STATUS_NOT_FOUND);
    assert_int_equal(err.reason, REASON_MODEL_NOT_FOUND);
    assert_int_equal(pick(table, "m", "", 0, &found, &err), 0);
    /* the loaded version, not the one that was registered first */
    assert_string_equal(found->version, "1");
    route_table_release(table);
}

static void test_weights_share_the_draws_in_their_ratio(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}, {"o", "9"}, {"m", "2"}, {"m", "3"}};
    static const int flags[][3] = {{1, 0, 1}, {5, 0, 1}, {3, 0, 1}, {7, 0, 0}};
    struct route_table *table = make(4, spec, flags);
    int n1 = 0, n2 = 0;
    for (uint64_t draw = 0; draw < 400; draw++) {
        const route *found;
        struct error err;
        assert_int_equal(pick(table, "m", "", draw, &found, &err), 0);
        n1 += strcmp(found->version, "1") == 0;
        n2 += strcmp(found->version, "2") == 0;
    }
    assert_int_equal(n1, 100);
    assert_int_equal(n2, 300);
    route_table_release(table);
}

/* Versions "1", "2", ... of one model with these weights, all sticky and loaded. */
static struct route_table *make_sticky(size_t n, const uint32_t *weights)
{
    static const char *const names[MAX] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    table_message message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    struct route_table *table;
    struct error err;
    for (size_t i = 0; i < n; i++) {
        rows[i] = (route)SLUICE__MANAGER__V1__ROUTE__INIT;
        rows[i].model = (char *)(uintptr_t) "m";
        rows[i].version = (char *)(uintptr_t)names[i];
        rows[i].traffic_weight = weights[i];
        rows[i].sticky = rows[i].loaded = 1;
        rows[i].sequence = i;
        list[i] = &rows[i];
    }
    message.routes = list;
    message.n_routes = n;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    return table;
}

enum { N_SESSIONS = 10000 };

static bool is_not(void *arg, const route *r)
{
    return strcmp(r->version, arg) != 0;
}

/* Writes the version number of each session to `out`. The version `down` takes no requests. */
static void assign(const struct route_table *table, const char *down, uint8_t *out)
{
    for (int i = 0; i < N_SESSIONS; i++) {
        char key[32];
        const route *found;
        struct error err;
        snprintf(key, sizeof(key), "session-%d", i);
        const struct route_wish wish = {.model = "m",
                                        .session_key = key,
                                        .draw = (uint64_t)rand(),
                                        .usable = is_not,
                                        .arg = (void *)(uintptr_t)down};
        assert_int_equal(route_table_pick(table, &wish, &found, &err), 0);
        out[i] = (uint8_t)(found->version[0] - '0');
    }
}

static void test_sessions_stay_and_few_move_when_weights_change(void **state)
{
    (void)state;
    static uint8_t before[N_SESSIONS], again[N_SESSIONS], after[N_SESSIONS];
    struct route_table *table = make_sticky(2, (const uint32_t[]){90, 10});
    int n2 = 0, moved = 0;
    assign(table, "-", before);
    assign(table, "-", again); /* the random draws must not matter */
    assert_memory_equal(before, again, sizeof(before));
    for (int i = 0; i < N_SESSIONS; i++)
        n2 += before[i] == 2;
    assert_in_range(n2, 850, 1150);
    route_table_release(table);
    table = make_sticky(2, (const uint32_t[]){50, 50});
    assign(table, "-", after);
    for (int i = 0; i < N_SESSIONS; i++) {
        moved += after[i] != before[i];
        assert_true(before[i] == 1 ||
                    after[i] == 2); /* a version whose share grows keeps its sessions */
    }
    assert_in_range(moved, 3700, 4300); /* 40 % of the sessions, and no others */
    route_table_release(table);
    /* A third version takes its share from both, and moves no session between them. */
    table = make_sticky(3, (const uint32_t[]){50, 50, 100});
    assign(table, "-", again);
    for (int i = 0; i < N_SESSIONS; i++)
        assert_true(again[i] == after[i] || again[i] == 3);
    /* If the third version cannot serve, only its own sessions move. */
    assign(table, "3", before);
    assert_memory_equal(before, after, sizeof(before));
    route_table_release(table);
}

/* A version with weight but without replicas is not waited for while another can serve. Where no
 * version with weight can serve, versions without weight still get nothing. */
static void test_weights_fall_back_to_what_can_serve(void **state)
{
    (void)state;
    struct route_table *table = make_sticky(3, (const uint32_t[]){1, 1, 0});
    struct route_wish wish = {.model = "m", .usable = is_not, .arg = (void *)(uintptr_t) "1"};
    const route *found;
    struct error err;
    for (wish.draw = 0; wish.draw < 10; wish.draw++) {
        assert_int_equal(route_table_pick(table, &wish, &found, &err), 0);
        assert_string_equal(found->version, "2");
    }
    route_table_release(table);
    table = make_sticky(3, (const uint32_t[]){1, 0, 0});
    for (wish.draw = 0; wish.draw < 10; wish.draw++) {
        assert_int_equal(route_table_pick(table, &wish, &found, &err), 0);
        assert_string_equal(found->version, "1");
    }
    route_table_release(table);
    /* Between two versions that cannot serve, the version that is starting is chosen. */
    table_message message = SLUICE__MANAGER__V1__ROUTE_TABLE__INIT;
    Sluice__Manager__V1__RouteReplica replica = SLUICE__MANAGER__V1__ROUTE_REPLICA__INIT;
    Sluice__Manager__V1__RouteReplica *replicas[] = {&replica};
    route_table_release(make_sticky(2, (const uint32_t[]){1, 1}));
    rows[1].n_replicas = 1;
    rows[1].replicas = replicas;
    message.routes = list;
    message.n_routes = 2;
    replica.state = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING;
    assert_int_equal(route_table_from_message(&message, &table, &err), 0);
    /* without a set of usable versions, the table alone decides */
    wish = (struct route_wish){.model = "m"};
    for (wish.draw = 0; wish.draw < 10; wish.draw++) {
        assert_int_equal(route_table_pick(table, &wish, &found, &err), 0);
        assert_string_equal(found->version, "2");
    }
    route_table_release(table);
}

static void test_table_survives_the_disk(void **state)
{
    (void)state;
    static const char *const spec[][2] = {{"m", "1"}};
    static const int flags[][3] = {{7, 1, 1}};
    char path[] = "/tmp/sluice-routes-XXXXXX";
    struct route_table *table = make(1, spec, flags), *back;
    struct error err;
    int fd = mkstemp(path);
    assert_int_equal(route_table_save(table, path, &err), 0);
    assert_int_equal(route_table_load(path, &back, &err), 0);
    assert_int_equal(route_table_message(back)->generation, 42);
    assert_string_equal(route_table_message(back)->routes[0]->model, "m");
    assert_int_equal(route_table_message(back)->routes[0]->traffic_weight, 7);
    route_table_release(back);
    assert_int_equal(truncate(path, 3), 0);
    assert_int_equal(route_table_load(path, &back, &err), STATUS_INVALID_ARGUMENT);
    close(fd);
    unlink(path);
    assert_int_equal(route_table_load(path, &back, &err), STATUS_NOT_FOUND);
    assert_true(route_table_save(table, "/proc/no/such", &err) < 0);
    route_table_release(table);
    route_table_release(NULL);
}

enum { N_SERVERS = 2, N_SAVES = 100 };

struct saving {
    pthread_t thread;
    const struct route_table *table;
    const char *path;
    int n_failed;
};

static void *save_often(void *arg)
{
    struct saving *saving = arg;
    struct error err;
    for (int i = 0; i < N_SAVES; i++)
        saving->n_failed += route_table_save(saving->table, saving->path, &err) != 0;
    return NULL;
}

static size_t count_files(const char *folder)
{
    size_t n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Symptom: both servers of a takeover wrote one temporary file. The first rename published the half
 * of the other server. */
static void test_save_when_two_servers_save_then_each_copy_is_whole(void **state)
{
    static const char *const spec[][2] = {{"m", "1"}, {"other", "2"}, {"third", "3"}};
    static const int flags[][3] = {{7, 1, 1}, {1, 1, 1}, {2, 1, 1}};
    char folder[] = "/tmp/sluice-routes-XXXXXX", path[64], old[80], young[80];
    struct saving servers[N_SERVERS];
    struct route_table *back;
    struct error err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/routes.pb", folder);
    for (size_t i = 0; i < N_SERVERS; i++)
        servers[i] = (struct saving){.table = make(1 + 2 * i, spec, flags), .path = path};
    assert_int_equal(route_table_save(servers[0].table, path, &err), 0);
    for (size_t i = 0; i < N_SERVERS; i++)
        assert_int_equal(pthread_create(&servers[i].thread, NULL, save_often, &servers[i]), 0);
    for (int i = 0; i < N_SAVES; i++) {
        assert_int_equal(route_table_load(path, &back, &err), 0);
        route_table_release(back);
    }
    for (size_t i = 0; i < N_SERVERS; i++) {
        pthread_join(servers[i].thread, NULL);
        assert_int_equal(servers[i].n_failed, 0);
    }
    assert_int_equal(count_files(folder), 1);
    assert_true(route_table_save(servers[0].table, folder, &err) < 0); /* a folder is no file */

    /* A killed server leaves its file; the next load removes the file once a writer cannot live. */
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    snprintf(old, sizeof(old), "%s.new-abcdef", path);
    snprintf(young, sizeof(young), "%s.new-ghijkl", path);
    close(open(old, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    close(open(young, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(utimensat(AT_FDCWD, old, long_ago, 0), 0);
    assert_int_equal(route_table_load(path, &back, &err), 0);
    route_table_release(back);
    assert_int_equal(access(old, F_OK), -1);
    assert_int_equal(access(young, F_OK), 0);
    unlink(young);
    unlink(path);
    rmdir(folder);
    for (size_t i = 0; i < N_SERVERS; i++)
        route_table_release((struct route_table *)(uintptr_t)servers[i].table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_version_and_its_errors),
        cmocka_unit_test(test_weights_share_the_draws_in_their_ratio),
        cmocka_unit_test(test_sessions_stay_and_few_move_when_weights_change),
        cmocka_unit_test(test_weights_fall_back_to_what_can_serve),
        cmocka_unit_test(test_table_survives_the_disk),
        cmocka_unit_test(test_save_when_two_servers_save_then_each_copy_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
