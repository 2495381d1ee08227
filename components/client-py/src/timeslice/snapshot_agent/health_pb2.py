"""Another name for `grpc_health.v1.health_pb2`; see `snapshot_agent_pb2`."""

import sys

from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import *  # noqa: F403  # for type checkers

sys.modules[__name__] = health_pb2
