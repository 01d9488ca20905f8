#include "manager/base/change_hub.h"

#include <stddef.h>

void change_hub_subscribe(struct change_hub *hub, struct change_subscriber *subscriber,
                          change_fn *changed, void *arg)
{
    struct change_subscriber **end = &hub->first;
    while (*end)
        end = &(*end)->next;
    *subscriber = (struct change_subscriber){.changed = changed, .arg = arg};
    *end = subscriber;
}

void change_hub_notify(struct change_hub *hub, const char *replica_id)
{
    for (struct change_subscriber *at = hub->first; at; at = at->next)
        at->changed(at->arg, replica_id);
}

void change_hub_close(struct change_hub *hub)
{
    hub->first = NULL;
}
