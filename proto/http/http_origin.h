/* http_origin.h: decides which web pages may use a server. A page of any site can make a browser
 * send requests to a server on the same machine. The browser names the page's site in Origin. The
 * page may read an answer only if the answer allows that. With DNS rebinding a site's own name
 * leads to the server's address; the name then stands in Host. Pure functions; any thread. */
#pragma once

#include <stdbool.h>

/* True for a page of this machine or of a local app: http(s)://localhost, 127.0.0.1, [::1] or
 * 0.0.0.0 with any port, and app://, file://, tauri:// and vscode-webview://. */
bool http_origin_is_local(const char *origin);

/* True if `list` (elements between commas; "*": all) has the origin, compared without case. */
bool http_origin_is_listed(const char *origin, const char *list);

/* True if a page with this Origin is from the server that the request names in Host. */
bool http_origin_is_of_host(const char *origin, const char *host);

/* True for a Host that no other site can have: localhost, a name that ends with .localhost, or an
 * IP address. Each may have a port. */
bool http_origin_host_is_local(const char *host);
