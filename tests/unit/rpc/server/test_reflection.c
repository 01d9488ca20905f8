/* Reflection through our own client, both versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/error.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "proto/rpc/message/message.h"
#include "tests/unit/rpc/support_rpc.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

/* A conversation of several questions; answers are kept packed. */
struct questions {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ProtobufCMessage *answers[16];
    size_t n_answers;
    bool ended;
    int status;
};

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct questions *questions = arg;
    struct error err;
    void *bytes = NULL;
    size_t n_bytes = 0;
    (void)stream;
    assert_int_equal(rpc_message_pack(message, &bytes, &n_bytes, &err), 0);
    pthread_mutex_lock(&questions->lock);
    assert_true(questions->n_answers < 16);
    /* v1alpha's answers are read as v1's: the wire form is the same. */
    assert_int_equal(
        rpc_message_parse(&grpc__reflection__v1__server_reflection_response__descriptor, bytes,
                          n_bytes, &questions->answers[questions->n_answers], &err),
        0);
    questions->n_answers++;
    pthread_mutex_unlock(&questions->lock);
    free(bytes);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct questions *questions = arg;
    (void)stream;
    pthread_mutex_lock(&questions->lock);
    questions->ended = true;
    questions->status = status->status;
    pthread_cond_signal(&questions->changed);
    pthread_mutex_unlock(&questions->lock);
}

static const struct rpc_stream_events events = {.on_message = on_message, .on_status = on_status};

static void ask(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                const reflection_request *requests, size_t n_requests, struct questions *questions)
{
    struct rpc_stream *stream = NULL;
    struct error err;
    memset(questions, 0, sizeof(*questions));
    pthread_mutex_init(&questions->lock, NULL);
    pthread_cond_init(&questions->changed, NULL);
    assert_int_equal(rpc_stream_open(client, service, "ServerReflectionInfo", NULL, NULL, &events,
                                     questions, &stream, &err),
                     0);
    for (size_t i = 0; i < n_requests; i++)
        assert_int_equal(rpc_stream_send(stream, &requests[i].base), 0);
    rpc_stream_close_send(stream);
    pthread_mutex_lock(&questions->lock);
    while (!questions->ended)
        pthread_cond_wait(&questions->changed, &questions->lock);
    pthread_mutex_unlock(&questions->lock);
    rpc_stream_release(stream);
    assert_int_equal(questions->status, 0);
    assert_int_equal(questions->n_answers, n_requests);
}

static reflection_request question(int kind, char *text)
{
    reflection_request request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    request.message_request_case =
        (Grpc__Reflection__V1__ServerReflectionRequest__MessageRequestCase)kind;
    request.list_services = text; /* all text questions share the union */
    return request;
}

enum { BY_FILE = 3, BY_SYMBOL = 4, ALL_EXTENSIONS = 6, LIST = 7 };

static bool has_file(const reflection_response *response, const char *name)
{
    const Grpc__Reflection__V1__FileDescriptorResponse *files = response->file_descriptor_response;
    size_t n_name = strlen(name);
    for (size_t i = 0; i < files->n_file_descriptor_proto; i++) {
        /* FileDescriptorProto starts with its name: tag 0x0A, length, text. */
        const ProtobufCBinaryData *file = &files->file_descriptor_proto[i];
        if (file->len > n_name + 2 && file->data[0] == 0x0A && file->data[1] == n_name &&
            memcmp(file->data + 2, name, n_name) == 0)
            return true;
    }
    return false;
}

static void check_answers(const ProtobufCServiceDescriptor *service)
{
    static char all[] = "*", file[] = "sluice/v1/common.proto",
                message[] = "sluice.v1.GenerateRequest", rpc[] = "sluice.v1.Inference.Generate",
                field[] = "sluice.v1.Sampling.temperature", value[] = "sluice.v1.FINISH_REASON_EOS",
                nothing[] = "sluice.v1.Nothing", no_file[] = "etc/passwd",
                error_info[] = "google.rpc.ErrorInfo", status_file[] = "google/rpc/status.proto";
    const reflection_request requests[] = {
        question(LIST, all),
        question(BY_FILE, file),
        question(BY_SYMBOL, message),
        question(BY_SYMBOL, rpc),
        question(BY_SYMBOL, field),
        question(BY_SYMBOL, value),
        question(BY_SYMBOL, nothing),
        question(BY_FILE, no_file),
        question(ALL_EXTENSIONS, field),
        question(0, NULL),
        question(BY_SYMBOL, error_info),
        question(BY_FILE, status_file),
        question(ALL_EXTENSIONS, error_info),
    };
    struct rpc_fixture fx;
    struct questions questions;
    rpc_fixture_start(&fx, NULL);
    ask(fx.client, service, requests, sizeof(requests) / sizeof(requests[0]), &questions);

    const reflection_response *list = (const reflection_response *)questions.answers[0];
    unsigned n_known = 0;
    for (size_t i = 0; i < list->list_services_response->n_service; i++) {
        const char *name = list->list_services_response->service[i]->name;
        n_known += strcmp(name, "sluice.v1.Inference") == 0 ||
                   strcmp(name, "grpc.health.v1.Health") == 0 ||
                   strcmp(name, "grpc.reflection.v1.ServerReflection") == 0 ||
                   strcmp(name, "grpc.reflection.v1alpha.ServerReflection") == 0;
    }
    assert_int_equal(n_known, 4);
    assert_int_equal(list->list_services_response->n_service, 4);
    assert_true(has_file((const reflection_response *)questions.answers[1], file));
    for (size_t i = 2; i < 6; i++) {
        const reflection_response *response = (const reflection_response *)questions.answers[i];
        assert_non_null(response->file_descriptor_response);
        assert_true(has_file(response, "sluice/v1/inference.proto"));
        assert_true(has_file(response, "sluice/v1/common.proto"));
        assert_string_equal(response->original_request->file_containing_symbol,
                            requests[i].file_containing_symbol);
    }
    static const int codes[] = {5, 5, 5, 3};
    for (size_t i = 6; i < 10; i++) {
        const reflection_response *response = (const reflection_response *)questions.answers[i];
        assert_int_equal(
            response->message_response_case,
            GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE);
        assert_int_equal(response->error_response->error_code, codes[i - 6]);
    }
    /* Files that a client needs to print the details of a status. */
    assert_true(has_file((const reflection_response *)questions.answers[10],
                         "google/rpc/error_details.proto"));
    assert_true(has_file((const reflection_response *)questions.answers[11], status_file));
    const reflection_response *extensions = (const reflection_response *)questions.answers[12];
    assert_non_null(extensions->all_extension_numbers_response);
    assert_string_equal(extensions->all_extension_numbers_response->base_type_name, error_info);
    assert_int_equal(extensions->all_extension_numbers_response->n_extension_number, 0);
    for (size_t i = 0; i < questions.n_answers; i++)
        rpc_message_free(questions.answers[i]);
    rpc_fixture_stop(&fx);
}

static void test_reflection_when_asked_by_v1_then_answers_are_complete(void **state)
{
    (void)state;
    check_answers(&grpc__reflection__v1__server_reflection__descriptor);
}

static void test_reflection_when_asked_by_v1alpha_then_answers_are_the_same(void **state)
{
    (void)state;
    check_answers(&grpc__reflection__v1alpha__server_reflection__descriptor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reflection_when_asked_by_v1_then_answers_are_complete),
        cmocka_unit_test(test_reflection_when_asked_by_v1alpha_then_answers_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
