/* flag_words.h: an error of the manager or of a worker names fields of its messages, and calls;
 * people typed flags and commands. One thread. */
#pragma once

#include <stddef.h>

struct option_spec;
struct strbuf;

/* Appends the message with each field's name for which the command has a flag as that flag:
 * "config.gpu_memory_bytes: ..." as "--gpu-memory: ...". A name that is a plain word ("devices") is
 * a field only where the message begins with it, or behind "config." or "gates.".
 * "LoadModelVersion" is "sluice load", and so with the other calls that errors advise. What stands
 * in double quotes stays as it is. */
void flag_words_add(const struct option_spec *specs, size_t n_specs, const char *message,
                    struct strbuf *out);
