/* schema.h: the schema of the state database as a list of migrations. Migration i changes
 * user_version from i to i + 1. Released migrations are never edited: a schema change is a new
 * entry. */
#pragma once

#include <stddef.h>

enum { SCHEMA_APPLICATION_ID = 0x536c7563 /* "Sluc", in the database's header */ };

size_t schema_n_migrations(void);
const char *schema_migration(size_t i);
