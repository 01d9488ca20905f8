/* announce.h: the events of one run of `sluice serve`: a sentence a line on stderr, or with --json
 * one JSON object a line on stdout, {"event":"serving","address":"127.0.0.1:8001"}. The names of
 * events and fields stay; the sentences may change. Any thread: an announcement is one write. */
#pragma once

#include <jansson.h>

struct cli;

/* Takes `fields`, made with json_pack(); NULL: the event has no fields, or memory is exhausted. */
void announce(const struct cli *cli, const char *event, json_t *fields, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
