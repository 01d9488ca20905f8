/* update_txn.h: the moves of a rolling update as transactions: what update_rules.h decided,
 * written. Store thread, but where said. */
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
    enum update_phase phase; /* as it was looked at: a move is of no other */
    uint32_t step;
    struct update_decision decision;
    char failed_stage[16];
    pb_error *error; /* GO_BACK: the first failed replica's own, or NULL; owned */
    struct update_counts new_counts, old_counts;
};

/* store_txn_fn; `arg` is a struct moving. Does nothing where the operation is no longer where it
 * was looked at. */
int update_txn_run(struct txn *txn, void *arg, struct error *err);

/* Any thread. False where memory is exhausted. */
bool update_txn_figures(pb_figures **field, const struct update_counts *counts,
                        const pb_gates *gates);
