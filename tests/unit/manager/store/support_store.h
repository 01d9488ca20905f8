/* support_store.h: a state store in a folder of its own. A test submits changes and waits for their
 * ends. Fails the test where a step fails. Test's thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "manager/base/message.h"
#include "manager/store/store.h"

struct fixture {
    char folder[64];
    char path[96]; /* path of the database */
    struct store *store;
    struct catalog catalog;
    int wake_fd;
};

/* For cmocka: *state is the fixture, either with an open store or with only the folder. */
int fixture_setup(void **state);
int fixture_setup_folder(void **state);
int fixture_teardown(void **state);

int fixture_open(struct fixture *f, struct error *err);
void fixture_close(struct fixture *f);
void fixture_reopen(struct fixture *f);
/* For a config that a test makes itself: store_config.wake, with the fixture as its arg. */
void fixture_wake(void *arg);

/* A change: body makes the change, the other fields are its input and result. */
struct job {
    int (*body)(struct txn *txn, struct job *job, struct error *err);
    const char *name;
    const char *request_id;
    uint64_t value;
    ProtobufCMessage *response;
    bool done;
    struct error status;
};

/* For store_submit(), with the job as arg. */
int job_body(struct txn *txn, void *arg, struct error *err);
void job_done(void *arg, const struct error *status);
/* Waits until the job is done; returns its status. */
int job_wait(struct fixture *f, struct job *job);
/* Submits it and waits. */
int job_run(struct fixture *f, struct job *job);

/* Bodies of changes. The first puts a model <name> of generation <value> and its event. The second
 * puts more and then fails, so that all is undone. */
int job_put_model(struct txn *txn, struct job *job, struct error *err);
int job_put_then_fail(struct txn *txn, struct job *job, struct error *err);
pb_model *job_new_model(const char *name, uint64_t generation);
