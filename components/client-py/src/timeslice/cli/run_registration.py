"""Makes a command's process tree known to this node's snapshot agent, and again when the agent has forgotten it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._channel import open_channel, status_of
from timeslice._core.calls import REPEATED
from timeslice.cli.errors import CommandError

CONNECT_S = 2.0
"""For an agent that has not answered yet: a wrong address should be known at once."""
ANSWER_S = 10.0
PAUSE_S = 1.0
"""Between attempts, later on. An agent that restarts knows the tree already; nothing hurries."""
REGISTERED_KEY = "timeslice-registered"


def ask_accelerators(agent: str) -> list[pb2.AcceleratorStatus]:
    """All that the agent of this node has, in NVML's order.

    Raises:
        CommandError: it does not answer; the text says what to do.
    """
    deadline = time.monotonic() + CONNECT_S
    with open_channel(agent, []) as channel:
        stub: Any = pb2_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                return list(stub.Status(pb2.StatusRequest(), timeout=ANSWER_S).accelerator_statuses)
            except grpc.RpcError as err:
                status = status_of(err)
                if status.code not in REPEATED or time.monotonic() > deadline:
                    raise CommandError(_why(status.code, status.details, agent)) from err
                time.sleep(0.05)


class TreeRegistration:
    """A tree as a context. What the agent knows it keeps when this is closed."""

    def __init__(self, agent: str, workload: pb2.RegisterWorkload) -> None:
        self._agent, self._workload = agent, workload
        self._channel = open_channel(agent, [])
        self._stub: Any = pb2_grpc.SnapshotAgentServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._closed = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._keep, name="timeslice tree", daemon=True)

    def start(self) -> None:
        """Register, and keep that up in the background.

        Raises:
            CommandError: the agent refused, or does not answer; the text says why.
        """
        deadline = time.monotonic() + CONNECT_S
        while (error := self._register()) is not None:
            status = status_of(error)
            if status.code not in REPEATED or time.monotonic() > deadline:
                raise CommandError(_why(status.code, status.details, self._agent))
            time.sleep(0.05)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()
        self._channel.close()

    def _register(self) -> Any:
        """Returns the grpc.RpcError if it failed; else the call stays open."""
        over = threading.Event()
        call = self._stub.WorkloadChannel(self._messages(over))
        if not call.add_callback(over.set):
            over.set()
        answered = threading.Timer(ANSWER_S, call.cancel)
        answered.start()
        try:
            if any(key == REGISTERED_KEY for key, _ in call.initial_metadata() or ()):
                self._call = call
                return None
            for _ in call:
                pass
        except grpc.RpcError as err:
            return err
        finally:
            answered.cancel()
        return _Closed()

    def _keep(self) -> None:
        while not self._closed.is_set():
            try:
                for _ in self._call:
                    pass
            except grpc.RpcError:
                pass
            while not self._closed.wait(PAUSE_S):
                try:
                    error = self._register()
                except ValueError:  # The channel is closed.
                    return
                if error is None:
                    break
                if status_of(error).code not in REPEATED:
                    return  # The command has ended, and this process is about to.

    def _messages(self, over: threading.Event) -> Iterator[pb2.WorkloadMessage]:
        """One message; the call stays open until it breaks. Runs in a thread of grpc's."""
        yield pb2.WorkloadMessage(register=self._workload)
        over.wait()


def _why(code: str, details: str, agent: str) -> str:
    if code in REPEATED:
        return f"no snapshot agent answers at {agent} ({details}); start it with: timeslice up"
    if code == "UNIMPLEMENTED":
        return f"the snapshot agent at {agent} does not know process trees ({details}); upgrade it"
    return f"the snapshot agent at {agent} refused the command's processes: {details}"


class _Closed:
    """The agent closed the call without a word."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "it closed the connection"
