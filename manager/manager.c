#include "manager/manager.h"

#include "manager/events.h"
#include "manager/operations.h"
#include "manager/policy.h"
#include "manager/routes.h"
#include "manager/store.h"
#include "manager/supervise.h"
#include "manager/update.h"

void manager_changed(struct manager *manager)
{
    if (!manager->supervisor)
        return;
    manager->told_generation = manager->catalog.generation;
    supervisor_kick(manager->supervisor);
    operations_changed(manager->operations);
    updates_changed(manager->updates);
    policies_changed(manager->policies);
    events_changed(manager->events);
    routes_changed(manager->routes);
}

bool manager_poll_store(struct manager *manager)
{
    bool all = store_poll(manager->store);
    if (manager->told_generation != manager->catalog.generation)
        manager_changed(manager);
    return all;
}
