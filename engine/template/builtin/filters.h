/* filters.h: the tables of filters, each ended by a row without a name. Private to engine/template.
 */
#pragma once

#include "engine/template/value/builtin.h"

extern const struct builtin text_filters[], sequence_filters[], select_filters[];
