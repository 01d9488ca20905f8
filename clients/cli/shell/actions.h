/* actions.h: what several commands do: register a file, load a model and wait for it. Responses are
 * owned (rpc_message_free). */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct cli;
struct error;

/* RegisterModelVersion with the command's --version, --verify, --request-id. */
int action_register(struct cli *cli, const char *name, const char *path,
                    ProtobufCMessage **out_response, struct error *err);

/* LoadModelVersion with the command's options; unless --no-wait, follows the operation to its end
 * with progress shown. *out_response is the last message: a LoadModelVersionResponse (validate
 * only, no wait) or a WatchOperationResponse. */
int action_load(struct cli *cli, const char *name, const char *version,
                ProtobufCMessage **out_response, struct error *err);

/* UnloadModelVersion, and its end as action_load's (no --validate-only). */
int action_unload(struct cli *cli, const char *name, const char *version,
                  ProtobufCMessage **out_response, struct error *err);

/* Waits for the end of what is under way on a model, with progress shown; how it ended does not
 * matter. */
int action_settle(struct cli *cli, const char *name, struct error *err);

/* To the operation's end, with progress shown; its last answer takes the place of *response, which
 * may hold the id. */
int action_follow(struct cli *cli, const char *id, ProtobufCMessage **response, struct error *err);

/* What an operation did, what a plan says, or that an operation has started; with --json the answer
 * itself. */
void action_print(const struct cli *cli, const ProtobufCMessage *message);
/* Exit status of an answer: 1 for the plan of --validate-only that does not fit. */
int action_plan_status(const struct cli *cli, const ProtobufCMessage *message);
