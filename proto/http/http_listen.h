/* http_listen.h: opens the socket of an http_server. Private to proto/http; at start. */
#pragma once

#include <stdint.h>

#include "proto/rpc/guard/share.h"

struct error;

/* *out_fd is owned: non-blocking, listening. *out_port is 0 for "unix:PATH". */
int http_listen(const char *address, enum rpc_share share, int *out_fd, uint16_t *out_port,
                struct error *err);
