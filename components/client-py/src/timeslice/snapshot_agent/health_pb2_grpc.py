"""Another name for `grpc_health.v1.health_pb2_grpc`; see `snapshot_agent_pb2`."""

import sys

from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2_grpc import *  # noqa: F403  # for type checkers

sys.modules[__name__] = health_pb2_grpc
