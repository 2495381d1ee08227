"""The generated messages and stubs of the orchestrator, under the names that existing code imports."""

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

__all__ = ["pb2", "pb2_grpc"]
