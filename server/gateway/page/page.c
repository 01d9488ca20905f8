#include "server/gateway/page/page.h"

#include "page_data.h" /* made by page_tool */

/* The browser runs the page's own script and style, and asks no other server. No other page can
 * show this one in a frame. */
static const char headers[] =
    "Content-Security-Policy: default-src 'none'; script-src " PAGE_DATA_SCRIPTS
    "; style-src " PAGE_DATA_STYLES "; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-cache\r\n";

void page_reply(void *arg, struct http_reply *reply)
{
    (void)arg;
    reply->content_type = "text/html; charset=utf-8";
    reply->headers = headers;
    strbuf_add(&reply->body, page_data_html, sizeof(page_data_html));
}
