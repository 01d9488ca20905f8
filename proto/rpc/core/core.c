#include "proto/rpc/core/core.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include "base/clock.h"
#include "base/log.h"
#include "proto/rpc/guard/cork.h"
#include "proto/rpc/message/encode.h"
#include "proto/rpc/message/message.h"

enum { TAG_MAGIC = 0x7461672E };

static void log_line(gpr_log_func_args *args)
{
    log_debug(LOG_EVENT("grpc"), LOG_STR("message", args->message), LOG_STR("file", args->file),
              LOG_I64("line", args->line));
}

/* Turns abseil's deadlock detection off. Debian builds abseil with assertions: each lock of a
 * gRPC mutex is entered in a table that all threads share. The table costs a twentieth of the
 * server's time per token (docs/log/2026-11-23-plumbing.md). Other builds lack the function, or
 * have it under another name, and lose nothing. */
static void turn_off_deadlock_detection(void)
{
    union {
        void *symbol;
        void (*set_mode)(int on_deadlock_cycle);
    } found = {dlsym(RTLD_DEFAULT,
                     "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE")};
    enum { IGNORE = 0 };
    if (found.symbol != NULL)
        found.set_mode(IGNORE);
}

static void set_up_once(void)
{
    gpr_set_log_function(log_line);
    turn_off_deadlock_detection();
}

void rpc_core_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up_once);
    grpc_init();
}

static void *wait_for_gate(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

int rpc_core_check_threads(unsigned n, struct error *err)
{
    enum { MOST = 64, STACK_BYTES = 64 << 10 };
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[MOST];
    pthread_attr_t attr;
    unsigned n_made = 0;
    bool made = true;
    n = n < MOST ? n : MOST;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_mutex_lock(&gate);
    while (made && n_made < n) {
        made = pthread_create(&threads[n_made], &attr, wait_for_gate, &gate) == 0;
        n_made += made;
    }
    pthread_mutex_unlock(&gate);
    for (unsigned i = 0; i < n_made; i++)
        pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attr);
    if (!made)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "only %u of the %u threads that a server needs can be started: "
                         "raise RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max",
                         n_made, n);
    return 0;
}

/* Freed by the waiter, or by the thread if the waiter has left before the thread is done. */
struct last_call {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done, is_left;
};

static void *shut_down(void *arg)
{
    struct last_call *last = arg;
    grpc_shutdown();
    pthread_mutex_lock(&last->lock);
    last->is_done = true;
    bool is_left = last->is_left;
    pthread_cond_signal(&last->done);
    pthread_mutex_unlock(&last->lock);
    if (is_left)
        free(last);
    return NULL;
}

/* Shuts gRPC down on a separate thread. If gRPC once failed to start a thread (a limit on
 * processes), grpc_shutdown() waits for that thread for ever. So this function leaves the separate
 * thread behind after MOST_S seconds: the process ends next anyway. */
void rpc_core_fini(void)
{
    enum { MOST_S = 3 };
    pthread_t thread;
    struct timespec until;
    struct last_call *last = malloc(sizeof(*last));
    if (last != NULL)
        *last =
            (struct last_call){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    if (last == NULL || pthread_create(&thread, NULL, shut_down, last) != 0) {
        free(last);
        grpc_shutdown();
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += MOST_S;
    pthread_mutex_lock(&last->lock);
    for (int rc = 0; !last->is_done && rc == 0;)
        rc = pthread_cond_clockwait(&last->done, &last->lock, CLOCK_MONOTONIC, &until);
    bool is_done = last->is_done;
    last->is_left = !is_done;
    pthread_mutex_unlock(&last->lock);
    if (is_done) {
        pthread_join(thread, NULL);
        free(last);
        return;
    }
    log_warn(LOG_EVENT("gRPC shutdown timed out"));
    pthread_detach(thread);
}

void rpc_tag_init(struct rpc_tag *tag, void (*complete)(struct rpc_tag *tag, bool ok), void *object)
{
    tag->magic = TAG_MAGIC;
    atomic_init(&tag->armed, 0);
    tag->complete = complete;
    tag->object = object;
}

void rpc_tag_arm(struct rpc_tag *tag)
{
    atomic_store_explicit(&tag->armed, 1, memory_order_release);
}

bool rpc_core_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *tag)
{
    rpc_tag_arm(tag);
    return grpc_call_start_batch(call, ops, n_ops, tag, NULL) == GRPC_CALL_OK;
}

void *rpc_core_run_queue(void *queue)
{
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        struct rpc_tag *tag = event.tag;
        (void)atomic_load_explicit(&tag->armed, memory_order_acquire);
        assert(tag->magic == TAG_MAGIC);
        rpc_cork_begin();
        tag->complete(tag, event.success != 0);
        rpc_cork_end();
    }
}

