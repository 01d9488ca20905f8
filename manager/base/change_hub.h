/* change_hub.h: notifies parts of the manager of changes. Lower parts notify and higher parts
 * subscribe, so that no part includes headers of higher parts. Loop thread only. */
#pragma once

/* `replica_id`: the replica that has changed. NULL: anything may have changed. */
typedef void change_fn(void *arg, const char *replica_id);

/* Memory of the subscriber, which must live until change_hub_close(). */
struct change_subscriber {
    struct change_subscriber *next;
    change_fn *changed;
    void *arg;
};

/* A zeroed hub is valid and has no subscribers. */
struct change_hub {
    struct change_subscriber *first;
};

/* Adds a subscriber. Subscribers are called in the order in which they subscribed. */
void change_hub_subscribe(struct change_hub *hub, struct change_subscriber *subscriber,
                          change_fn *changed, void *arg);
void change_hub_notify(struct change_hub *hub, const char *replica_id);
/* Forgets all subscribers. Comes before the first of them is destroyed. */
void change_hub_close(struct change_hub *hub);
