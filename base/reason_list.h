/* reason_list.h: the table of reasons (reason.h). A row is
 *
 *   REASON(NAME, STATUS, OTHER_STATUS, RETRY, AREA, LIMIT, NEXT)
 *
 * docs/use/errors.md lists the same rows; tests/lint/reasons.sh compares the two, and the statuses
 * with the code that gives the reasons. A new reason is a row here and a row there. */
#pragma once

/* clang-format off */
#define REASON_LIST(REASON) \
    /* requests */ \
    REASON(ANSWER_TOO_LARGE, RESOURCE_EXHAUSTED, OK, NEVER, REQUEST, "answer_bytes", \
           "ask for fewer tokens, or use Generate, which streams") \
    REASON(CONTEXT_TOO_LONG, INVALID_ARGUMENT, OK, NEVER, REQUEST, "input_tokens", \
           "shorten the prompt, or load the model with a larger --context-length") \
    REASON(DEADLINE_UNREACHABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, ELSEWHERE, REQUEST, "deadline_unreachable", \
           "give the request more time, or try again when fewer requests wait") \
    REASON(DRAINING, UNAVAILABLE, OK, ELSEWHERE, REQUEST, NULL, \
           "try again in a moment: this process is ending") \
    REASON(ENGINE_FAILED, UNAVAILABLE, INTERNAL, ELSEWHERE, REQUEST, NULL, \
           "sluice ps%F shows whether a replica has taken over; the worker's log has the cause") \
    REASON(FIELD_NOT_BUILT, UNIMPLEMENTED, OK, NEVER, REQUEST, NULL, \
           "leave the field out: this release has no such feature") \
    REASON(INPUT_TOO_LONG, INVALID_ARGUMENT, OK, NEVER, REQUEST, "input_tokens", \
           "shorten the prompt, or load the model with a larger --max-input-tokens") \
    REASON(MODEL_NOT_LOADED, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "load it with: sluice load %M%V%F") \
    REASON(MODEL_PARKED, FAILED_PRECONDITION, UNAVAILABLE, NEVER, REQUEST, NULL, \
           "wake it with: sluice wake %M%V%F") \
    REASON(NOT_REATTACHABLE, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "start the request anew, with reattach_window_ms") \
    REASON(NO_CHAT_TEMPLATE, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "give a template with the request, or send a plain prompt") \
    REASON(NO_CREDIT_NEEDED, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "send credit only for a request that began with credit_tokens") \
    REASON(NO_DRAFT_MODEL, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "choose another drafter, or load the version with --draft") \
    REASON(NO_REPLICA_READY, UNAVAILABLE, OK, LATER, REQUEST, "replica_wait", \
           "sluice ps%F shows the state of its replicas") \
    REASON(PAUSED_TOO_LONG, DEADLINE_EXCEEDED, OK, NEVER, REQUEST, "pause", \
           "start the request anew, and resume or grant credit sooner") \
    REASON(QUEUE_FULL, RESOURCE_EXHAUSTED, OK, ELSEWHERE, REQUEST, "queued", \
           "try again in a moment") \
    REASON(REATTACHED, ABORTED, OK, NEVER, REQUEST, NULL, \
           "read the answer on the newer call, which has taken the request over") \
    REASON(REPLAY_GONE, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "start the request anew: the tokens that you lack are no longer kept") \
    REASON(REPLICA_LOST, UNAVAILABLE, ABORTED, LATER, REQUEST, "resume", \
           "try again; sluice ps%F shows the state of the replicas") \
    REASON(REQUEST_ID_LIVE, ALREADY_EXISTS, OK, NEVER, REQUEST, NULL, \
           "give each running request its own request_id") \
    REASON(REQUEST_NOT_FOUND, NOT_FOUND, OK, NEVER, REQUEST, NULL, \
           "check the request_id: no such request of this caller runs") \
    REASON(SLOW_READER, RESOURCE_EXHAUSTED, OK, LATER, REQUEST, "slow_reader", \
           "read the stream faster, or start again where it ended") \
    REASON(STREAM_HALF_CLOSED, FAILED_PRECONDITION, OK, NEVER, REQUEST, NULL, \
           "keep the sending side of the stream open until the request has ended") \
    REASON(STREAM_REQUESTS, RESOURCE_EXHAUSTED, OK, LATER, REQUEST, "stream_requests", \
           "wait for a request of this stream to end, or open another stream") \
    REASON(TEMPLATE_LIMIT, RESOURCE_EXHAUSTED, OK, NEVER, REQUEST, "template", \
           "shorten the chat, or simplify its template") \
    REASON(TEMPLATE_REFUSED, INVALID_ARGUMENT, OK, NEVER, REQUEST, NULL, \
           "change the messages: the model's chat template does not take them") \
    REASON(TOTAL_TOO_LONG, INVALID_ARGUMENT, OK, NEVER, REQUEST, "total_tokens", \
           "shorten the prompt, or ask for fewer tokens") \
    REASON(VERSION_UNLOADED, UNAVAILABLE, OK, NEVER, REQUEST, NULL, \
           "load it again with: sluice load %M%V%F") \
    REASON(WORKER_MEMORY, RESOURCE_EXHAUSTED, OK, LATER, REQUEST, NULL, \
           "try again in a moment: the worker had no memory for the answer") \
    REASON(WORKER_TEXT, INTERNAL, OK, NEVER, REQUEST, NULL, \
           "report this fault: a worker sent more than the request allows") \
    \
    /* access */ \
    REASON(API_KEY_EXPIRED, UNAUTHENTICATED, OK, NEVER, ACCESS, NULL, \
           "ask for a new API key, and give it with --api-key-file or SLUICE_API_KEY") \
    REASON(API_KEY_INVALID, UNAUTHENTICATED, OK, NEVER, ACCESS, NULL, \
           "give a valid API key with --api-key-file or SLUICE_API_KEY") \
    REASON(API_KEY_MISSING, UNAUTHENTICATED, OK, NEVER, ACCESS, NULL, \
           "give an API key with --api-key-file or SLUICE_API_KEY, or a certificate with --tls-client-cert") \
    REASON(CERTIFICATE_NAME, UNAUTHENTICATED, OK, NEVER, ACCESS, NULL, \
           "give a client certificate that names its owner") \
    REASON(NO_ROLE, PERMISSION_DENIED, OK, NEVER, ACCESS, NULL, \
           "ask an admin to add a line for you to the file of --manage-keys-file") \
    REASON(PEER_UNKNOWN, UNAUTHENTICATED, OK, NEVER, ACCESS, NULL, \
           "connect through the manager's unix socket as a user of this machine") \
    REASON(ROLE_REQUIRED, PERMISSION_DENIED, OK, NEVER, ACCESS, NULL, \
           "use an API key of the role that the message names") \
    \
    /* calls */ \
    REASON(COMPRESSED_MESSAGE, UNIMPLEMENTED, OK, NEVER, CALL, NULL, \
           "send messages without compression") \
    REASON(MESSAGE_MALFORMED, INVALID_ARGUMENT, OK, NEVER, CALL, NULL, \
           "send a message that follows the .proto files, with texts in UTF-8") \
    REASON(MESSAGE_TOO_LARGE, RESOURCE_EXHAUSTED, OK, NEVER, CALL, "message_bytes", \
           "send a smaller message, or start the server with a larger --max-message-bytes") \
    REASON(METADATA_TOO_LARGE, RESOURCE_EXHAUSTED, OK, NEVER, CALL, "metadata_bytes", \
           "send less metadata, or start the server with a larger --max-metadata-bytes") \
    REASON(NOT_BUILT, UNIMPLEMENTED, OK, NEVER, CALL, NULL, \
           "use another call: this release does not implement the method") \
    REASON(REQUEST_TIMEOUT, DEADLINE_EXCEEDED, OK, LATER, CALL, "request_timeout", \
           "send the whole request sooner, or start the server with a longer --request-timeout") \
    REASON(TOO_MANY_CALLS, RESOURCE_EXHAUSTED, OK, LATER, CALL, "calls", \
           "try again in a moment, or start the server with a larger --max-calls") \
    REASON(TOO_MANY_REQUESTS, RESOURCE_EXHAUSTED, OK, LATER, CALL, NULL, \
           "try again in a moment: the manager answers other requests first") \
    REASON(TOO_MANY_SERVERS, RESOURCE_EXHAUSTED, OK, LATER, CALL, NULL, \
           "end a server: the manager serves no more of them") \
    REASON(TOO_MANY_WATCHERS, RESOURCE_EXHAUSTED, OK, LATER, CALL, NULL, \
           "close another watch first") \
    REASON(UNKNOWN_METHOD, UNIMPLEMENTED, OK, NEVER, CALL, NULL, \
           "check the address and the method: this port has no such service") \
    \
    /* model files */ \
    REASON(CONTENT_CHANGED, FAILED_PRECONDITION, OK, NEVER, FILE, NULL, \
           "register the file under a new version") \
    REASON(DIGEST_MISMATCH, FAILED_PRECONDITION, OK, NEVER, FILE, NULL, \
           "fetch the file again, or give the digest of this file") \
    REASON(DRAFT_MISMATCH, FAILED_PRECONDITION, OK, NEVER, FILE, NULL, \
           "load with a draft model of the same tokenizer") \
    REASON(MODEL_FILE_CHANGED, FAILED_PRECONDITION, DATA_LOSS, NEVER, FILE, NULL, \
           "restore the file, or register the changed file under a new version") \
    REASON(MODEL_FILE_INVALID, INVALID_ARGUMENT, FAILED_PRECONDITION, NEVER, FILE, NULL, \
           "sluice doctor FILE checks a file before it is registered") \
    REASON(MODEL_UNSUPPORTED, FAILED_PRECONDITION, OK, NEVER, FILE, NULL, \
           "use a file of a model that Sluice serves") \
    REASON(NO_FILE_ACCESS, PERMISSION_DENIED, OK, NEVER, FILE, NULL, \
           "let the account of Sluice read the file") \
    REASON(NO_MODEL_ROOT, INVALID_ARGUMENT, OK, NEVER, FILE, NULL, \
           "give the file's full path") \
    REASON(OUTSIDE_MODEL_ROOT, PERMISSION_DENIED, OK, NEVER, FILE, NULL, \
           "move the file below the model root") \
    REASON(PRE_TOKENIZER_UNKNOWN, UNIMPLEMENTED, OK, NEVER, FILE, NULL, \
           "use a file with a pre-tokenizer that Sluice knows") \
    REASON(TENSOR_TYPE_UNSUPPORTED, UNIMPLEMENTED, OK, NEVER, FILE, NULL, \
           "use a file with another quantization") \
    REASON(TOKENIZER_UNSUPPORTED, UNIMPLEMENTED, OK, NEVER, FILE, NULL, \
           "use a model with a byte-level BPE tokenizer") \
    \
    /* commands */ \
    REASON(ALREADY_LOADED, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "unload it with: sluice unload %M%V%G%F, then load it with the new settings") \
    REASON(CANNOT_CANCEL, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice ops%F shows the operation's state") \
    REASON(DEVICE_GROUP_BUILT_IN, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "leave the group: it costs nothing") \
    REASON(DEVICE_GROUP_DIFFERS, ALREADY_EXISTS, OK, NEVER, COMMAND, NULL, \
           "choose another name; sluice groups%F lists the device groups") \
    REASON(DEVICE_GROUP_EXISTS, ALREADY_EXISTS, OK, NEVER, COMMAND, NULL, \
           "no action is needed: the group has the same devices") \
    REASON(DEVICE_GROUP_IN_USE, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice ps%F shows what is loaded on it") \
    REASON(DEVICE_GROUP_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice groups%F lists the device groups") \
    REASON(EVENTS_GONE, OUT_OF_RANGE, OK, NEVER, COMMAND, NULL, \
           "sluice events --from N%F starts at the oldest event that is kept") \
    REASON(EVENTS_TO_COME, OUT_OF_RANGE, OK, LATER, COMMAND, NULL, \
           "begin at a lower number, or at 0 for the events from now on") \
    REASON(KEY_EXISTS, ALREADY_EXISTS, OK, NEVER, COMMAND, NULL, \
           "choose another name for the key") \
    REASON(KEY_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice keys list%F lists the keys") \
    REASON(MODEL_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice ls%F lists the models; sluice register NAME PATH adds one") \
    REASON(NOT_LOADED, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice ps%F shows what is loaded") \
    REASON(OPERATION_ENDED, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice ops%F shows how the operation ended") \
    REASON(OPERATION_IN_PROGRESS, FAILED_PRECONDITION, OK, LATER, COMMAND, NULL, \
           "sluice ops --open%F lists open operations; sluice ops cancel ID ends one") \
    REASON(OPERATION_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice ops%F lists the operations") \
    REASON(PARKED, FAILED_PRECONDITION, UNAVAILABLE, NEVER, COMMAND, NULL, \
           "wake it with: sluice wake %M%V%F") \
    REASON(REPLICA_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice ps%F lists the replicas") \
    REASON(REPLICA_STOPPED, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice ps%F lists the replicas") \
    REASON(REQUEST_ID_REUSED, INVALID_ARGUMENT, OK, NEVER, COMMAND, NULL, \
           "give another --request-id") \
    REASON(STALE_GENERATION, ABORTED, OK, NEVER, COMMAND, NULL, \
           "read the current state, and decide again") \
    REASON(TOO_MANY_KEYS, RESOURCE_EXHAUSTED, OK, NEVER, COMMAND, NULL, \
           "revoke a key that is not needed: sluice keys list%F lists the keys") \
    REASON(TOO_MANY_OPERATIONS, RESOURCE_EXHAUSTED, OK, LATER, COMMAND, NULL, \
           "sluice ops --open%F lists open operations") \
    REASON(TOO_MANY_REPLICAS, RESOURCE_EXHAUSTED, OK, NEVER, COMMAND, NULL, \
           "ask for fewer replicas; sluice ps%F lists the replicas") \
    REASON(VERSION_EXISTS, ALREADY_EXISTS, OK, NEVER, COMMAND, NULL, \
           "give another --version; sluice ls%F lists the versions") \
    REASON(VERSION_LOADED, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "first end its replicas with: sluice unload %M%V%F") \
    REASON(VERSION_NOT_FOUND, NOT_FOUND, OK, NEVER, COMMAND, NULL, \
           "sluice ls%F lists the versions") \
    REASON(VERSION_POLICY, FAILED_PRECONDITION, OK, NEVER, COMMAND, NULL, \
           "sluice policy %M%F shows the policy; sluice policy MODEL VERSION changes it") \
    \
    /* devices and memory */ \
    REASON(DEVICE_CONTAINED, INTERNAL, UNAVAILABLE, LATER, DEVICE, NULL, \
           "no action is needed: the manager starts the worker again") \
    REASON(DEVICE_DRIVER, INTERNAL, UNAVAILABLE, LATER, DEVICE, NULL, \
           "check the driver with nvidia-smi; the manager starts the worker again") \
    REASON(DEVICE_ECC, INTERNAL, UNAVAILABLE, NEVER, DEVICE, NULL, \
           "reset the GPU, check its row remapper, then release it: sluice devices release DEVICE") \
    REASON(DEVICE_FAULT, UNAVAILABLE, OK, LATER, DEVICE, NULL, \
           "sluice devices%F shows which GPU failed") \
    REASON(DEVICE_ILLEGAL_ACCESS, INTERNAL, UNAVAILABLE, LATER, DEVICE, NULL, \
           "no action is needed: the manager starts the worker again; report the fault if it returns") \
    REASON(DEVICE_LOST, OK, OK, LATER, DEVICE, NULL, \
           "sluice events --type device.%F shows what the worker reported") \
    REASON(DEVICE_MEMORY, RESOURCE_EXHAUSTED, INTERNAL, LATER, DEVICE, NULL, \
           "sluice ps%F shows the memory in use; sluice unload MODEL frees memory") \
    REASON(DEVICE_NOT_FOUND, NOT_FOUND, OK, NEVER, DEVICE, NULL, \
           "sluice devices%F lists the devices") \
    REASON(DEVICE_NOT_HELD, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "sluice devices%F shows the state of each device") \
    REASON(DEVICE_NVLINK, INTERNAL, UNAVAILABLE, NEVER, DEVICE, NULL, \
           "reset the GPUs of the link, check it, then release them: sluice devices release DEVICE") \
    REASON(DEVICE_QUARANTINED, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "sluice devices%F shows why and since when") \
    REASON(DEVICE_TIMEOUT, INTERNAL, UNAVAILABLE, LATER, DEVICE, NULL, \
           "no action is needed: the manager starts the worker again; report the fault if it returns") \
    REASON(DEVICE_UNKNOWN, INTERNAL, UNAVAILABLE, LATER, DEVICE, NULL, \
           "no action is needed: the manager starts the worker again; report the fault if it returns") \
    REASON(DEVICE_UNUSABLE, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "sluice devices%F shows why the device cannot be used") \
    REASON(HOST_MEMORY, RESOURCE_EXHAUSTED, OK, LATER, DEVICE, NULL, \
           "free host memory, or unload the version instead of parking it") \
    REASON(MEMORY_NOT_RELEASED, INTERNAL, OK, NEVER, DEVICE, NULL, \
           "end the process that the message names: it still has the memory") \
    REASON(NO_DEVICE_WEIGHTS, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "no action is needed: the replica has no weights on a GPU, and a park keeps its host memory") \
    REASON(NOTHING_TO_KEEP, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "no action is needed: a wake loads the file") \
    REASON(OUT_OF_MEMORY, RESOURCE_EXHAUSTED, OK, LATER, DEVICE, NULL, \
           "unload another model, or load with a smaller --kv-tokens; sluice doctor shows limits") \
    REASON(PACKED_MISMATCH, FAILED_PRECONDITION, OK, NEVER, DEVICE, NULL, \
           "no action is needed: the worker packs the weights anew") \
    \
    /* the store */ \
    REASON(ILLEGAL_TRANSITION, INTERNAL, OK, NEVER, STORE, NULL, \
           "report this fault of the manager") \
    REASON(STATE_STORE_DAMAGED, DATA_LOSS, OK, NEVER, STORE, NULL, \
           "restore a backup with the command in the message") \
    REASON(STATE_STORE_FAILED, OK, OK, LATER, STORE, NULL, \
           "see the manager's log for the change that failed") \
    REASON(STATE_STORE_FULL, RESOURCE_EXHAUSTED, OK, LATER, STORE, NULL, \
           "free space on the disk of the state directory") \
    REASON(STATE_STORE_IO, UNAVAILABLE, OK, LATER, STORE, NULL, \
           "check the disk of the state directory") \
    REASON(STATE_STORE_NEWER, FAILED_PRECONDITION, OK, NEVER, STORE, NULL, \
           "run the newer release that wrote the database, or restore a backup") \
    REASON(STATE_STORE_UNKNOWN, UNAVAILABLE, OK, LATER, STORE, NULL, \
           "repeat the command with the same --request-id: it has one effect") \
    REASON(STORE_BUSY, RESOURCE_EXHAUSTED, OK, LATER, STORE, NULL, \
           "try again in a moment") \
    \
    /* replicas, operations, updates */ \
    REASON(BACKOFF, OK, OK, LATER, REPLICA, NULL, \
           "no action is needed: the manager starts the replica again after a pause") \
    REASON(CANCELLED, CANCELLED, OK, NEVER, REPLICA, NULL, \
           "repeat the command if it is still wanted") \
    REASON(CONNECT_TIMEOUT, UNAVAILABLE, OK, LATER, REPLICA, NULL, \
           "see the worker's log: the worker did not answer after its start") \
    REASON(CRASH_LOOP, UNAVAILABLE, OK, NEVER, REPLICA, NULL, \
           "see the worker's log, then restart the replica: sluice restart REPLICA") \
    REASON(DRAIN_TIMEOUT, UNAVAILABLE, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the worker was ended after its grace") \
    REASON(ERROR_RATE, ABORTED, OK, NEVER, REPLICA, NULL, \
           "see the errors of the new version before the next update") \
    REASON(KEEPING, UNAVAILABLE, OK, LATER, REPLICA, NULL, \
           "no action is needed: the manager asks again") \
    REASON(LOADING, UNAVAILABLE, OK, LATER, REPLICA, NULL, \
           "try again once the replica is ready: sluice ps%F shows its state") \
    REASON(LOAD_FAILED, UNAVAILABLE, OK, NEVER, REPLICA, NULL, \
           "see the worker's log, mend the cause, then load again") \
    REASON(LOAD_TIMEOUT, UNAVAILABLE, OK, LATER, REPLICA, NULL, \
           "see the worker's log, or start the manager with a longer --load-timeout") \
    REASON(NEEDS_A_START, FAILED_PRECONDITION, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the manager starts another worker") \
    REASON(NOTHING_KEPT, RESOURCE_EXHAUSTED, OK, NEVER, REPLICA, NULL, \
           "no action is needed: a wake reads the file") \
    REASON(NOT_PARKED, FAILED_PRECONDITION, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the worker serves already") \
    REASON(PARK, OK, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the replica is being parked") \
    REASON(PROTOCOL_MISMATCH, FAILED_PRECONDITION, UNAVAILABLE, NEVER, REPLICA, NULL, \
           "install programs of one release") \
    REASON(REPLICA_FAILED, UNAVAILABLE, ABORTED, NEVER, REPLICA, NULL, \
           "sluice ps%F shows the failed replica; see the worker's log") \
    REASON(RESTART, OK, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the replica is started again, as asked") \
    REASON(STALE_EPOCH, FAILED_PRECONDITION, UNAVAILABLE, NEVER, REPLICA, NULL, \
           "no action is needed: a newer worker of the replica serves") \
    REASON(STALLED, UNAVAILABLE, OK, LATER, REPLICA, NULL, \
           "see the worker's log: the worker stood still, and another one starts") \
    REASON(TOO_FEW_ANSWERS, ABORTED, OK, LATER, REPLICA, NULL, \
           "repeat the update when requests come, or without --require-answers") \
    REASON(TOO_MANY_PROCESSES, RESOURCE_EXHAUSTED, OK, LATER, REPLICA, NULL, \
           "unload a model: the manager watches no more processes") \
    REASON(TOO_MANY_TOOLS, RESOURCE_EXHAUSTED, OK, LATER, REPLICA, NULL, \
           "try again in a moment: other files are read first") \
    REASON(TOOL_CRASHED, INTERNAL, OK, NEVER, REPLICA, NULL, \
           "report this fault with the file: the process that read it crashed") \
    REASON(TOOL_FAILED, INTERNAL, OK, NEVER, REPLICA, NULL, \
           "see the manager's log: the process that read the file gave no answer") \
    REASON(TTFT, ABORTED, OK, NEVER, REPLICA, NULL, \
           "see why the new version is slower before the next update") \
    REASON(UNLOAD, OK, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the version is unloaded, as it got no requests") \
    REASON(UNLOADED, CANCELLED, OK, NEVER, REPLICA, NULL, \
           "load the version again if it is still wanted") \
    REASON(WAKE, OK, OK, NEVER, REPLICA, NULL, \
           "no action is needed: the replica is being woken") \
    REASON(WEIGHTS_NOT_KEPT, INTERNAL, OK, LATER, REPLICA, NULL, \
           "park again later: the version serves on") \
    \
    /* programs and connections */ \
    REASON(ADDRESS_IN_USE, ALREADY_EXISTS, OK, NEVER, PROGRAM, NULL, \
           "choose another address, or end the program that listens there") \
    REASON(ALREADY_SERVING, FAILED_PRECONDITION, OK, NEVER, PROGRAM, NULL, \
           "use the running sluice serve, or give another --state-dir") \
    REASON(CERTIFICATE_OTHER_NAME, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "the server's certificate has another name; give that name with --server-name") \
    REASON(CERTIFICATE_UNTRUSTED, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "the server's certificate has expired or comes from an untrusted CA; give the CA with --tls-ca") \
    REASON(CONNECTION_LOST, UNAVAILABLE, OK, LATER, PROGRAM, NULL, \
           "the connection was lost: the server or a proxy closed it; try again") \
    REASON(GRPC_PORT, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "give the HTTP address, which sluice serve prints, or leave the URL out and give this address with --server") \
    REASON(HANDSHAKE_CLOSED, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "the server closed the connection; if it speaks TLS, give --tls-ca FILE or --tls") \
    REASON(HTTP1_PORT, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "that port speaks HTTP/1, as those of --http-listen and --metrics do; give the gRPC address, which sluice serve prints, or ask over HTTP with --url") \
    REASON(LOCKED, FAILED_PRECONDITION, OK, NEVER, PROGRAM, NULL, \
           "use the process that has the lock, or end it; sluice doctor%F names it") \
    REASON(MANAGER_RUNS, FAILED_PRECONDITION, OK, NEVER, PROGRAM, NULL, \
           "end that manager first, or give another --state-dir") \
    REASON(NOT_CONNECTED, UNAVAILABLE, OK, LATER, PROGRAM, NULL, \
           "check the address, and that the program runs there") \
    REASON(NOT_SERVING, FAILED_PRECONDITION, UNAVAILABLE, NEVER, PROGRAM, NULL, \
           "start Sluice with: sluice serve%F") \
    REASON(NO_OPENAT2, FAILED_PRECONDITION, OK, NEVER, PROGRAM, NULL, \
           "leave --model-root out, or use a kernel from 5.6 on that allows openat2") \
    REASON(PEER_WITHOUT_TLS, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "the server there does not speak TLS; leave out --tls and --tls-ca") \
    REASON(SERVER_RUNS, FAILED_PRECONDITION, OK, NEVER, PROGRAM, NULL, \
           "end that server first, or give another --state-dir") \
    REASON(SOCKET_DENIED, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "the socket belongs to another user; run this command as that user with sudo -u") \
    REASON(STDOUT_CLOSED, UNAVAILABLE, OK, NEVER, PROGRAM, NULL, \
           "no action is needed: the program that read the output has ended") \
    REASON(STOPPING, FAILED_PRECONDITION, OK, LATER, PROGRAM, NULL, \
           "wait until the running sluice serve has ended") \
    REASON(USAGE, INVALID_ARGUMENT, OK, NEVER, PROGRAM, NULL, \
           "sluice COMMAND --help shows how the command is used")
/* clang-format on */
