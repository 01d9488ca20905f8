/* audit.h: who changed what. A change that a caller asked for appends an event of its own to its
 * transaction: who, which RPC, with what request id, and the rows before and after. Such events are
 * events like others: WatchEvents has them, in order, and they are kept as long. */
#pragma once

struct access_caller;
struct error;
struct txn;

/* The stage that the operation which this transaction changes is at, as callers see it, for its row
 * before the change: recorded is how it began, progress is not. Inside store_txn_fn. */
void audit_saw_stage(struct txn *txn, const char *stage);

/* Appends "audit.<rpc>" where the transaction has changed rows. Inside store_txn_fn, after all of
 * its changes. */
int audit_add(struct txn *txn, const struct access_caller *caller, const char *rpc,
              const char *request_id, struct error *err);
