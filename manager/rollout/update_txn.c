#include "manager/rollout/update_txn.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/seeded_bug.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/traffic.h"
#include "manager/rollout/update.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

enum { MAX_WHY = ERROR_MESSAGE_BYTES - 64 };

int update_check_none(const struct catalog *catalog, const char *model, struct error *err)
{
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *operation = catalog_operation_at(catalog, i);
        if ((int)operation->kind != OPERATION_UPDATE || !pb_operation_is_open(operation) ||
            strcmp(operation->model, model) != 0)
            continue;
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "operation %s updates %s and has not ended; CancelOperation takes it back",
                  operation->id, model);
        return error_reason(err, REASON_OPERATION_IN_PROGRESS);
    }
    return 0;
}

int update_pin_traffic(struct txn *txn, const pb_operation *operation, uint32_t percent,
                       struct error *err)
{
    const pb_update *update = operation->update;
    const pb_traffic *base = update->traffic_before;
    const char *from = update->from_version, *to = operation->version;
    pb_traffic *traffic = MESSAGE_COPY(pb_traffic, base);
    bool complete = traffic != NULL;
    for (size_t i = 0; complete && i < base->n_weights; i++)
        complete =
            traffic_set_weight(traffic, base->weights[i]->version,
                               update_weight(base, base->weights[i]->version, from, to, percent));
    complete = complete &&
               traffic_set_weight(traffic, from, update_weight(base, from, from, to, percent)) &&
               traffic_set_weight(traffic, to, update_weight(base, to, from, to, percent));
    if (complete)
        return traffic_put(txn, traffic, operation->id, err);
    if (traffic)
        message_free(&traffic->base);
    return error_no_memory(err);
}

int update_begin_rollback(struct txn *txn, pb_operation *operation, struct error *err)
{
    struct lifecycle_target target = {operation->model, operation->version,
                                      operation->device_group};
    operation->update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_ROLL_BACK;
    if (update_pin_traffic(txn, operation, 0, err) != 0)
        return err->status;
    if (lifecycle_undo(txn, operation, err) != 0)
        return err->status;
    struct lifecycle_target from = {operation->model, operation->update->from_version,
                                    operation->device_group};
    if (seeded_bug("I2_takes_back_both_versions") && lifecycle_set_wanted(txn, &from, 0, err) != 0)
        return err->status;
    return lifecycle_bump(txn, target.model, target.version, err);
}

/* Retires the old version. Its replicas become the operation's and get the operation's grace. */
static int retire_old(struct txn *txn, pb_operation *operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    struct lifecycle_target target = {operation->model, operation->update->from_version,
                                      operation->device_group};
    operation->update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_DRAIN;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        bool is_old = strcmp(replica->model, target.model) == 0 &&
                      strcmp(replica->version, target.version) == 0 &&
                      strcmp(replica->device_group, target.group) == 0;
        if (!is_old || (int)replica->state == REPLICA_STOPPED)
            continue;
        if (!lifecycle_add_replica(operation, replica->id))
            return error_no_memory(err);
        if (!replica->retiring && lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
    }
    if (lifecycle_set_wanted(txn, &target, 0, err) != 0)
        return err->status;
    return lifecycle_bump(txn, target.model, target.version, err);
}

static int begin_step(struct txn *txn, pb_operation *operation, uint32_t step, struct error *err)
{
    pb_update *update = operation->update;
    if ((int)update->phase == UPDATE_LOAD) {
        update->epochs = 0;
        for (size_t i = 0; i < operation->n_replica_ids; i++) {
            const pb_replica *row = catalog_replica(txn_catalog(txn), operation->replica_ids[i]);
            update->epochs += row ? row->epoch : 0;
        }
    }
    update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_SHIFT;
    update->step = step;
    return update_pin_traffic(txn, operation, update->steps[step], err);
}

/* Writes the final rule: the rule before the update. After success the new version takes the
 * place of the old one. Without weights before, no weights are set where the default rule has
 * the same effect. */
