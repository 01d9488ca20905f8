/* names.h: checks of names in requests, and the syntax of device lists. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

enum { NAME_MAX_BYTES = 64, VERSION_MAX_BYTES = 32, REQUEST_ID_MAX_BYTES = 128 };

/* Checks a name of a model or device group: 1 to 64 of a-z A-Z 0-9 . _ -, a letter or digit
 * first. INVALID_ARGUMENT naming `field`. */
int name_check(const char *field, const char *name, struct error *err);
/* Checks a version: 1 to 32 of a-z A-Z 0-9 . _ -. */
int name_check_version(const char *field, const char *version, struct error *err);
/* Checks a request id: at most 128 bytes; empty is allowed. */
int name_check_request_id(const char *request_id, struct error *err);

/* Single device names of a list such as "cpu:0-1" or "cuda:0,1". */
enum { DEVICES_MAX = 64, DEVICE_NAME_BYTES = 24 };
struct device_names {
    char names[DEVICES_MAX][DEVICE_NAME_BYTES];
    size_t n_names;
};
/* Parses device lists: 1 to 64 devices of one kind, each once. INVALID_ARGUMENT naming `field`. */
int name_parse_devices(const char *field, char *const *texts, size_t n_texts,
                       struct device_names *out_names, struct error *err);
