/* plan_groups.h: describes the groups of `sluice plan --groups` for the worker (device_spec.h).
 * Descriptions stay as they are. The manager's device groups are described by their devices.
 * Single-threaded. */
#pragma once

struct cli;
struct error;
struct strbuf;

/* Appends the descriptions of a list like "8xh100,gpus". NOT_FOUND: a name that the manager does
 * not know. INVALID_ARGUMENT: a group of unlike devices, or of a GPU without known figures. Other
 * errors are those of the call. */
int plan_groups_describe(struct cli *cli, const char *list, struct strbuf *out, struct error *err);
