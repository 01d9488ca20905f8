#include "manager/loop_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include <ev.h>

#include "base/error.h"

struct task {
    struct task *next;
    loop_fn *fn;
    void *arg;
};

struct loop_queue {
    struct ev_loop *loop;
    ev_async wake;
    pthread_mutex_t mutex; /* guards the list */
    struct task *head, **tail;
    size_t n_tasks;
};

void loop_queue_run(struct loop_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    struct task *task = queue->head;
    queue->head = NULL;
    queue->tail = &queue->head;
    queue->n_tasks = 0;
    pthread_mutex_unlock(&queue->mutex);
    for (struct task *next; task; task = next) {
        next = task->next;
        task->fn(task->arg);
        free(task);
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
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
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

int loop_queue_post(struct loop_queue *queue, loop_fn *fn, void *arg)
{
    struct task *task = malloc(sizeof(*task));
    if (!task)
        return STATUS_RESOURCE_EXHAUSTED;
    *task = (struct task){.fn = fn, .arg = arg};
    pthread_mutex_lock(&queue->mutex);
    *queue->tail = task;
    queue->tail = &task->next;
    queue->n_tasks++;
    pthread_mutex_unlock(&queue->mutex);
    ev_async_send(queue->loop, &queue->wake);
    return 0;
}

size_t loop_queue_depth(struct loop_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    size_t n = queue->n_tasks;
    pthread_mutex_unlock(&queue->mutex);
    return n;
}
