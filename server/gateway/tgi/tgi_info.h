/* tgi_info.h: writes the answer to GET /info, with the names of text-generation-inference 3. Any
 * thread. */
#pragma once

struct error;
struct gateway_limits;
struct route_table;
struct strbuf;
struct tgi_model;

/* Appends the JSON object. NOT_FOUND or FAILED_PRECONDITION if the model is not served. */
int tgi_info_write(const struct route_table *routes, const struct tgi_model *model,
                   const struct gateway_limits *limits, struct strbuf *out, struct error *err);
