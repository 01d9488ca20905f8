/* bench_grpc.h: carries the requests of a load over gRPC (bench_transport.h). Answers arrive on the
 * connections' threads. */
#pragma once

struct bench_load_config;
struct bench_transport;
struct error;
struct rpc_client;

struct bench_grpc_config {
    const struct bench_load_config *load;
    /* Opens another connection. The transport owns *out_client. */
    int (*connect)(void *ctx, struct rpc_client **out_client, struct error *err);
    void *ctx;
};

/* The config is borrowed until destroy. *out_transport is owned (ops->destroy). */
int bench_grpc_create(const struct bench_grpc_config *config,
                      struct bench_transport **out_transport, struct error *err);
