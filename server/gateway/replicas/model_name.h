/* model_name.h: the model that a request asks for: "NAME" or "NAME:VERSION". A request of an API
 * that lets clients omit the name gets the only loaded model. Each API gives its own name of the
 * field that has the text. Plain functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "server/gateway/replicas/route_table.h"

struct strbuf;

enum { MODEL_NAME_BYTES = 65 }; /* the longest model or version with the NUL */

struct model_name {
    char model[MODEL_NAME_BYTES];
    char version[MODEL_NAME_BYTES]; /* empty: chosen by the traffic rule */
};

/* Splits the text at the first colon. INVALID_ARGUMENT with `field` if the model is empty, or if a
 * part is too long. An unknown model is no error here. */
int model_name_read(const char *text, const char *field, struct model_name *out_name,
                    struct error *err);
/* Does the same; NULL: the only loaded model of the routes. INVALID_ARGUMENT with `field` if
 * several models are loaded; the text names them. FAILED_PRECONDITION, reason MODEL_NOT_LOADED, if
 * none is loaded. */
int model_name_choose(const struct route_table *routes, const char *text, const char *field,
                      struct model_name *out_name, struct error *err);

/* True if the route is loaded, and is of the model and of the version. "": any version. */
bool model_name_is_loaded(const route *r, const char *model, const char *version);
/* Returns the loaded routes by model, then in the order of registration. Owned: free(); the routes
 * are borrowed from the table. NULL if memory is exhausted. */
const route **model_name_loaded(const struct route_table *routes, size_t *out_n);
/* Returns the number of routes from i on that are of the same model, in such a list. */
size_t model_name_n_versions(const route **list, size_t n, size_t i);
/* Appends the models of such a list, each once, at most MODEL_NAME_LISTED:
 * `the loaded models are "a", "b" and 3 more`, or `no model is loaded`. */
enum { MODEL_NAME_LISTED = 8 };
void model_name_write_list(const route **list, size_t n, struct strbuf *out);
