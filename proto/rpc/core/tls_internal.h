/* tls_internal.h: makes gRPC's credentials from PEM files. Private to proto/rpc. */
#pragma once

#include <grpc/grpc_security.h>

#include "proto/rpc/core/tls.h"

/* server.c: credentials of a listener; the caller owns them (grpc_server_credentials_release).
 * Memory that gRPC may still read is kept until rpc_tls_destroy. NULL if memory is exhausted. */
grpc_server_credentials *rpc_tls_server_credentials(struct rpc_tls *tls);

/* client.c: credentials of a client. ca empty: the system's CAs. cert and key: both or neither. */
int rpc_tls_channel_credentials(const char *ca, const char *cert, const char *key,
                                grpc_channel_credentials **out_credentials, struct error *err);
