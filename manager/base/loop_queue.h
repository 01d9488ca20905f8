/* loop_queue.h: how other threads hand work to the libev loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct error;
struct ev_loop;
struct loop_queue;

typedef void loop_fn(void *arg);

/* What is to be called; the queue's while it is posted. Zeroed where it is its poster's own. */
struct loop_task {
    struct loop_task *next;
    loop_fn *fn;
    void *arg;
    bool posted, own;
};

/* Loop thread. *out_queue is owned; the loop is borrowed until destroy. */
int loop_queue_create(struct ev_loop *loop, struct loop_queue **out_queue, struct error *err);
/* Loop thread. What was posted and has not run is run first. NULL is accepted. */
void loop_queue_destroy(struct loop_queue *queue);

/* Any thread: has fn(arg) called on the loop thread, in the order of posting. RESOURCE_EXHAUSTED
 * where memory is: fn will not be called. */
int loop_queue_post(struct loop_queue *queue, loop_fn *fn, void *arg);
/* As loop_queue_post, in the poster's own memory, which may be freed once fn is called: it cannot
 * fail. Does nothing where the task is posted and has not been run. */
void loop_queue_post_own(struct loop_queue *queue, struct loop_task *task, loop_fn *fn, void *arg);
/* Loop thread: runs what is there now. */
void loop_queue_run(struct loop_queue *queue);
/* Number of posts that have not run; any thread. */
size_t loop_queue_depth(struct loop_queue *queue);
