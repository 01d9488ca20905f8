/* service_config.h: clients/service_config.json, as the build puts it into the library. */
#pragma once

extern const char sluice_service_config[];
