"""A fake agent in a process of its own: python -m timeslice_benchmarks.fake_agent ADDRESS GROUPS JOBS DELAY_S

It keeps the contract (tokens, epochs, pushed ends) and moves nothing, so that a figure shows the orchestrator. At its
end it says how many calls it was asked and how many messages it pushed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import timeslice_benchmarks.as_servers_do  # noqa: F401  # before grpc
from orchestrator.agents.fake import Behaviour, FakeAgent
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb


async def _run(address: str, groups: int, jobs: int, delay_s: float) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    names = [f"g{number}" for number in range(groups)]
    agent = FakeAgent({f"GPU-{name}": [name] for name in names}, keeps_calls=False)
    for name in names:
        for number in range(jobs):
            agent.put(f"{name}-j{number}", name, state=pb.JOB_STATE_SAVED, pids=[1 + number])
    if delay_s:
        agent.always("Snapshot", Behaviour(delay_s=delay_s))
        agent.always("Restore", Behaviour(delay_s=delay_s))
    await agent.start(address)
    print('{"msg": "fake agent ready"}', flush=True)
    await ended.wait()
    print(json.dumps({"calls": agent.calls_total, "messages": agent.messages_total}), flush=True)
    await agent.stop()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
