/* page.h: answers GET / with the page: models, replicas, figures and a chat. The page is a
 * single HTML file, which loads no other file. Its script reads /metrics and speaks OpenAI's API,
 * as any client does. So the page shows nothing without the key of these paths. Any thread. */
#pragma once

#include "proto/http/http_server.h"

http_page_fn page_reply;
