/* metrics_devices.h: the metric families of devices, for metrics.c. Loop thread only. */
#pragma once

struct error;
struct fleet;
struct metrics;
struct metrics_devices;

/* Adds the families and their collector to the registry; the manager outlives them. *out_devices
 * is owned. */
int metrics_devices_create(struct fleet *fleet, struct metrics *registry,
                           struct metrics_devices **out_devices, struct error *err);
void metrics_devices_destroy(struct metrics_devices *devices); /* NULL is accepted */
