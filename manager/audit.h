/* audit.h: who changed what. A change that a caller asked for appends an event of its own to its
 * transaction: who, which RPC, with what request id, and the rows before and after. Such events are
 * events like others: WatchEvents has them, in order, and they are kept as long. */
#pragma once

struct caller;
struct error;
struct txn;

/* Appends "audit.<rpc>" where the transaction has changed rows. Inside store_txn_fn, after all of
 * its changes. */
int audit_add(struct txn *txn, const struct caller *caller, const char *rpc, const char *request_id,
              struct error *err);
