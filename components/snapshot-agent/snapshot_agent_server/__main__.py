"""python -m snapshot_agent_server"""

import sys

from snapshot_agent_server.main import main

if __name__ == "__main__":
    sys.exit(main())
