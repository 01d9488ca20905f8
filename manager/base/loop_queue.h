/* loop_queue.h: hands work from other threads to the libev loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct ev_loop;
struct loop_queue;

typedef void loop_fn(void *arg);

/* A posted call. The queue owns the task while it is posted. A poster's own task starts zeroed. */
struct loop_task {
    struct loop_task *next;
    loop_fn *fn;
    void *arg;
    bool posted, own;
};

/* Loop thread. *out_queue is owned; the loop is borrowed until destroy. */
int loop_queue_create(struct ev_loop *loop, struct loop_queue **out_queue, struct error *err);
/* Loop thread. Runs posted tasks first. NULL is accepted. */
void loop_queue_destroy(struct loop_queue *queue);

/* Any thread: calls fn(arg) on the loop thread, in the order of posting. RESOURCE_EXHAUSTED
 * where memory is exhausted: fn is then not called. */
int loop_queue_post(struct loop_queue *queue, loop_fn *fn, void *arg);
/* Like loop_queue_post(), in memory of the poster, so it cannot fail. The memory may be freed
 * once fn is called. Does nothing while the task is posted and has not run. */
void loop_queue_post_own(struct loop_queue *queue, struct loop_task *task, loop_fn *fn, void *arg);
/* Loop thread: runs all tasks that are posted now. */
void loop_queue_run(struct loop_queue *queue);
/* Number of posted tasks that have not run; any thread. */
size_t loop_queue_depth(struct loop_queue *queue);
