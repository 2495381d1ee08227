"""Fake agents in a process of their own: python -m timeslice_benchmarks.fake_agent GROUPS JOBS DELAY_S ADDRESS...

They keep the contract (tokens, epochs, pushed ends) and move nothing, so that a figure shows the orchestrator. Each
address is a node: an agent with a server, a state and connections of its own. At their end they say how many calls they
were asked and how many messages they pushed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence

import timeslice_benchmarks.as_servers_do  # noqa: F401  # before grpc
from orchestrator.agents.fake import Behaviour, FakeAgent
from orchestrator.grpc_wakeups import ServerLoop
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb


async def _run(groups: int, jobs: int, delay_s: float, addresses: Sequence[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    agents = [_agent(groups, jobs, delay_s) for _ in addresses]
    for agent, address in zip(agents, addresses, strict=True):
        await agent.start(address)
    print('{"msg": "fake agents ready"}', flush=True)
    await ended.wait()
    told = {"calls": sum(a.calls_total for a in agents), "messages": sum(a.messages_total for a in agents)}
    print(json.dumps(told), flush=True)
    for agent in agents:
        await agent.stop()


def _agent(groups: int, jobs: int, delay_s: float) -> FakeAgent:
    """One that knows these jobs, all saved, in each of the groups g0, g1, ..."""
    names = [f"g{number}" for number in range(groups)]
    agent = FakeAgent({f"GPU-{name}": [name] for name in names}, keeps_calls=False)
    for name in names:
        for number in range(jobs):
            agent.put(f"{name}-j{number}", name, state=pb.JOB_STATE_SAVED, pids=[1 + number])
    if delay_s:
        agent.always("Snapshot", Behaviour(delay_s=delay_s))
        agent.always("Restore", Behaviour(delay_s=delay_s))
    return agent


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=ServerLoop) as runner:  # as agents do
        runner.run(_run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
