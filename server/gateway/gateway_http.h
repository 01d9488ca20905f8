/* gateway_http.h: the life of HTTP within the gateway. The gateway's own functions call these. */
#pragma once

#include <stdint.h>

struct error;
struct gateway;
struct gateway_config;

/* Checks the addresses against the keys and TLS: a key must not cross the network in plain text. */
int gateway_http_check(const struct gateway_config *config, struct error *err);
/* Listens on every address of --http-listen; with none, HTTP is off. */
int gateway_http_start(struct gateway *gateway, struct error *err);
/* The addresses close. While another server has them, requests of open connections are served for
 * a second; otherwise they are refused. */
void gateway_http_drain(struct gateway *gateway);
/* Waits until end_ns for the answers that run, and ends the rest with DRAINING. Nothing is served
 * afterwards. */
void gateway_http_end(struct gateway *gateway, int64_t end_ns);
/* After every other part that may be scraped. */
void gateway_http_destroy(struct gateway *gateway);