static int settle_traffic(struct txn *txn, const pb_operation *operation, bool went_back,
                          struct error *err)
{
    const pb_update *update = operation->update;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_traffic *base = update->traffic_before;
    const pb_version *chosen = traffic_default(catalog, operation->model);
    bool by_default = !update->had_traffic &&
                      (went_back || (chosen && strcmp(chosen->version, operation->version) == 0));
    pb_traffic *traffic = MESSAGE_NEW(pb_traffic, sluice__manager__v1__traffic__descriptor);
    bool complete = traffic && message_set(&traffic->model, operation->model);
    if (complete)
        traffic->sticky = update->had_traffic ? base->sticky : 0;
    for (size_t i = 0; complete && !by_default && i < base->n_weights; i++)
        if (went_back || seeded_bug("I2_keeps_the_old_traffic") ||
            strcmp(base->weights[i]->version, update->from_version) != 0)
            complete =
                traffic_set_weight(traffic, base->weights[i]->version, base->weights[i]->weight);
    if (complete && !by_default && !went_back)
        complete = traffic_set_weight(traffic, operation->version,
                                      traffic_weight(base, operation->version) +
                                          traffic_weight(base, update->from_version));
    if (complete)
        return traffic_put(txn, traffic, operation->id, err);
    if (traffic)
        message_free(&traffic->base);
    return error_no_memory(err);
}

static bool record_failure(pb_update *update, const struct moving *moving)
{
    struct error why;
    error_set(&why, STATUS_ABORTED, "%s; the update was taken back", moving->decision.message);
    error_reason(&why, moving->decision.reason);
    pb_error *error = moving->error ? MESSAGE_COPY(pb_error, moving->error)
                                    : (pb_error *)message_from_error(&why);
    if (error && moving->error) { /* keep the text of the failed replica */
        error_set(&why, STATUS_ABORTED, "%.*s; the update was taken back", MAX_WHY,
                  moving->error->message);
        if (!message_set(&error->message, why.message)) {
            message_free(&error->base);
            error = NULL;
        }
    }
    bool complete = error && message_set_copy(&update->error, error) &&
                    message_set(&update->failed_stage, moving->failed_stage);
    if (error)
        message_free(&error->base);
    return complete;
}

pb_figures update_txn_figures(const struct update_counts *counts, const pb_gates *gates)
{
    pb_figures figures = SLUICE__MANAGER__V1__UPDATE_FIGURES__INIT;
    figures.n_ok = counts->n_ok;
    figures.n_failed = counts->n_failed;
    figures.ttft_ms = update_ttft_ms(counts, gates);
    return figures;
}

static bool record_figures(pb_update *update, const struct moving *moving)
{
    const pb_figures new_figures = update_txn_figures(&moving->new_counts, update->gates);
    const pb_figures old_figures = update_txn_figures(&moving->old_counts, update->gates);
    return message_set_copy(&update->new_figures, &new_figures) &&
           message_set_copy(&update->old_figures, &old_figures);
}

/* Records which gates had too few answers in the step that ends. */
static bool record_unmeasured(pb_update *update, const struct moving *moving)
{
    static const struct {
        unsigned gate;
        const char *name;
    } names[] = {{UPDATE_GATE_ERROR_RATE, "max_error_rate"},
                 {UPDATE_GATE_TTFT_MS, "max_ttft_ms"},
                 {UPDATE_GATE_TTFT_RATIO, "max_ttft_ratio"}};
    unsigned gates =
        update_unmeasured_gates(update->gates, &moving->new_counts, &moving->old_counts);
    pb_step_end *end = MESSAGE_NEW(pb_step_end, sluice__manager__v1__update_step_end__descriptor);
    bool complete = end != NULL;
    for (size_t i = 0; complete && i < sizeof(names) / sizeof(names[0]); i++)
        if (gates & names[i].gate)
            complete = message_append_text(&end->n_unmeasured_gates, &end->unmeasured_gates,
                                           names[i].name);
    if (complete) {
        end->percent = update->steps[update->step];
        end->n_answers = moving->new_counts.n_ok + moving->new_counts.n_failed;
        end->n_old_answers = moving->old_counts.n_prefilled;
        end->n_wanted_answers = update_wanted_answers(update->gates);
        complete = message_append(&update->n_ended_steps, &update->ended_steps, end);
    }
    if (!complete && end)
        message_free(&end->base);
    return complete;
}

/* Records the stage under the name that operation_view.c gives it, so that the row shows the
 * same stage. */
