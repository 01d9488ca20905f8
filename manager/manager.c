#include "manager/manager.h"

#include "manager/replicas/supervisor.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/update.h"
#include "manager/store/store.h"
#include "manager/watch/events.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"

void manager_changed(struct manager *manager)
{
    if (!manager->supervisor)
        return;
    manager->told_generation = manager->catalog.generation;
    supervisor_kick(manager->supervisor);
    operations_changed(manager->operations);
    updates_changed(manager->updates);
    policy_runner_changed(manager->policies);
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
