#include "manager/base/loop_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include <ev.h>

#include "base/error.h"

struct loop_queue {
    struct ev_loop *loop;
    ev_async wake;
    pthread_mutex_t mutex; /* guards the list */
    struct loop_task *head, **tail;
    size_t n_tasks;
};

void loop_queue_run(struct loop_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    struct loop_task *task = queue->head;
    queue->head = NULL;
    queue->tail = &queue->head;
    queue->n_tasks = 0;
    pthread_mutex_unlock(&queue->mutex);
    for (struct loop_task *next; task; task = next) {
        loop_fn *fn = task->fn;
        void *arg = task->arg;
        next = task->next;
        if (task->own) { /* from here on the task may be posted again, and fn may free it */
            pthread_mutex_lock(&queue->mutex);
            task->posted = false;
            pthread_mutex_unlock(&queue->mutex);
        } else {
            free(task);
        }
        fn(arg);
    }
}

static void on_wake(struct ev_loop *loop, ev_async *watcher, int events)
{
    (void)loop;
    (void)events;
    loop_queue_run(watcher->data);
}

int loop_queue_create(struct ev_loop *loop, struct loop_queue **out_queue, struct error *err)
{
    struct loop_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return error_no_memory(err);
    queue->loop = loop;
    queue->tail = &queue->head;
    pthread_mutex_init(&queue->mutex, NULL);
    ev_async_init(&queue->wake, on_wake);
    queue->wake.data = queue;
    ev_async_start(loop, &queue->wake);
    *out_queue = queue;
    return 0;
}

void loop_queue_destroy(struct loop_queue *queue)
{
    if (!queue)
        return;
    while (loop_queue_depth(queue))
        loop_queue_run(queue);
    ev_async_stop(queue->loop, &queue->wake);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
}

static void post(struct loop_queue *queue, struct loop_task *task, const struct loop_task *what)
{
    pthread_mutex_lock(&queue->mutex);
    if (!task->posted) {
        *task = *what;
        task->posted = true;
        *queue->tail = task;
        queue->tail = &task->next;
        queue->n_tasks++;
    }
    pthread_mutex_unlock(&queue->mutex);
    ev_async_send(queue->loop, &queue->wake);
}

int loop_queue_post(struct loop_queue *queue, loop_fn *fn, void *arg)
{
    struct loop_task *task = calloc(1, sizeof(*task));
    if (!task)
        return STATUS_RESOURCE_EXHAUSTED;
    post(queue, task, &(struct loop_task){.fn = fn, .arg = arg});
    return 0;
}

void loop_queue_post_own(struct loop_queue *queue, struct loop_task *task, loop_fn *fn, void *arg)
{
    post(queue, task, &(struct loop_task){.fn = fn, .arg = arg, .own = true});
}

size_t loop_queue_depth(struct loop_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    size_t n = queue->n_tasks;
    pthread_mutex_unlock(&queue->mutex);
    return n;
}
