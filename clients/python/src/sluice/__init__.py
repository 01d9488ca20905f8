"""Client of a sluice-server: a thin, typed layer over the generated stubs in sluice.v1."""
from sluice.client import Answer, Client, Stream
from sluice.errors import SluiceError
from sluice.v1 import common_pb2, inference_pb2

__all__ = ["Answer", "Client", "SluiceError", "Stream", "common_pb2", "inference_pb2"]
