"""python -m timeslice_benchmarks NAME"""

from __future__ import annotations

import sys

from timeslice_benchmarks import agent_calls, handoff, hops, import_time, scale, uncontended
from timeslice_benchmarks.command import Benchmark, main

BENCHMARKS = {
    "agent": Benchmark("what a Snapshot costs beyond the driver's time", agent_calls.run),
    "handoff": Benchmark("from one job's yield to the next one's acquire", handoff.run),
    "import_time": Benchmark("what importing the client costs", import_time.run),
    "profile": Benchmark("where the time of one handoff goes", hops.run),
    "scale": Benchmark("many groups, many waiters, memory, idle", scale.run),
    "uncontended": Benchmark("acquire and yield when nobody else wants the group", uncontended.run),
}

if __name__ == "__main__":
    sys.exit(main(BENCHMARKS, sys.argv[1:]))
