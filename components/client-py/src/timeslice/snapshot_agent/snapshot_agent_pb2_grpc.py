"""Another name for `snapshot_agent.v1alpha1.snapshot_agent_pb2_grpc`; see `snapshot_agent_pb2`."""

import sys

from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc
from snapshot_agent.v1alpha1.snapshot_agent_pb2_grpc import *  # noqa: F403  # for type checkers

sys.modules[__name__] = snapshot_agent_pb2_grpc
