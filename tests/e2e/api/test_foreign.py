"""Clients that are not part of the project: grpcio with server reflection, and grpcurl."""
import json
import os
import subprocess
import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import bad_field, patience, reason

GRPCURL = os.path.join(os.path.dirname(sys.executable), "grpcurl")


def grpcurl(served, *args):
    result = subprocess.run([GRPCURL, "-plaintext", *args], capture_output=True, text=True, timeout=patience(60))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_reflection_gives_all_a_client_needs_to_call_generate(served):
    channel = grpc.insecure_channel(served.address)
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "sluice.v1.Inference" in database.get_services()
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName("sluice.v1.Inference").FindMethodByName("Generate")
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)
    request = request_class(model="smol", text="The capital of France is")
    request.stopping.max_tokens = 8
    call = channel.unary_stream("/sluice.v1.Inference/Generate", request_serializer=request_class.SerializeToString,
                                response_deserializer=response_class.FromString)
    responses = list(call(request))
    assert responses[0].WhichOneof("event") == "prompt_info"
    assert responses[-1].WhichOneof("event") == "finished"
    assert "Paris" in "".join(r.tokens.text for r in responses)


def test_grpcurl_lists_describes_and_calls(served):
    listed = grpcurl(served, served.address, "list").split()
    assert {"sluice.v1.Inference", "grpc.health.v1.Health"} <= set(listed)
    assert "rpc Generate ( .sluice.v1.GenerateRequest )" in grpcurl(served, served.address, "describe",
                                                                    "sluice.v1.Inference")
    assert "message GenerateRequest" in grpcurl(served, served.address, "describe", "sluice.v1.GenerateRequest")
    body = json.dumps({"model": "smol", "text": "The capital of France is", "stopping": {"max_tokens": 8}})
    out = grpcurl(served, "-d", body, served.address, "sluice.v1.Inference/Generate")
    assert "Paris" in out and "finished" in out


def test_health_of_process_service_and_version(served):
    health = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", "sluice.v1.Inference", "model/smol/1"):
        status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING, name


def test_unbuilt_fields_say_so_by_name(served):
    request = served.request("smol", "x")
    request.constraint.regex = "a+"
    try:
        list(served.inference.Generate(request))
        raise AssertionError("constraint was ignored")
    except grpc.RpcError as e:
        assert (e.code(), reason(e), bad_field(e)) == (grpc.StatusCode.UNIMPLEMENTED, "FIELD_NOT_BUILT", "constraint")


def test_grpcurl_prints_the_details_of_an_error(served):
    body = json.dumps({"model": "smol", "text": "x", "sampling": {"temperature": -1}})
    result = subprocess.run([GRPCURL, "-plaintext", "-d", body, served.address, "sluice.v1.Inference/Generate"],
                            capture_output=True, text=True, timeout=patience(60))
    assert result.returncode != 0 and "not recognized" not in result.stderr
    assert '"reason":"INVALID_ARGUMENT"' in result.stderr and '"field":"sampling.temperature"' in result.stderr