static bool record_stage(pb_operation *operation)
{
    switch ((int)operation->update->phase) {
    case UPDATE_SHIFT:
        return message_set(&operation->stage, "shift");
    case UPDATE_DRAIN:
        return message_set(&operation->stage, "drain");
    case UPDATE_ROLL_BACK:
        return message_set(&operation->stage, "rollback");
    default:
        return true;
    }
}

static int apply_move(struct txn *txn, pb_operation *operation, const struct moving *moving,
                      struct error *err)
{
    pb_update *update = operation->update;
    bool went_back = (int)update->phase == UPDATE_ROLL_BACK;
    switch (moving->decision.move) {
    case UPDATE_BEGIN_SHIFT:
        return begin_step(txn, operation, 0, err);
    case UPDATE_NEXT_STEP:
        return begin_step(txn, operation, update->step + 1, err);
    case UPDATE_RETIRE_OLD:
        return retire_old(txn, operation, err);
    case UPDATE_GO_BACK:
        return record_failure(update, moving) ? update_begin_rollback(txn, operation, err)
                                              : error_no_memory(err);
    case UPDATE_SETTLE:
        update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_END;
        return settle_traffic(txn, operation, went_back, err);
    case UPDATE_STAY:
        break;
    }
    return 0;
}

static int put_event(struct txn *txn, const pb_operation *operation, struct error *err)
{
    const pb_update *update = operation->update;
    char text[256] = "";
    const char *type = "update.drain", *reason = "";
    switch ((int)update->phase) {
    case UPDATE_SHIFT:
        type = "update.shift";
        snprintf(text, sizeof(text), "%u %% of version %s's traffic goes to version %s",
                 update->steps[update->step], update->from_version, operation->version);
        break;
    case UPDATE_DRAIN:
        snprintf(text, sizeof(text), "version %s drains", update->from_version);
        break;
    case UPDATE_ROLL_BACK:
        type = "update.rollback";
        reason = update->error ? update->error->reason : "";
        snprintf(text, sizeof(text), "%.250s", update->error ? update->error->message : "");
        break;
    default:
        return 0;
    }
    struct txn_event event = {
        .type = type,
        .model = operation->model,
        .version = operation->version,
        .device_group = operation->device_group,
        .operation_id = operation->id,
        .message = text,
        .reason = reason,
    };
    return txn_event(txn, &event, err);
}

/* Writes the event of a step that ended with too few answers for its gates. */
static int put_unmeasured_event(struct txn *txn, const pb_operation *operation,
                                const struct moving *moving, struct error *err)
{
    struct txn_event event = {
        .type = "update.unmeasured",
        .model = operation->model,
        .version = operation->version,
        .device_group = operation->device_group,
        .operation_id = operation->id,
        .message = moving->decision.message,
    };
    return moving->decision.unmeasured ? txn_event(txn, &event, err) : 0;
}

int update_txn_run(struct txn *txn, void *arg, struct error *err)
{
    struct moving *moving = arg;
    struct row *row = catalog_get(txn_catalog(txn), TABLE_OPERATION, moving->id);
    const pb_operation *old = row ? (const pb_operation *)row_message(row) : NULL;
    if (!old || !pb_operation_is_open(old) || !old->update ||
        (int)old->update->phase != (int)moving->phase || old->update->step != moving->step)
        return 0; /* cancelled meanwhile */
    uint32_t grace_ms = (uint32_t)row_extra(row);
    pb_operation *operation = MESSAGE_COPY(pb_operation, old);
    if (!operation)
        return error_no_memory(err);
    failpoint("update.before_write");
    operation->updated_unix_ns = txn_now_unix_ns(txn);
    bool shifting = moving->phase == UPDATE_SHIFT;
    bool goes_on =
        moving->decision.move == UPDATE_NEXT_STEP || moving->decision.move == UPDATE_RETIRE_OLD;
    if ((goes_on && !record_unmeasured(operation->update, moving)) ||
        (shifting && !record_figures(operation->update, moving)) ||
        put_unmeasured_event(txn, operation, moving, err) != 0 ||
        apply_move(txn, operation, moving, err) != 0 || !record_stage(operation) ||
        put_event(txn, operation, err) != 0) {
        if (!err->status)
            error_no_memory(err);
        message_free(&operation->base);
        return err->status;
    }
    int rc = txn_put_extra(txn, TABLE_OPERATION, &operation->base, grace_ms, err);
    failpoint("update.before_commit");
    return rc;
}
