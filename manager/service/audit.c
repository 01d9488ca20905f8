#include "manager/service/audit.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/access/role.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"
#include "manager/service/access.h"
#include "manager/store/row_text.h"
#include "manager/store/txn.h"
#include "manager/store/txn_private.h"

/* limit of each side, before and after; longer texts are cut */
enum { SIDE_BYTES = 1500 };

static const struct row *any_row(const struct store_change *change)
{
    return change->after ? change->after : change->before;
}

static bool same_row(const struct store_change *a, const struct store_change *b)
{
    return a->table == b->table && strcmp(row_key(any_row(a)), row_key(any_row(b))) == 0;
}

/* True for a row's first change; *out_after is the row after its last change. False for later
 * changes. */
static bool first_and_last(const struct txn *txn, size_t i, const struct row **out_after)
{
    const struct store_change *change = &txn->changes[i];
    for (size_t k = 0; k < i; k++)
        if (txn->changes[k].table != TABLE_EVENT && same_row(&txn->changes[k], change))
            return false;
    *out_after = change->after;
    for (size_t k = i + 1; k < txn->n_changes; k++)
        if (txn->changes[k].table != TABLE_EVENT && same_row(&txn->changes[k], change))
            *out_after = txn->changes[k].after;
    return true;
}

static void describe_row(struct strbuf *out, const struct row *row, const struct row *other)
{
    if (!row)
        return;
    if (out->n_bytes)
        strbuf_add_str(out, "; ");
    strbuf_printf(out, "%s %s:", table_spec(row_table(row))->name, row_key(row));
    row_differences(row, other, out);
}

/* Sets the event's subject from the changed rows; an operation's row has precedence. */
static void set_subject(struct txn_event *event, const struct row *row)
{
    switch (row_table(row)) {
    case TABLE_OPERATION: {
        const pb_operation *operation = (const pb_operation *)row_message(row);
        event->operation_id = operation->id;
        event->model = operation->model;
        event->version = operation->version;
        event->device_group = operation->device_group;
        break;
    }
    case TABLE_MODEL_VERSION: {
        const pb_version *version = (const pb_version *)row_message(row);
        event->model = version->model;
        event->version = version->version;
        break;
    }
    case TABLE_REPLICA: {
        const pb_replica *replica = (const pb_replica *)row_message(row);
        if (!event->replica_id)
            event->replica_id = replica->id;
        break;
    }
    case TABLE_MODEL:
        if (!event->model)
            event->model = ((const pb_model *)row_message(row))->name;
        break;
    case TABLE_DEVICE_GROUP:
        event->device_group = ((const pb_group *)row_message(row))->name;
        break;
    case TABLE_DEVICE_HOLD:
        event->device = ((const pb_hold *)row_message(row))->device;
        break;
    default:
        break;
    }
}

/* Cuts the text at a code point. */
static void cut_text(const struct strbuf *text, char out[SIDE_BYTES + 8])
{
    size_t n = text->n_bytes < SIDE_BYTES ? text->n_bytes : SIDE_BYTES;
    n -= utf8_incomplete_tail(strbuf_str(text), n);
    snprintf(out, SIDE_BYTES + 8, "%.*s%s", (int)n, strbuf_str(text),
             n < text->n_bytes ? "..." : "");
}

static int add_event(struct txn *txn, const struct txn_event *what,
                     const struct access_caller *caller, const char *rpc, const char *request_id,
                     const struct strbuf *before, const struct strbuf *after, struct error *err)
{
    char type[64], message[256], before_text[SIDE_BYTES + 8], after_text[SIDE_BYTES + 8];
    cut_text(before, before_text);
    cut_text(after, after_text);
    const char *who = caller->name[0] ? caller->name : "unknown";
    const struct txn_attribute attributes[] = {
        {"caller", who},
        {"role", role_name(caller->role)},
        {"rpc", rpc},
        {"request_id", request_id},
        {"before", before_text},
        {"after", after_text},
    };
    snprintf(type, sizeof(type), "audit.%s", rpc);
    snprintf(message, sizeof(message), "by %.130s (%s)", who, role_name(caller->role));
    struct txn_event event = *what;
    event.type = type;
    event.message = message;
    event.attributes = attributes;
    event.n_attributes = sizeof(attributes) / sizeof(attributes[0]);
    return txn_event(txn, &event, err);
}

void audit_saw_stage(struct txn *txn, const char *stage)
{
    snprintf(txn->seen_stage, sizeof(txn->seen_stage), "%s", stage);
}

/* The row before its change; an operation's row gets the stage that it was at. Owned; NULL: the
 * row is new. */
static struct row *row_before(const struct txn *txn, const struct store_change *change)
{
    struct row *before = change->before;
    if (!before || change->table != TABLE_OPERATION || !txn->seen_stage[0])
        return before ? row_retain(before) : NULL;
    pb_operation *operation = MESSAGE_COPY(pb_operation, (const pb_operation *)row_message(before));
    if (operation && !message_set(&operation->stage, txn->seen_stage)) {
        message_free(&operation->base);
        operation = NULL;
    }
    struct row *row =
        operation ? row_create(TABLE_OPERATION, &operation->base, row_extra(before)) : NULL;
    return row ? row : row_retain(before); /* an older stage is better than none */
}

int audit_add(struct txn *txn, const struct access_caller *caller, const char *rpc,
              const char *request_id, struct error *err)
{
    struct txn_event event = {.type = ""};
    struct strbuf before, after;
    bool changed = false;
    int rc = 0;
    strbuf_init(&before, 0);
    strbuf_init(&after, 0);
    for (size_t i = 0; i < txn->n_changes; i++) {
        const struct row *last;
        if (txn->changes[i].table == TABLE_EVENT || !first_and_last(txn, i, &last))
            continue;
        changed = true;
        struct row *was = row_before(txn, &txn->changes[i]);
        describe_row(&before, was, last);
        describe_row(&after, last, was);
        row_release(was);
        set_subject(&event, any_row(&txn->changes[i]));
    }
    if (strbuf_failed(&before) || strbuf_failed(&after))
        rc = error_no_memory(err);
    else if (changed)
        rc = add_event(txn, &event, caller, rpc, request_id, &before, &after, err);
    strbuf_fini(&before);
    strbuf_fini(&after);
    return rc;
}
