/* reason.h: why a call failed, or why a replica, an operation or a device changed its state. A
 * program decides by a reason, never by the text of an error. Any thread.
 *
 * Two other things have a similar name. The finish reason of an answer (enum finish_reason, wire
 * FinishReason) tells how generation ended. The attribute "why" of a log line is prose.
 *
 * On the wire and in the database a reason is its name, "QUEUE_FULL" (google.rpc.ErrorInfo.reason,
 * sluice.v1.Error.reason, Replica.reason). Names never change. A hold of a GPU may also have the
 * driver's number as its reason, "XID_79": an open set, kept as text. */
#pragma once

#include <stdbool.h>

#include "base/reason_list.h"

enum reason {
    REASON_NONE,    /* no reason; the name is "" */
    REASON_UNKNOWN, /* a peer's reason that is not in the table; the peer's text is kept */
#define REASON(name, ...) REASON_##name,
    REASON_LIST(REASON)
#undef REASON
        N_REASONS
};

/* Tells if the same call may succeed later, and where. */
enum reason_retry {
    RETRY_NEVER,     /* the call fails again until something else changes */
    RETRY_LATER,     /* the call may succeed later, after the error's retry time if there is one */
    RETRY_ELSEWHERE, /* another replica may take the request now: the server asks one by itself;
                        a client retries later */
    N_REASON_RETRIES
};

/* The part of Sluice that gives the reason; a section of docs/use/errors.md. */
enum reason_area {
    REASON_OF_REQUEST, /* the data plane refuses or ends a request */
    REASON_OF_ACCESS,  /* API keys, certificates, roles; a label of sluice_access_refusals_total */
    REASON_OF_CALL,    /* the call itself: its message, the limits of a server, its end */
    REASON_OF_FILE,    /* a model file */
    REASON_OF_COMMAND, /* the manager refuses a command */
    REASON_OF_DEVICE,  /* devices and memory */
    REASON_OF_STORE,   /* the manager's database */
    REASON_OF_REPLICA, /* recorded with replicas, operations and updates */
    REASON_OF_PROGRAM, /* the start of a program, and the command line's connection */
    N_REASON_AREAS
};

struct reason_facts {
    const char *name; /* on the wire */
    int status;       /* enum status of an error with this reason; STATUS_OK: never an error,
                         only recorded */
    int other_status; /* another status that occurs; STATUS_OK: none */
    enum reason_retry retry;
    enum reason_area area;
    const char *limit; /* label of sluice_refusals_total; NULL: not counted there */
    /* The next step: a sentence without a capital and a full stop. The command line fills in
     * the words of the command: %M the model, %V " --version V", %G " --group G", %F flags that
     * select the manager. */
    const char *next;
};

/* The table's row. NONE and UNKNOWN have empty texts. */
const struct reason_facts *reason_facts(enum reason reason);

/* "QUEUE_FULL"; "" for NONE and UNKNOWN. Static. */
const char *reason_name(enum reason reason);

/* The reason of a name; NONE for "" and NULL, UNKNOWN for a name that is not in the table. */
enum reason reason_parse(const char *name);

/* True where the text of a wire field is the name of `reason`, which is in the table. */
static inline bool reason_is(const char *text, enum reason reason)
{
    return reason_parse(text) == reason;
}
