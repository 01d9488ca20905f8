/* core.h: shared by server and client. Starts gRPC core; has completion-queue tags and threads,
 * byte buffers and the queue of unsent messages. Private to proto/rpc. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

#include "base/error.h"

/* Starts gRPC core (counted), and logs gRPC's lines at debug level. */
void rpc_core_init(void);
void rpc_core_fini(void);

/* Checks that n threads (64 at most) can be started now: starts and ends them.
 * RESOURCE_EXHAUSTED with the possible number. If a thread cannot be started, gRPC 1.51
 * continues without it, and waits for that thread at its end. */
int rpc_core_check_threads(unsigned n, struct error *err);

/* The tag of a completion-queue event, embedded in a reference-counted object. */
struct arena;

struct rpc_tag {
    uint32_t magic;
    atomic_uint armed; /* release when handed over, acquire when it comes back. So earlier writes
                        * are visible, and sanitizers, which do not see into gRPC, know that */
    void (*complete)(struct rpc_tag *tag, bool ok);
    void *object;
};
void rpc_tag_init(struct rpc_tag *tag, void (*complete)(struct rpc_tag *tag, bool ok),
                  void *object);

/* Call it before a tag is given to gRPC; rpc_core_start does so for batches. */
void rpc_tag_arm(struct rpc_tag *tag);
/* False if gRPC refuses the batch; the tag does not come back then. */
bool rpc_core_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *tag);

/* Passes each event of a queue to its tag until the queue is shut down and empty. A pthread
 * start routine: arg is the grpc_completion_queue. */
void *rpc_core_run_queue(void *queue);

/* Returns NULL if the message cannot be packed. *out_n_bytes is its size on the wire. */
grpc_byte_buffer *rpc_core_pack(const ProtobufCMessage *message, size_t *out_n_bytes);
/* Decodes and validates a received buffer and destroys the buffer. A NULL buffer is
 * INVALID_ARGUMENT. The message belongs to the arena, or, with arena NULL, to the caller
 * (rpc_message_free). */
int rpc_core_parse(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                   struct arena *arena, ProtobufCMessage **out_message, size_t *out_n_bytes,
                   struct error *err);

/* Convert a clock_now_ns() based deadline to gRPC's and back; INT64_MAX means none. */
gpr_timespec rpc_core_deadline(int64_t deadline_ns);
int64_t rpc_core_deadline_ns(gpr_timespec deadline);

/* Messages queued behind the one in flight. A zeroed queue is empty. The owner locks. */
struct rpc_queue_node;
struct rpc_queue {
    struct rpc_queue_node *head, *tail;
    size_t pending_bytes; /* bytes queued and in flight */
    size_t n_messages;    /* messages queued */
    bool refused;         /* a push was refused: the owner waits for on_writable */
};
/* Takes the buffer. False, with the buffer destroyed, if the limit is exceeded or memory is
 * exhausted. An empty queue takes any size. */
bool rpc_queue_push(struct rpc_queue *queue, grpc_byte_buffer *buffer, size_t n_bytes,
                    size_t cap_bytes);
/* Returns the next buffer, which the caller owns then; NULL if the queue is empty. Its bytes
 * count as pending until rpc_queue_sent. */
grpc_byte_buffer *rpc_queue_pop(struct rpc_queue *queue, size_t *out_n_bytes);
/* Reports that a buffer was sent. True if the owner of a refused push should learn that there is
 * room. */
bool rpc_queue_sent(struct rpc_queue *queue, size_t n_bytes, size_t cap_bytes);
void rpc_queue_clear(struct rpc_queue *queue);

/* Filled by a `next` callback. */
struct rpc_out {
    grpc_byte_buffer *buffer;
    size_t n_bytes;
    bool finished;
    struct error status; /* set if finished */
};

static inline void rpc_out_init(struct rpc_out *out)
{
    out->buffer = NULL;
    out->n_bytes = 0;
    out->finished = false;
}

/* Finds a method's row in a service descriptor; NULL: none. */
const ProtobufCMethodDescriptor *rpc_core_method(const ProtobufCServiceDescriptor *service,
                                                 const char *method);