static grpc_slice pack_large(const ProtobufCMessage *message)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(n_bytes);
    uint8_t *start = GRPC_SLICE_START_PTR(slice);
    if (rpc_encode(message, start, n_bytes) != start)
        protobuf_c_message_pack(message, start);
    return slice;
}

grpc_byte_buffer *rpc_core_pack(const ProtobufCMessage *message, size_t *out_n_bytes)
{
    uint8_t small[512]; /* enough for a token's message */
    uint8_t *at = rpc_encode(message, small, sizeof(small));
    grpc_slice slice =
        at != NULL
            ? grpc_slice_from_copied_buffer((const char *)at, (size_t)(small + sizeof(small) - at))
            : pack_large(message);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    *out_n_bytes = GRPC_SLICE_LENGTH(slice);
    grpc_slice_unref(slice);
    return buffer;
}

int rpc_core_parse(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                   struct arena *arena, ProtobufCMessage **out_message, size_t *out_n_bytes,
                   struct error *err)
{
    grpc_byte_buffer_reader reader;
    if (buffer == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "no %s was sent", descriptor->name);
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE) {
        grpc_byte_buffer_destroy(buffer);
        error_set(err, STATUS_UNIMPLEMENTED, "%s is compressed; send messages uncompressed",
                  descriptor->name);
        return error_reason(err, REASON_COMPRESSED_MESSAGE);
    }
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        grpc_byte_buffer_destroy(buffer);
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s cannot be decompressed",
                         descriptor->name);
    }
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    *out_n_bytes = GRPC_SLICE_LENGTH(slice);
    int rc = rpc_message_parse_in(arena, descriptor, GRPC_SLICE_START_PTR(slice),
                                  GRPC_SLICE_LENGTH(slice), out_message, err);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(buffer);
    return rc;
}

gpr_timespec rpc_core_deadline(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    int64_t left_ns = deadline_ns - clock_now_ns();
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left_ns, GPR_TIMESPAN));
}

int64_t rpc_core_deadline_ns(gpr_timespec deadline)
{
    gpr_timespec infinite = gpr_inf_future(deadline.clock_type);
    if (gpr_time_cmp(deadline, infinite) == 0)
        return INT64_MAX;
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    if (left.tv_sec > INT32_MAX)
        return INT64_MAX;
    return clock_now_ns() + left.tv_sec * NS_PER_S + left.tv_nsec;
}

struct rpc_queue_node {
    struct rpc_queue_node *next;
    grpc_byte_buffer *buffer;
    size_t n_bytes;
};

bool rpc_queue_push(struct rpc_queue *queue, grpc_byte_buffer *buffer, size_t n_bytes,
                    size_t cap_bytes)
{
    bool fits = queue->pending_bytes == 0 || queue->pending_bytes + n_bytes <= cap_bytes;
    struct rpc_queue_node *node = fits ? malloc(sizeof(*node)) : NULL;
    if (node == NULL) {
        queue->refused = true;
        grpc_byte_buffer_destroy(buffer);
        return false;
    }
    *node = (struct rpc_queue_node){.buffer = buffer, .n_bytes = n_bytes};
    if (queue->tail != NULL)
        queue->tail->next = node;
    else
        queue->head = node;
    queue->tail = node;
    queue->pending_bytes += n_bytes;
    queue->n_messages++;
    return true;
}

grpc_byte_buffer *rpc_queue_pop(struct rpc_queue *queue, size_t *out_n_bytes)
{
    struct rpc_queue_node *node = queue->head;
    if (node == NULL)
        return NULL;
    grpc_byte_buffer *buffer = node->buffer;
    *out_n_bytes = node->n_bytes;
    queue->head = node->next;
    if (queue->head == NULL)
        queue->tail = NULL;
    queue->n_messages--;
    free(node);
    return buffer;
}

bool rpc_queue_sent(struct rpc_queue *queue, size_t n_bytes, size_t cap_bytes)
{
    queue->pending_bytes -= n_bytes;
    if (!queue->refused || queue->pending_bytes > cap_bytes / 2)
        return false;
    queue->refused = false;
    return true;
}

void rpc_queue_clear(struct rpc_queue *queue)
{
    size_t n_bytes = 0;
    for (grpc_byte_buffer *buffer; (buffer = rpc_queue_pop(queue, &n_bytes)) != NULL;) {
        queue->pending_bytes -= n_bytes;
        grpc_byte_buffer_destroy(buffer);
    }
}

const ProtobufCMethodDescriptor *rpc_core_method(const ProtobufCServiceDescriptor *service,
                                                 const char *method)
{
    for (unsigned i = 0; i < service->n_methods; i++)
        if (strcmp(service->methods[i].name, method) == 0)
            return &service->methods[i];
    return NULL;
}
