/* schema.h: the state database's schema as a list of migrations; migration i brings user_version i
 * to i + 1. Applied ones are never edited: a change of schema is a new entry. */
#pragma once

#include <stddef.h>

enum { SCHEMA_APPLICATION_ID = 0x536c7563 /* "Sluc", in the database's header */ };

size_t schema_n_migrations(void);
const char *schema_migration(size_t i);
