/* actions.h: actions that several commands share: register a file, load a model, wait for an
 * operation. The caller owns responses (rpc_message_free). */
#pragma once

#include <limits.h>

#include <protobuf-c/protobuf-c.h>

#include "base/settings/load_settings.h"
#include "sluice/manager/v1/types.pb-c.h"

struct cli;
struct error;

/* Fills a request's configuration from the command's flags of `user`. `draft` is storage for the
 * draft model's path: absolute if the file exists here, else relative to the model root. */
void action_fill_config(const struct cli *cli, enum load_user user,
                        Sluice__Manager__V1__ModelConfig *config, char draft[PATH_MAX]);

/* Calls RegisterModelVersion with the command's --version, --verify and --request-id. */
int action_register(struct cli *cli, const char *name, const char *path,
                    ProtobufCMessage **out_response, struct error *err);

/* Calls LoadModelVersion with the command's options. Unless --no-wait is set, follows the operation
 * to its end and shows progress. *out_response is the last message: LoadModelVersionResponse
 * (validate only, no wait) or WatchOperationResponse. */
int action_load(struct cli *cli, const char *name, const char *version,
                ProtobufCMessage **out_response, struct error *err);

/* Calls UnloadModelVersion (without --validate-only). Waits and answers like action_load. */
int action_unload(struct cli *cli, const char *name, const char *version,
                  ProtobufCMessage **out_response, struct error *err);

/* Waits for the end of all open operations of a model and shows progress. The outcome of the
 * operations does not matter. */
int action_settle(struct cli *cli, const char *name, struct error *err);

/* Follows the operation to its end and shows progress. The last answer replaces *response. `id` may
 * point into *response. */
int action_follow(struct cli *cli, const char *id, ProtobufCMessage **response, struct error *err);

/* Prints the result of an operation, a plan, or the id of a started operation. With --json prints
 * the message as JSON. */
void action_print(const struct cli *cli, const ProtobufCMessage *message);
/* Returns the exit status for an answer: 1 for a --validate-only plan that does not fit. */
int action_plan_status(const struct cli *cli, const ProtobufCMessage *message);
