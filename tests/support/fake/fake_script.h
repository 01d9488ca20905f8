/* fake_script.h: the script, given as the "model", that tells fake_worker.c how to behave. Also
 * declares the one-shot modes (fake_tools.c). Read once at the start; any thread afterwards. */
#pragma once

#include <stdbool.h>

enum { FAKE_SCRIPT_BYTES = 4096 };
extern char fake_script[FAKE_SCRIPT_BYTES];

void fake_read_script(const char *path);
/* Reads the script as it is now. For settings that a test changes while the worker runs. */
void fake_read(const char *path, char script[FAKE_SCRIPT_BYTES]);
/* N of "name=N"; `name` ends with the equals sign. */
long fake_number(const char *name, long otherwise);
long fake_number_in(const char *script, const char *name, long otherwise);
bool fake_has(const char *name);
/* protobuf-c's strings are not const; packing only reads them. */
char *fake_word(const char *text);

/* Runs a one-shot mode: inspect, plan or probe. Returns the exit status. */
int fake_tool(const char *mode);
