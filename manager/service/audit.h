/* audit.h: the record of changes and their callers. The transaction of a requested change
 * appends one more event: caller, RPC, request id, and the rows before and after. WatchEvents
 * shows these events in order, and they are kept as long as other events. */
#pragma once

struct access_caller;
struct error;
struct txn;

/* Notes the current stage of the operation that this transaction changes, for the "before" part
 * of the audit event. The row does not have the progress. Inside store_txn_fn. */
void audit_saw_stage(struct txn *txn, const char *stage);

/* Appends "audit.<rpc>" where the transaction has changed rows. Inside store_txn_fn, after all
 * of its changes. */
int audit_add(struct txn *txn, const struct access_caller *caller, const char *rpc,
              const char *request_id, struct error *err);
