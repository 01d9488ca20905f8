#include "proto/rpc/server/reflection.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "proto/rpc/message/schema.h"
#include "proto/rpc/server/call.h"

enum { MAX_SERVICES = 64, MAX_FILES = 128 };

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

struct rpc_reflection {
    const struct rpc_schema *schema;
    const char *names[MAX_SERVICES];
    size_t n_names;
};

/* The memory of an answer. */
struct answer {
    reflection_response response;
    Grpc__Reflection__V1__FileDescriptorResponse files;
    ProtobufCBinaryData bytes[MAX_FILES];
    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ServiceResponse services[MAX_SERVICES];
    Grpc__Reflection__V1__ServiceResponse *service_pointers[MAX_SERVICES];
    Grpc__Reflection__V1__ErrorResponse error;
    struct error message; /* text of `error` */
};

int rpc_reflection_create(const struct rpc_schema *schema, const char *const *service_names,
                          size_t n_services, struct rpc_reflection **out_reflection,
                          struct error *err)
{
    struct rpc_reflection *reflection = calloc(1, sizeof(*reflection));
    if (reflection == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for reflection");
    reflection->schema = schema;
    for (size_t i = 0; i < n_services && i < MAX_SERVICES; i++)
        reflection->names[reflection->n_names++] = service_names[i];
    *out_reflection = reflection;
    return 0;
}

void rpc_reflection_destroy(struct rpc_reflection *reflection)
{
    free(reflection);
}

/* protobuf-c's structs have non-const pointers, but do not write through them. */
static char *borrow(const char *text)
{
    return (char *)(uintptr_t)text;
}

static void answer_error(struct answer *answer, int status, const char *what, const char *name)
{
    error_set(&answer->message, status, "%s: %.200s", what, name);
    grpc__reflection__v1__error_response__init(&answer->error);
    answer->error.error_code = status_to_grpc(status);
    answer->error.error_message = answer->message.message;
    answer->response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    answer->response.error_response = &answer->error;
}

/* Answers with a file and all its imports, each once, the requested file first. */
static void answer_file(const struct rpc_reflection *reflection, struct answer *answer,
                        size_t i_file)
{
    size_t queue[MAX_FILES];
    bool seen[MAX_FILES] = {false};
    size_t n = 0;
    queue[n++] = i_file;
    seen[i_file] = true;
    for (size_t i = 0; i < n; i++) {
        const struct rpc_schema_file *file = rpc_schema_file(reflection->schema, queue[i]);
        answer->bytes[i].data = (uint8_t *)(uintptr_t)file->bytes;
        answer->bytes[i].len = file->n_bytes;
        for (size_t j = 0; j < file->n_imports; j++) {
            size_t import = file->imports[j];
            if (import >= MAX_FILES || seen[import])
                continue;
            seen[import] = true;
            queue[n++] = import;
        }
    }
    grpc__reflection__v1__file_descriptor_response__init(&answer->files);
    answer->files.n_file_descriptor_proto = n;
    answer->files.file_descriptor_proto = answer->bytes;
    answer->response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    answer->response.file_descriptor_response = &answer->files;
}

static void answer_list(const struct rpc_reflection *reflection, struct answer *answer)
{
    grpc__reflection__v1__list_service_response__init(&answer->list);
    for (size_t i = 0; i < reflection->n_names; i++) {
        grpc__reflection__v1__service_response__init(&answer->services[i]);
        answer->services[i].name = borrow(reflection->names[i]);
        answer->service_pointers[i] = &answer->services[i];
    }
    answer->list.n_service = reflection->n_names;
    answer->list.service = answer->service_pointers;
    answer->response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    answer->response.list_services_response = &answer->list;
}

/* No file here declares extensions: every message has none, which is no error. */
static void answer_extensions(struct answer *answer, char *type)
{
    grpc__reflection__v1__extension_number_response__init(&answer->extensions);
    answer->extensions.base_type_name = type;
    answer->response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    answer->response.all_extension_numbers_response = &answer->extensions;
}

static void fill_answer(const struct rpc_reflection *reflection, reflection_request *request,
                        struct answer *answer)
{
    size_t i_file = SIZE_MAX;
    grpc__reflection__v1__server_reflection_response__init(&answer->response);
    answer->response.valid_host = request->host;
    answer->response.original_request = request;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        i_file = rpc_schema_find_file(reflection->schema, request->file_by_filename);
        if (i_file >= MAX_FILES)
            answer_error(answer, STATUS_NOT_FOUND, "no such file", request->file_by_filename);
        else
            answer_file(reflection, answer, i_file);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        i_file = rpc_schema_find_symbol(reflection->schema, request->file_containing_symbol);
        if (i_file >= MAX_FILES)
            answer_error(answer, STATUS_NOT_FOUND, "no such symbol",
                         request->file_containing_symbol);
        else
            answer_file(reflection, answer, i_file);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        answer_error(answer, STATUS_NOT_FOUND, "no extensions of",
                     request->file_containing_extension->containing_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        if (rpc_schema_is_message(reflection->schema, request->all_extension_numbers_of_type))
            answer_extensions(answer, request->all_extension_numbers_of_type);
        else
            answer_error(answer, STATUS_NOT_FOUND, "no such message",
                         request->all_extension_numbers_of_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_list(reflection, answer);
        break;
    default:
        answer_error(answer, STATUS_INVALID_ARGUMENT, "message_request", "not set");
    }
}

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct error err;
    struct answer *answer = malloc(sizeof(*answer));
    int rc = STATUS_RESOURCE_EXHAUSTED;
    if (answer != NULL) {
        fill_answer(arg, (reflection_request *)(uintptr_t)message, answer);
        rc = rpc_call_send(call, &answer->response.base);
    }
    free(answer);
    if (rc == STATUS_RESOURCE_EXHAUSTED) {
        error_set(&err, rc, "the client does not read its answers");
        rpc_call_finish(call, &err);
    }
}

static void on_half_close(void *arg, struct rpc_call *call)
{
    (void)arg;
    rpc_call_finish(call, NULL);
}

static const struct rpc_call_events events = {
    .on_message = on_message,
    .on_half_close = on_half_close,
};

/* The messages of v1alpha have the same fields, so protobuf-c's structs have the same layout.
 * That is checked here, because answers are packed as v1. */
_Static_assert(sizeof(Grpc__Reflection__V1__ServerReflectionRequest) ==
                   sizeof(Grpc__Reflection__V1alpha__ServerReflectionRequest),
               "v1 and v1alpha differ");

static void handle_info(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    rpc_call_set_events(call, &events, context);
}

void rpc_reflection_services(struct rpc_reflection *reflection, struct rpc_service out_services[2])
{
    static const struct rpc_method methods[] = {
        {"ServerReflectionInfo", RPC_SHAPE_BIDI, handle_info},
    };
    out_services[0] = (struct rpc_service){&grpc__reflection__v1__server_reflection__descriptor,
                                           methods, 1, reflection};
    out_services[1] = (struct rpc_service){
        &grpc__reflection__v1alpha__server_reflection__descriptor, methods, 1, reflection};
}
