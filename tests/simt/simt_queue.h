/* simt_queue.h: a stream's queue and its captures, for simt_stream.cc and simt_graph.cc only. */
#pragma once

#include <map>

#include "tests/simt/simt_runtime.h"

/* The state of a stream that takes part in a capture. */
struct branch {
    size_t n_ops = 0;
    bool joined = true; /* another stream of the capture waits for this one's last op */
};

/* Ops of all captured streams, in the order of the calls. The graph allows this order. */
struct capture {
    cudaStream_t origin;
    bool strict; /* an unsafe call breaks the capture */
    bool broken = false;
    std::vector<std::shared_ptr<simt_op>> ops;
    std::map<cudaStream_t, branch> branches;
};

struct CUstream_st {
    simt_device *device;
    bool blocking;   /* this stream and the default stream wait for each other */
    std::mutex lock; /* all below */
    std::condition_variable changed;
    std::deque<std::shared_ptr<simt_op>> queue;
    uint64_t n_queued = 0, n_done = 0;
    bool stop = false;
    std::shared_ptr<capture> captured; /* under way */
    std::thread worker;
};

/* Returns true for every handle that means the default stream. */
bool simt_is_default(cudaStream_t s);
/* Queues the ops on the stream that the handle names or, where it captures, adds them there. */
cudaError_t simt_queue_ops(cudaStream_t handle, const std::vector<std::shared_ptr<simt_op>> &ops);
