/* fuzz_keys.c: fuzzes the file of API keys. A refusal names the line and quotes none of its text.
 * In an accepted file, a key is valid only where the file has its SHA-256. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/access/api_keys.h"
#include "base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct api_keys *keys = NULL;
    struct error err;
    struct api_key_owner owner;
    error_clear(&err);
    int rc = api_keys_parse("keys", (const char *)data, size, &keys, &err);
    if (rc != 0) {
        if (keys || err.status != rc || strncmp(err.message, "keys:", 5) != 0)
            abort();
        return 0;
    }
    if (api_keys_count(keys) > API_KEYS_MAX_KEYS)
        abort();
    if (api_keys_check(keys, (const char *)data, size, 0, &owner) == API_KEY_GOOD &&
        (api_key_check_tenant(owner.tenant, &err) != 0 || owner.role < ROLE_INFERENCE))
        abort();
    api_keys_destroy(keys);
    return 0;
}
