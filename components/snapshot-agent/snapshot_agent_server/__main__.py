"""python -m snapshot_agent_server"""

import os
import sys

# Read when grpc is imported. Its own lines on stderr would hide the one line that says what to do.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from snapshot_agent_server.main import main

if __name__ == "__main__":
    sys.exit(main())
