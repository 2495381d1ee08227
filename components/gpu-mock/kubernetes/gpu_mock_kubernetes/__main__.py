"""python3 -m gpu_mock_kubernetes: see main.py."""

import sys

from gpu_mock_kubernetes.main import main

if __name__ == "__main__":
    sys.exit(main())
