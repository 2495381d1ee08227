"""python -m snapshot_agent_server"""

import os
import sys

from snapshot_agent_server import grpc_polling


def main() -> int:
    """The command line, with gRPC's own lines off: they would hide the one line that says what to do."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported, as is the other
    grpc_polling.choose(os.environ)
    from snapshot_agent_server.main import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
