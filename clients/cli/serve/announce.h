/* announce.h: the events of one run of `sluice serve`. An event is a sentence on a line of stderr;
 * with --json a JSON object on a line of stdout, {"event":"serving","address":"127.0.0.1:8001"}.
 * Names of events and fields are stable; the sentences can change. Any thread: an announcement is a
 * single write. */
#pragma once

#include <jansson.h>

struct cli;

/* Takes ownership of `fields`, made with json_pack(). NULL: no fields, or memory was exhausted. */
void announce(const struct cli *cli, const char *event, json_t *fields, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
