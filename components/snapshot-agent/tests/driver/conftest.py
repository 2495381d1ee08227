from __future__ import annotations

import sys
from pathlib import Path

# The mock machine is shared with the tests of failures.
sys.path.insert(0, str(Path(__file__).parents[1] / "mock"))
