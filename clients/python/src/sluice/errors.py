"""SluiceError: the gRPC status of a failed call, with its google.rpc details."""
from __future__ import annotations

from typing import Optional

import grpc
from google.rpc import error_details_pb2, status_pb2


class SluiceError(Exception):
    """An RPC that failed. `field` is the wrong field of the request, `reason` a machine-readable reason ("QUEUE_FULL").
    After `retry_after` seconds the same request may succeed. Each is empty or None if the server did not send a value."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", field: str = "",
                 retry_after: Optional[float] = None):
        super().__init__(f"{code.name}: {message}" + (f" ({reason})" if reason else ""))
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_after = retry_after

    @classmethod
    def from_rpc(cls, error: grpc.RpcError) -> "SluiceError":
        reason, field, retry_after = "", "", None
        for key, value in error.trailing_metadata() or ():
            if key != "grpc-status-details-bin":
                continue
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                    info = error_details_pb2.ErrorInfo()
                    detail.Unpack(info)
                    reason = "" if info.reason == error.code().name else info.reason  # a reason equal to the code adds nothing
                elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                    bad = error_details_pb2.BadRequest()
                    detail.Unpack(bad)
                    field = bad.field_violations[0].field if bad.field_violations else ""
                elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                    info = error_details_pb2.RetryInfo()
                    detail.Unpack(info)
                    retry_after = info.retry_delay.ToTimedelta().total_seconds()
        return cls(error.code(), error.details() or "", reason, field, retry_after)

    @classmethod
    def from_frame(cls, error) -> "SluiceError":
        """Makes a SluiceError from the error frame of a request on a stream (sluice.v1.Error)."""
        code = next((c for c in grpc.StatusCode if c.value[0] == error.code), grpc.StatusCode.UNKNOWN)
        return cls(code, error.message, error.reason, error.field,
                   error.retry_after_ms / 1000 if error.retry_after_ms else None)
