"""A bare gRPC server in a process of its own: python -m timeslice_benchmarks.echo_server ADDRESS"""

from __future__ import annotations

import asyncio
import sys

from timeslice_benchmarks.machine import serve_echo


async def _run() -> None:
    await serve_echo(sys.argv[1], lambda: print('{"msg": "echo ready"}', flush=True), asyncio.Event())


if __name__ == "__main__":
    asyncio.run(_run())
