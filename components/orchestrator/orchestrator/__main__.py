"""`python -m orchestrator`."""

import os
import sys

from orchestrator import grpc_polling


def run() -> int:
    """The command line, with gRPC's own chatter off: stderr has our one line, stdout our log."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported
    grpc_polling.choose(os.environ)
    from orchestrator.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
