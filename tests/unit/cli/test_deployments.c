#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/commands/deployments.h"
#include "tests/unit/base/support_cmocka.h"

typedef Sluice__Manager__V1__Model model_message;
typedef Sluice__Manager__V1__ModelVersion version_message;
typedef Sluice__Manager__V1__Deployment deployment_message;

/* The model smol: version 1 is ready on cpu and left, version 2 is only registered. */
struct fixture {
    deployment_message deployments[2];
    deployment_message *list[2];
    version_message versions[2];
    version_message *version_list[2];
    model_message model;
};

static void make(struct fixture *f)
{
    static char cpu[] = "cpu", left[] = "left", one[] = "1", two[] = "2", smol[] = "smol";
    static char *const groups[] = {cpu, left};
    static char *const names[] = {one, two};
    f->model = (model_message)SLUICE__MANAGER__V1__MODEL__INIT;
    f->model.name = smol;
    f->model.versions = f->version_list;
    f->model.n_versions = 2;
    for (int i = 0; i < 2; i++) {
        f->deployments[i] = (deployment_message)SLUICE__MANAGER__V1__DEPLOYMENT__INIT;
        f->deployments[i].device_group = groups[i];
        f->deployments[i].n_replicas = 1;
        f->list[i] = &f->deployments[i];
        f->versions[i] = (version_message)SLUICE__MANAGER__V1__MODEL_VERSION__INIT;
        f->versions[i].version = names[i];
        f->versions[i].sequence = (uint64_t)i + 1;
        f->version_list[i] = &f->versions[i];
    }
    f->versions[0].deployments = f->list;
    f->versions[0].n_deployments = 2;
    f->versions[0].n_ready_replicas = 2;
}

static char *default_line(const struct fixture *f, const char *version)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    deployments_print_default(out, &f->model, version, true);
    fclose(out);
    return text;
}

/* Symptom: a load of version 2 moved all requests without a version, and no message told the
 * user. */
static void test_load_when_newer_than_the_default_then_names_both_versions(void **state)
{
    (void)state;
    struct fixture f;
    make(&f);
    assert_string_equal(deployments_default(&f.model), "1");
    char *line = default_line(&f, "2");
    assert_non_null(strstr(line, "sluice traffic smol 1=100"));
    free(line);
    line = default_line(&f, ""); /* the version registered last */
    assert_non_null(strstr(line, "sluice traffic smol 1=100"));
    free(line);
}

static void test_load_when_the_default_stays_then_prints_nothing(void **state)
{
    (void)state;
    struct fixture f;
    make(&f);
    char *line = default_line(&f, "1"); /* a further group of the default version */
    assert_string_equal(line, "");
    free(line);
    Sluice__Manager__V1__Traffic traffic = SLUICE__MANAGER__V1__TRAFFIC__INIT;
    Sluice__Manager__V1__TrafficWeight weight = SLUICE__MANAGER__V1__TRAFFIC_WEIGHT__INIT,
                                       *weights[] = {&weight};
    traffic.weights = weights;
    traffic.n_weights = 1;
    f.model.traffic = &traffic;
    line = default_line(&f, "2");
    assert_string_equal(line, "");
    free(line);
    f.model.traffic = NULL;
    f.versions[0].n_ready_replicas = 0; /* nothing served before */
    line = default_line(&f, "2");
    assert_string_equal(line, "");
    free(line);
}

static char *others_line(const struct fixture *f, const char *version, const char *group)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    deployments_print_others(out, &f->model, version, group);
    fclose(out);
    return text;
}

/* Symptom: a load onto another group added a second deployment and said nothing. */
static void test_load_when_loaded_on_another_group_then_names_the_group(void **state)
{
    (void)state;
    struct fixture f;
    make(&f);
    char *line = others_line(&f, "1", "");
    assert_non_null(strstr(line, "left"));
    assert_null(strstr(line, "cpu"));
    free(line);
    line = others_line(&f, "2", "cpu");
    assert_string_equal(line, "");
    free(line);
}

static char *unload_lines(const struct fixture *f, const char *version, const char *group)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    deployments_print(out, &f->model, version, group, "");
    fclose(out);
    return text;
}

/* Symptom: an unload without a version ended every version and named none of them. */
static void test_unload_when_without_version_then_names_every_deployment(void **state)
{
    (void)state;
    struct fixture f;
    make(&f);
    f.versions[1].deployments = &f.list[1]; /* version 2 on left alone */
    f.versions[1].n_deployments = 1;
    char *lines = unload_lines(&f, "", "");
    assert_non_null(strstr(lines, "version 1 on cpu"));
    assert_non_null(strstr(lines, "version 1 on left"));
    assert_non_null(strstr(lines, "version 2 on left"));
    free(lines);
    lines = unload_lines(&f, "2", "");
    assert_null(strstr(lines, "version 1"));
    free(lines);
    lines = unload_lines(&f, "", "cpu");
    assert_null(strstr(lines, "left"));
    free(lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_when_newer_than_the_default_then_names_both_versions),
        cmocka_unit_test(test_load_when_the_default_stays_then_prints_nothing),
        cmocka_unit_test(test_load_when_loaded_on_another_group_then_names_the_group),
        cmocka_unit_test(test_unload_when_without_version_then_names_every_deployment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
