/* simt_queue.h: a stream's queue and what captures from it, shared by simt_stream.cc and
 * simt_graph.cc alone. */
#pragma once

#include <map>

#include "tests/simt/simt_runtime.h"

/* The part of a stream in a capture. */
struct branch {
    size_t n_ops = 0;
    bool joined = true; /* somebody waits for its last op */
};

/* Ops of all streams that take part, in the order of the calls: one order that the graph allows. */
struct capture {
    cudaStream_t origin;
    bool strict; /* unsafe calls break it */
    bool broken = false;
    std::vector<std::shared_ptr<simt_op>> ops;
    std::map<cudaStream_t, branch> branches;
};

struct CUstream_st {
    simt_device *device;
    bool blocking;   /* waits for the default stream, and it for this */
    std::mutex lock; /* all below */
    std::condition_variable changed;
    std::deque<std::shared_ptr<simt_op>> queue;
    uint64_t n_queued = 0, n_done = 0;
    bool stop = false;
    std::shared_ptr<capture> captured; /* under way */
    std::thread worker;
};

/* The default stream by any of its names. */
bool simt_is_default(cudaStream_t s);
/* Queues the ops on the stream that the handle names or, where it captures, adds them there. */
cudaError_t simt_queue_ops(cudaStream_t handle, const std::vector<std::shared_ptr<simt_op>> &ops);
