#include "manager/manager.h"

#include "manager/events.h"
#include "manager/operations.h"
#include "manager/policy.h"
#include "manager/routes.h"
#include "manager/supervise.h"
#include "manager/update.h"

void manager_changed(struct manager *manager)
{
    if (!manager->supervisor)
        return;
    supervisor_kick(manager->supervisor);
    operations_changed(manager->operations);
    updates_changed(manager->updates);
    policies_changed(manager->policies);
    events_changed(manager->events);
    routes_changed(manager->routes);
}
