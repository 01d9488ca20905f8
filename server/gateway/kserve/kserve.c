#include "server/gateway/kserve/kserve.h"

#include "base/error.h"
#include "inference/grpc_service.pb-c.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/front/service.h"

static void refuse_shared_memory(void *context, struct rpc_call *call,
                                 const ProtobufCMessage *request)
{
    struct error err;
    (void)context;
    (void)request;
    error_set(&err, STATUS_UNIMPLEMENTED,
              "%s: shared memory is not built; send the elements in raw_input_contents",
              rpc_call_method(call) + 1);
    error_reason(&err, REASON_NOT_BUILT);
    rpc_call_finish(call, &err);
}

static void refuse_settings(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct error err;
    (void)context;
    (void)request;
    error_set(&err, STATUS_UNIMPLEMENTED,
              "%s: settings of traces and logs are not built; start sluice-server with --log-level",
              rpc_call_method(call) + 1);
    error_reason(&err, REASON_NOT_BUILT);
    rpc_call_finish(call, &err);
}

static const struct rpc_method methods[] = {
    {"ServerLive", RPC_SHAPE_UNARY, kserve_server_live},
    {"ServerReady", RPC_SHAPE_UNARY, kserve_server_ready},
    {"ModelReady", RPC_SHAPE_UNARY, kserve_model_ready},
    {"ServerMetadata", RPC_SHAPE_UNARY, kserve_server_metadata},
    {"ModelMetadata", RPC_SHAPE_UNARY, kserve_model_metadata},
    {"ModelInfer", RPC_SHAPE_UNARY, kserve_model_infer},
    {"ModelStreamInfer", RPC_SHAPE_BIDI, kserve_model_stream_infer},
    {"ModelConfig", RPC_SHAPE_UNARY, kserve_model_config},
    {"ModelStatistics", RPC_SHAPE_UNARY, kserve_model_statistics},
    {"RepositoryIndex", RPC_SHAPE_UNARY, kserve_repository_index},
    {"RepositoryModelLoad", RPC_SHAPE_UNARY, kserve_repository_load},
    {"RepositoryModelUnload", RPC_SHAPE_UNARY, kserve_repository_unload},
    {"SystemSharedMemoryStatus", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"SystemSharedMemoryRegister", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"SystemSharedMemoryUnregister", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"CudaSharedMemoryStatus", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"CudaSharedMemoryRegister", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"CudaSharedMemoryUnregister", RPC_SHAPE_UNARY, refuse_shared_memory},
    {"TraceSetting", RPC_SHAPE_UNARY, refuse_settings},
    {"LogSettings", RPC_SHAPE_UNARY, refuse_settings},
};

void kserve_init(struct kserve *kserve, struct service *service)
{
    *kserve = (struct kserve){.service = service, .dispatch = service->dispatch};
    pthread_mutex_init(&kserve->lock, NULL);
}

void kserve_fini(struct kserve *kserve)
{
    pthread_mutex_destroy(&kserve->lock);
}

void kserve_table(struct kserve *kserve, struct rpc_service *out_table)
{
    *out_table = (struct rpc_service){
        .descriptor = &inference__grpcinference_service__descriptor,
        .methods = methods,
        .n_methods = sizeof(methods) / sizeof(methods[0]),
        .context = kserve,
    };
}
