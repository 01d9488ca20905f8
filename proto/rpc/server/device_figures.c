#include "proto/rpc/server/device_figures.h"

#include "base/system/nvml.h"

void device_figures_fill(Sluice__V1__DeviceFigures *message, const struct nvml_figures *figures)
{
    message->memory_used_bytes = figures->memory_used_bytes;
    message->memory_total_bytes = figures->memory_total_bytes;
    message->has_utilization_percent = figures->has_utilization;
    message->utilization_percent = figures->utilization_percent;
    message->has_memory_utilization_percent = figures->has_utilization;
    message->memory_utilization_percent = figures->memory_utilization_percent;
    message->has_temperature_celsius = figures->has_temperature;
    message->temperature_celsius = figures->temperature_celsius;
    message->has_power_milliwatts = figures->has_power;
    message->power_milliwatts = figures->power_milliwatts;
    message->has_power_limit_milliwatts = figures->has_power_limit;
    message->power_limit_milliwatts = figures->power_limit_milliwatts;
    message->has_sm_clock_mhz = figures->has_sm_clock;
    message->sm_clock_mhz = figures->sm_clock_mhz;
    message->has_memory_clock_mhz = figures->has_memory_clock;
    message->memory_clock_mhz = figures->memory_clock_mhz;
    message->has_ecc_corrected = figures->has_ecc_corrected;
    message->ecc_corrected = figures->ecc_corrected;
    message->has_ecc_uncorrected = figures->has_ecc_uncorrected;
    message->ecc_uncorrected = figures->ecc_uncorrected;
}
