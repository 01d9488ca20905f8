/* core.h: what server and client share: starting gRPC core, completion-queue tags and threads,
 * byte buffers, the queue of messages waiting to be sent. Private to proto/rpc. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

#include "base/error.h"

/* Starts gRPC core (counted) and sends its log lines to ours at debug. */
void rpc_core_init(void);
void rpc_core_fini(void);

/* That n threads (64 at most) can be made now: makes and ends them. RESOURCE_EXHAUSTED with how
 * many could. gRPC 1.51 goes on without a thread it could not make as it began, and waits for it as
 * it ends. */
int rpc_core_check_threads(unsigned n, struct error *err);

/* What travels through a completion queue: embedded in a reference-counted object. */
struct arena;

struct rpc_tag {
    uint32_t magic;
    atomic_uint armed; /* release when handed over, acquire when it comes back: what was written
                          before is seen, and sanitizers that cannot look into gRPC know it */
    void (*complete)(struct rpc_tag *tag, bool ok);
    void *object;
};
void rpc_tag_init(struct rpc_tag *tag, void (*complete)(struct rpc_tag *tag, bool ok),
                  void *object);

/* Before a tag is handed to gRPC; rpc_core_start does it for batches. */
void rpc_tag_arm(struct rpc_tag *tag);
/* False where gRPC refuses the batch; the tag will then not come back. */
bool rpc_core_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *tag);

/* Hands each event of a queue to its tag until the queue is shut down and empty. A pthread start
 * routine: arg is the grpc_completion_queue. */
void *rpc_core_run_queue(void *queue);

/* NULL where the message could not be packed. *out_n_bytes is its size on the wire. */
grpc_byte_buffer *rpc_core_pack(const ProtobufCMessage *message, size_t *out_n_bytes);
/* Decodes and validates a received buffer, which it destroys. NULL buffers are INVALID_ARGUMENT.
 * The message is the arena's, or, with NULL, the caller's (rpc_message_free). */
int rpc_core_parse(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                   struct arena *arena, ProtobufCMessage **out_message, size_t *out_n_bytes,
                   struct error *err);

/* clock_now_ns() based deadline to gRPC's and back; INT64_MAX is "none". */
gpr_timespec rpc_core_deadline(int64_t deadline_ns);
int64_t rpc_core_deadline_ns(gpr_timespec deadline);

/* Messages in line behind the one in flight. Zeroed is empty. The owner locks. */
struct rpc_queue_node;
struct rpc_queue {
    struct rpc_queue_node *head, *tail;
    size_t pending_bytes; /* queued and in flight */
    size_t n_messages;    /* queued */
    bool refused;         /* a push was refused: its owner waits for on_writable */
};
/* Takes the buffer. False, buffer destroyed, where it goes over the cap or memory is exhausted; an
 * empty queue takes any size. */
bool rpc_queue_push(struct rpc_queue *queue, grpc_byte_buffer *buffer, size_t n_bytes,
                    size_t cap_bytes);
/* The next buffer (the caller's now), still counted as pending until rpc_queue_sent. NULL: empty.
 */
grpc_byte_buffer *rpc_queue_pop(struct rpc_queue *queue, size_t *out_n_bytes);
/* A buffer left for good. True where a refused owner should be told that there is room. */
bool rpc_queue_sent(struct rpc_queue *queue, size_t n_bytes, size_t cap_bytes);
void rpc_queue_clear(struct rpc_queue *queue);

/* What a `next` callback fills. */
struct rpc_out {
    grpc_byte_buffer *buffer;
    size_t n_bytes;
    bool finished;
    struct error status; /* where finished */
};

static inline void rpc_out_init(struct rpc_out *out)
{
    out->buffer = NULL;
    out->n_bytes = 0;
    out->finished = false;
}

/* Finds a method's row in a service descriptor. NULL: none. */
const ProtobufCMethodDescriptor *rpc_core_method(const ProtobufCServiceDescriptor *service,
                                                 const char *method);
