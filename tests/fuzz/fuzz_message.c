/* fuzz_message.c: compares our decoding into an arena, and our encoding, with protobuf-c. The first
 * byte chooses the message. */
#include <stddef.h>
#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/v1/inference.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"
#include "tests/support/message_twice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const messages[] = {
    &sluice__worker__v1__serve_response__descriptor,
    &sluice__worker__v1__serve_request__descriptor,
    &sluice__v1__generate_response__descriptor,
    &sluice__v1__generate_stream_response__descriptor,
    &sluice__v1__complete_response__descriptor,
    &sluice__manager__v1__route_table__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool ok;
    if (size == 0)
        return 0;
    if (!decodes_as_protobuf_c(messages[data[0] % (sizeof(messages) / sizeof(messages[0]))],
                               data + 1, size - 1, &ok))
        abort();
    return 0;
}
