/* libFuzzer: chat templates. The input is a template, which a NUL byte and JSON may follow. The
 * JSON is an object of variables, or an array of messages. The last message of an array stays open.
 * Whatever comes: no crash, no leak, and a failure leaves the output untouched. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" Be brief. \"},"
    "{\"role\": \"user\", \"content\": \"Hi <b> & \\\"you\\\" \\u00e9 \\u2603 \\ud83d\\ude00\"},"
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"a\": 1, \"b\": [1.5, null, true]}}}]}],"
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}],"
    "\"d\": {\"b\": 2, \"a\": 1, \"items\": \"K\"}, \"xs\": [3, 1, 2], \"s\": \"Hello World\","
    "\"n\": null, \"f\": 1.5, \"users\": [{\"name\": \"bob\", \"age\": 3}, {\"name\": \"Al\", "
    "\"age\": 2}], \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";

static const char conversation[] =
    "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"reasoning\": \"So\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
    "\"{\\\"a\\\": [1]}\"}}]}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", "
    "\"text\": \" Sure, \\ufdd0\"}]}]";

static void render(const struct chat_template *template, const char *json)
{
    bool is_list = json[0] == '[';
    struct chat_template_input input = {.kwargs_json = is_list ? NULL : json,
                                        .messages_json = is_list ? json : NULL,
                                        .continue_field = is_list ? "content" : NULL,
                                        .add_generation_prompt = true,
                                        .now_unix_s = 1721952000};
    struct strbuf out = {0};
    struct error err = {0};
    int rc = chat_template_render(template, &input, &out, &err);
    if (rc != err.status || (rc && out.n_bytes) || (rc && !err.message[0]) ||
        out.n_bytes > CHAT_TEMPLATE_MAX_OUTPUT_BYTES)
        abort();
    strbuf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_template *template = NULL;
    struct error err = {0};
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n_text = nul ? (size_t)(nul - data) : size;
    int rc = chat_template_compile((const char *)data, n_text, &template, &err);
    if (rc != err.status || (rc && (template || !err.message[0])))
        abort();
    if (rc)
        return 0;
    char *json = nul ? strndup((const char *)nul + 1, size - n_text - 1) : NULL;
    render(template, json ? json : variables);
    chat_template_probe(template);
    render(template, json ? json : conversation);
    free(json);
    chat_template_destroy(template);
    return 0;
}
