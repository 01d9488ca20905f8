"""Client, Answer (a streamed generation) and Stream (many generations on one call). Several threads may use each object."""
from __future__ import annotations

import importlib.resources
import ipaddress
import queue
import urllib.parse
from typing import Iterator, Mapping, Optional, Sequence

import grpc

from sluice.errors import SluiceError
from sluice.v1 import inference_pb2 as pb
from sluice.v1 import inference_pb2_grpc

_MAX_MESSAGE_BYTES = 64 << 20


def _read(path: Optional[str]) -> Optional[bytes]:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def _grpc_target(target: str) -> str:
    """Returns gRPC's form of the target. gRPC parses the text after "unix:" as a URI; callers give a path."""
    path = target.removeprefix("unix:")
    if path == target:
        return target
    if "," in path:
        raise ValueError(f"{target}: gRPC allows no comma in the path of a socket")
    return "unix:" + urllib.parse.quote(path)


def _is_local(target: str) -> bool:
    """True if every address of the target is on this machine. A host name such as 127.example is not."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = target.rsplit("/", 1)[-1].removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:")
    for address in addresses.split(","):
        host = address.rsplit(":", 1)[0].strip("[]")
        try:
            if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
                return False
        except ValueError:
            return False
    return True


class Answer:
    """A streamed generation. Iterate over its messages, or over `texts()`."""

    def __init__(self, call):
        self._call = call

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        return self

    def __next__(self) -> pb.GenerateResponse:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise SluiceError.from_rpc(error) from None

    def texts(self, reasoning: bool = False) -> Iterator[str]:
        """The text of the content, or of the reasoning."""
        for response in self:
            if response.WhichOneof("event") == "tokens" and (response.tokens.kind == pb.PART_KIND_REASONING) == reasoning:
                yield response.tokens.text

    def cancel(self) -> None:
        """Cancels the generation, from any thread. The iteration raises a SluiceError with code CANCELLED."""
        self._call.cancel()


class Stream:
    """Many generations on one GenerateStream call. Any thread may send frames; a single thread iterates. The error of a
    request is a frame. Leaving the `with` block cancels running requests."""

    _END = object()

    def __init__(self, stub):
        self._frames: queue.SimpleQueue = queue.SimpleQueue()
        self._call = stub.GenerateStream(iter(self._frames.get, self._END))

    def send(self, frame: pb.GenerateStreamRequest) -> None:
        self._frames.put(frame)

    def start(self, request: pb.GenerateRequest) -> None:
        self.send(pb.GenerateStreamRequest(request_id=request.request_id, start=request))

    def cancel(self, request_id: str) -> None:
        self.send(pb.GenerateStreamRequest(request_id=request_id, cancel=pb.CancelFrame()))

    def credit(self, request_id: str, n_tokens: int) -> None:
        self.send(pb.GenerateStreamRequest(request_id=request_id, credit=pb.CreditFrame(n_tokens=n_tokens)))

    def pause(self, request_id: str) -> None:
        self.send(pb.GenerateStreamRequest(request_id=request_id, pause=pb.PauseFrame()))

    def resume(self, request_id: str) -> None:
        self.send(pb.GenerateStreamRequest(request_id=request_id, resume=pb.ResumeFrame()))

    def update(self, request_id: str, *, max_tokens: Optional[int] = None, priority: Optional[int] = None,
               stop: Optional[Sequence[str]] = None) -> None:
        """Changes a running request; parameters that are not given stay. `stop` replaces the stop strings, `[]` removes them.
        A refused update is an error frame with `goes_on`: the request continues unchanged."""
        frame = pb.UpdateFrame(max_tokens=max_tokens, priority=priority, stop=stop or (), replace_stop=stop is not None)
        self.send(pb.GenerateStreamRequest(request_id=request_id, update=frame))

    def reattach(self, request_id: str, received: Mapping[int, int]) -> None:
        """Continues a request that was started with `reattach_window_ms`, on this or on a lost stream. `received` maps each
        choice to the number of tokens that the client has. The stream continues after these tokens."""
        counts = [pb.ReceivedTokens(choice=choice, n_tokens=n) for choice, n in received.items()]
        self.send(pb.GenerateStreamRequest(request_id=request_id, reattach=pb.ReattachFrame(received=counts)))

    def finish(self) -> None:
        """Sends no more frames. The stream ends after the last answer."""
        self._frames.put(self._END)

    def close(self) -> None:
        self.finish()
        self._call.cancel()

    def __iter__(self) -> Iterator[pb.GenerateStreamResponse]:
        return self

    def __next__(self) -> pb.GenerateStreamResponse:
        try:
            return next(self._call)
        except StopIteration:
            self.finish()  # ends gRPC's thread, which waits for frames
            raise
        except grpc.RpcError as error:
            self.finish()
            raise SluiceError.from_rpc(error) from None

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class Client:
    """A channel to one server. Calls that fail before their first answer with UNAVAILABLE or RESOURCE_EXHAUSTED are
    repeated by the policy of service_config.json; `service_config=""` switches retries off. A retry waits for the time that
    the server asks for. `tls_ca` or `tls=True` switches TLS on. An API key is sent over TLS or to this machine only, unless
    `allow_plaintext_keys` is set."""

    def __init__(self, target: str, *, tls: bool = False, tls_ca: Optional[str] = None,
                 tls_client_cert: Optional[str] = None, tls_client_key: Optional[str] = None,
                 server_name: Optional[str] = None, api_key: Optional[str] = None,
                 allow_plaintext_keys: bool = False, service_config: Optional[str] = None, options: Sequence[tuple] = ()):
        if api_key and not (tls or tls_ca or allow_plaintext_keys or _is_local(target)):
            raise ValueError(f"{target}: the API key would cross the network in plain text; give tls_ca or tls")
        if service_config is None:
            service_config = importlib.resources.files("sluice").joinpath("service_config.json").read_text()
        settings = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_retries", int(bool(service_config))),
                    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 1000),
                    ("grpc.max_reconnect_backoff_ms", 1000)]
        if service_config:
            settings.append(("grpc.service_config", service_config))
        if server_name:
            settings.append(("grpc.ssl_target_name_override", server_name))
        if _is_local(target):  # http_proxy and grpc_proxy apply to other machines only
            settings.append(("grpc.enable_http_proxy", 0))
        settings.extend(options)
        target = _grpc_target(target)
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        if tls or tls_ca:
            credentials = grpc.ssl_channel_credentials(_read(tls_ca), _read(tls_client_key), _read(tls_client_cert))
            self.channel = grpc.secure_channel(target, credentials, settings)
        else:
            self.channel = grpc.insecure_channel(target, settings)
        if self._metadata:
            self.channel = grpc.intercept_channel(self.channel, _Metadata(self._metadata))
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)

    def generate(self, request: pb.GenerateRequest, timeout: Optional[float] = None) -> Answer:
        return Answer(self.stub.Generate(request, timeout=timeout))

    def complete(self, request: pb.GenerateRequest, timeout: Optional[float] = None) -> pb.CompleteResponse:
        return self._unary(self.stub.Complete, request, timeout)

    def tokenize(self, request: pb.TokenizeRequest, timeout: Optional[float] = None) -> pb.TokenizeResponse:
        return self._unary(self.stub.Tokenize, request, timeout)

    def detokenize(self, request: pb.DetokenizeRequest, timeout: Optional[float] = None) -> pb.DetokenizeResponse:
        return self._unary(self.stub.Detokenize, request, timeout)

    def models(self, timeout: Optional[float] = None) -> Iterator[pb.ServedModel]:
        """Iterates over all served models, page by page."""
        token = ""
        while True:
            page = self._unary(self.stub.ListModels, pb.ListModelsRequest(page_token=token), timeout)
            yield from page.models
            token = page.next_page_token
            if not token:
                return

    def cancel(self, request_id: str, timeout: Optional[float] = None) -> pb.CancelResponse:
        return self._unary(self.stub.Cancel, pb.CancelRequest(request_id=request_id), timeout)

    def stream(self) -> Stream:
        return Stream(self.stub)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    @staticmethod
    def _unary(method, request, timeout):
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise SluiceError.from_rpc(error) from None


class _Details(grpc.ClientCallDetails):
    def __init__(self, details, metadata):
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready, self.compression = details.wait_for_ready, details.compression
        self.metadata = (*(details.metadata or ()), *metadata)


class _Metadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the API key to every call."""

    def __init__(self, metadata):
        self._more = metadata

    def _continue(self, continuation, details, request):
        return continuation(_Details(details, self._more), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_stream = _continue
