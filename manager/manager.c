#include "manager/manager.h"

#include "manager/store/store.h"

static void on_change(void *arg, const char *replica_id)
{
    struct manager *manager = arg;
    (void)replica_id;
    manager->notified_generation = manager->catalog.generation;
}

void manager_init(struct manager *manager)
{
    struct context *context = &manager->context;
    context->settings = &manager->settings;
    context->catalog = &manager->catalog;
    fleet_init(&manager->fleet, context);
    manager->gate.context = context;
    change_hub_subscribe(&context->changes, &manager->on_change, on_change, manager);
}

bool manager_poll_store(struct manager *manager)
{
    bool all = store_poll(manager->context.store);
    if (manager->notified_generation != manager->catalog.generation)
        change_hub_notify(&manager->context.changes, NULL);
    return all;
}
