/* filters.h: the tables of filters; a row without a name ends each table. Private to
 * engine/template. */
#pragma once

#include "engine/template/value/builtin.h"

extern const struct builtin text_filters[], sequence_filters[], select_filters[];
