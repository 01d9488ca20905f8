/* methods.h: tables of methods by type. Private to engine/template. */
#pragma once

#include "engine/template/value/builtin.h"

extern const struct builtin text_methods[];
