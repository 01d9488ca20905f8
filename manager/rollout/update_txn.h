/* update_txn.h: the moves of a rolling update as transactions. Store thread, except where noted. */
#pragma once

#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/rollout/update_rules.h"

struct error;
struct txn;
struct updates;

enum { UPDATE_ID_BYTES = 24 };

struct moving {
    struct updates *updates;
    char id[UPDATE_ID_BYTES];
    enum update_phase phase; /* phase and step when the move was decided */
    uint32_t step;
    struct update_decision decision;
    char failed_stage[16];
    pb_error *error; /* GO_BACK: error of the first failed replica, or NULL; owned */
    struct update_counts new_counts, old_counts;
};

/* A store_txn_fn; `arg` is a struct moving. Does nothing where phase or step of the operation
 * have changed since the decision. */
int update_txn_run(struct txn *txn, void *arg, struct error *err);

/* Any thread. */
pb_figures update_txn_figures(const struct update_counts *counts, const pb_gates *gates);
