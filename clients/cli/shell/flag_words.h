/* flag_words.h: translates error texts of the manager and the workers for the command line. Names
 * of message fields become flags, and names of calls become commands. Single-threaded. */
#pragma once

#include <stddef.h>

struct option_spec;
struct strbuf;

/* Appends the message. Field names become the command's flags: "config.gpu_memory_bytes: ..."
 * becomes "--gpu-memory: ...". A plain word like "devices" is a field only at the start, or after
 * "config." or "gates.". Call names become commands: "LoadModelVersion" becomes "sluice load". Text
 * in double quotes stays. */
void flag_words_add(const struct option_spec *specs, size_t n_specs, const char *message,
                    struct strbuf *out);
