/* Captured graphs: ops of all captured streams, run in the order of the calls. */
#include <string.h>

#include "tests/simt/simt_queue.h"
#include "tests/simt/simt_thread.h"

/* Device memory of a captured op, as reported of CUDA 12 drivers. */
static const size_t OP_BYTES = 10 << 10;

struct CUgraph_st {
    std::vector<std::shared_ptr<simt_op>> ops;
};

struct CUgraphExec_st {
    std::vector<std::shared_ptr<simt_op>> ops;
    simt_device *device;
    size_t n_bytes; /* bytes of the graph's memory */
};

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    if (simt_is_default(s))
        return simt_error(cudaErrorStreamCaptureUnsupported);
    if (simt_check_device(s->device) != cudaSuccess)
        return simt_check_device(s->device);
    if (s->captured != NULL)
        return simt_error(cudaErrorIllegalState);
    s->captured = std::make_shared<capture>();
    s->captured->origin = s;
    s->captured->strict = mode != cudaStreamCaptureModeRelaxed;
    if (s->captured->strict)
        simt_tls.capture = s->captured.get();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *out)
{
    *out = simt_is_default(s) || s->captured == NULL ? cudaStreamCaptureStatusNone
           : s->captured->broken                     ? cudaStreamCaptureStatusInvalidated
                                                     : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    *out = NULL;
    std::shared_ptr<capture> c = simt_is_default(s) ? NULL : s->captured;
    if (c == NULL)
        return simt_error(cudaErrorIllegalState);
    if (c->origin != s)
        return simt_error(cudaErrorStreamCaptureUnmatched);
    if (c->strict && simt_tls.capture != c.get())
        return simt_error(cudaErrorStreamCaptureWrongThread);
    bool joined = true;
    for (auto &b : c->branches) {
        joined = joined && (b.first == s || b.second.joined);
        b.first->captured = NULL;
    }
    s->captured = NULL;
    simt_tls.capture = NULL;
    if (c->broken)
        return simt_error(cudaErrorStreamCaptureInvalidated);
    if (!joined)
        return simt_error(cudaErrorStreamCaptureUnjoined);
    *out = new CUgraph_st{c->ops};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes != NULL)
        return simt_error(cudaErrorNotSupported);
    *n = graph->ops.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    simt_device *device = simt_current_device();
    size_t n_bytes = graph->ops.size() * OP_BYTES;
    {
        std::lock_guard<std::mutex> hold(device->lock);
        if (n_bytes > device->total_bytes - device->used_bytes)
            return simt_error(cudaErrorMemoryAllocation);
        device->used_bytes += n_bytes;
    }
    *out = new CUgraphExec_st{graph->ops, device, n_bytes};
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    bool same = exec->ops.size() == graph->ops.size();
    for (size_t i = 0; same && i < graph->ops.size(); i++)
        same = exec->ops[i]->kind == graph->ops[i]->kind;
    memset(info, 0, sizeof(*info));
    info->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (!same)
        return simt_error(cudaErrorGraphExecUpdateFailure);
    exec->ops = graph->ops;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    return simt_queue_ops(s, exec->ops);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    {
        std::lock_guard<std::mutex> hold(exec->device->lock);
        exec->device->used_bytes -= exec->n_bytes;
    }
    delete exec;
    return cudaSuccess;
}

} /* extern "C" */
