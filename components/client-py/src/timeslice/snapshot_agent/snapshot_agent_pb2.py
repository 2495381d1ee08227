"""Another name for `snapshot_agent.v1alpha1.snapshot_agent_pb2`, where existing code imports it from.

The very same module, not a copy: a process may hold the messages of a protobuf package once only.
"""

import sys

from snapshot_agent.v1alpha1 import snapshot_agent_pb2
from snapshot_agent.v1alpha1.snapshot_agent_pb2 import *  # noqa: F403  # for type checkers

sys.modules[__name__] = snapshot_agent_pb2
