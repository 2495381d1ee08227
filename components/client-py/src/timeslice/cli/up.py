"""`timeslice up`: an orchestrator and a snapshot agent on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._channel import open_channel, status_of
from timeslice._settings import make_private, socket_address
from timeslice.cli.children import Child, Ended, Events, Said, Signalled
from timeslice.cli.errors import BAD_INPUT, CommandError
from timeslice.cli.gpus import check_driver
from timeslice.cli.one_at_a_time import claimed
from timeslice.cli.sizes import size_text
from timeslice.cli.up_plan import Plan

READY_TIMEOUT_S = 120.0
"""From a server's start to its ready line: initialising a driver on a machine with many GPUs takes a minute."""
STOP_TIMEOUT_S = 30.0
"""From SIGTERM to SIGKILL: a switch under way may be finished or rolled back in it."""


def up(wanted: Plan, as_json: bool = False) -> int:
    """Run the servers until a signal; returns the exit code: 130 after Ctrl-C, 0 after SIGTERM.

    `as_json`: stdout is for a program, which gets one line when all is ready; what is for people goes to stderr.

    Raises:
        CommandError, SettingsError: they cannot be started, or one of them ended; the other one was stopped.
    """
    for module in ("orchestrator", "snapshot_agent_server"):
        if importlib.util.find_spec(module) is None:
            raise CommandError(
                f"package {module} is not installed here; run: pip install 'timeslice-rl[local]' (in a checkout of"
                " the repository: ./bazelw run //components/client-py:timeslice -- up)"
            )
    orchestrator_socket = socket_address(wanted.runtime_dir, "orchestrator.sock")
    agent_socket = socket_address(wanted.runtime_dir, "agent.sock")
    make_private(wanted.state_dir, "--state-dir or TIMESLICE_STATE_DIR")
    new = not wanted.runtime_dir.exists()
    make_private(wanted.runtime_dir)
    try:
        with claimed(wanted.runtime_dir, "runtime folder"), claimed(wanted.state_dir, "state folder"):
            check_driver()
            return _Servers(wanted, orchestrator_socket, agent_socket, as_json).run()
    finally:
        if new:
            with contextlib.suppress(OSError):  # Somebody else's file is in it.
                wanted.runtime_dir.rmdir()


class _Servers:
    """The two children and what happens to them."""

    def __init__(self, wanted: Plan, orchestrator_socket: str, agent_socket: str, as_json: bool) -> None:
        self._plan, self._as_json = wanted, as_json
        self._orchestrator_socket, self._agent_socket = orchestrator_socket, agent_socket
        self._events: Events = queue.SimpleQueue()
        self._started: list[Child] = []
        self._stopping = False

    def run(self) -> int:
        with _signals_into(self._events):
            try:
                number = self._start() or self._serve()
            finally:
                self._stop()
        return 130 if number == signal.SIGINT else 0

    def _start(self) -> int | None:
        """Start both; the number of a signal that came meanwhile."""
        agent = self._child("snapshot agent", "snapshot_agent_server", self._agent_arguments())
        if number := self._start_one(agent, "snapshot agent ready"):
            return number
        accelerators = self._accelerators()
        orchestrator = self._child("orchestrator", "orchestrator", self._orchestrator_arguments(accelerators))
        if number := self._start_one(orchestrator, "orchestrator ready"):
            return number
        self._show(accelerators)
        return None

    def _serve(self) -> int:
        while True:
            match self._events.get():
                case Signalled(number):
                    return number
                case Ended(child, code):
                    raise _ended(child, code)
                case Said() as said:
                    _show_problem(said)

    def _start_one(self, child: Child, ready: str) -> int | None:
        """Start it and wait for its ready line; the number of a signal that came first."""
        self._say(f"starting the {child.name} ...")
        self._started.append(child)
        child.start(self._started[0].pid if len(self._started) > 1 else 0)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise CommandError(
                    f"the {child.name} was not ready within {READY_TIMEOUT_S:g} s; see {child.log}"
                ) from None
            match event:
                case Signalled(number):
                    return number
                case Ended(ended, code):
                    raise _ended(ended, code)
                case Said(child=sayer, line=line) if sayer is child and line["msg"] == ready:
                    return None
                case Said(structured=True) as said:
                    _show_problem(said)
                case Said():
                    pass  # Should it end over this, the error repeats it.

    def _stop(self) -> None:
        """Stop the orchestrator, then the agent that it may still need; a second signal stops them hard."""
        self._stopping = True
        for child in reversed(self._started):
            if not child.is_running():
                continue
            self._say(f"stopping the {child.name} ...")
            child.stop()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while child.is_running():
                try:
                    event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    print(f"the {child.name} did not stop within {STOP_TIMEOUT_S:g} s and is killed", file=sys.stderr)
                    event = Signalled(signal.SIGKILL)
                if isinstance(event, Signalled):
                    child.stop(signal.SIGKILL)
                    deadline = time.monotonic() + STOP_TIMEOUT_S
                elif isinstance(event, Said) and event.structured:
                    _show_problem(event)
        if self._started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._started[0].pid, signal.SIGKILL)  # What they may have left behind.
        for address in (self._orchestrator_socket, self._agent_socket):
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)

    def _child(self, name: str, module: str, arguments: list[str]) -> Child:
        log = self._plan.state_dir / "log" / f"{name.replace(' ', '-')}.log"
        return Child(name, module, arguments, log, self._events)

    def _agent_arguments(self) -> list[str]:
        arguments = ["--listen", self._agent_socket, "--node", self._plan.node]
        arguments += ["--state-dir", str(self._plan.state_dir)]
        for group, gpus in self._plan.groups.items():
            arguments += ["--group", f"{group}={','.join(gpus)}"]
        return arguments

    def _orchestrator_arguments(self, accelerators: Sequence[pb2.AcceleratorStatus]) -> list[str]:
        groups = list(self._plan.groups) or sorted({g for a in accelerators for g in a.groups})
        node = ",".join([f"{self._plan.node}={self._agent_socket}", *(f"group={group}" for group in groups)])
        arguments = ["--listen", self._orchestrator_socket]
        if self._plan.listen is not None:
            arguments += ["--listen", self._plan.listen]
        if self._plan.insecure_listen:
            arguments.append("--insecure-listen")
        for policy in self._plan.on_unsaveable:
            arguments += ["--on-unsaveable", policy]
        if self._plan.kill_grace_s is not None:
            arguments += ["--kill-grace-s", str(self._plan.kill_grace_s)]
        return [*arguments, "--agent", node, "--state-dir", str(self._plan.state_dir)]

    def _accelerators(self) -> list[pb2.AcceleratorStatus]:
        with open_channel(self._agent_socket, []) as channel:
            stub = pb2_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                reply = stub.Status(pb2.StatusRequest(per_context=True), timeout=10)
            except grpc.RpcError as err:
                raise CommandError(f"the snapshot agent does not say what it has: {status_of(err).details}") from err
        return list(reply.accelerator_statuses)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def _show(self, accelerators: Sequence[pb2.AcceleratorStatus]) -> None:
        if self._as_json:
            print(json.dumps(self._as_data(accelerators)), flush=True)
            return
        listen = f" and {self._plan.listen}" if self._plan.listen else ""
        print(f"\ntimeslice is up (pid {os.getpid()}) on node {self._plan.node}")
        print(f"  orchestrator   {self._orchestrator_socket}{listen}")
        print(f"  snapshot agent {self._agent_socket}")
        print(f"  state and logs {self._plan.state_dir}")
        for index, accelerator in enumerate(accelerators):
            group = ", ".join(accelerator.groups) or "no group: not used"
            size = size_text(accelerator.memory_total_bytes)
            print(f"  GPU {index}          {group} ({accelerator.name or accelerator.id}, {size})")
        print("\nJobs of this user find it by themselves; see `timeslice watch`. Ctrl-C stops it.", flush=True)


    def _as_data(self, accelerators: Sequence[pb2.AcceleratorStatus]) -> dict[str, Any]:
        return {
            "ready": True,
            "pid": os.getpid(),
            "node": self._plan.node,
            "orchestrator": self._orchestrator_socket,
            "listen": self._plan.listen,
            "agent": self._agent_socket,
            "state_dir": str(self._plan.state_dir),
            "accelerators": [
                {"id": a.id, "name": a.name, "memory_total_bytes": a.memory_total_bytes, "groups": list(a.groups)}
                for a in accelerators
            ],
        }


@contextlib.contextmanager
def _signals_into(events: Events) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP become events: nothing is torn down in the middle of a step."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _: events.put(Signalled(n))) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(child: Child, code: int) -> CommandError:
    if code == BAD_INPUT and child.last_words:  # Its own line says what is wrong and what to do.
        return CommandError(child.last_words[-1], BAD_INPUT)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    said = child.last_words[-1] if child.last_words else f"see {child.log}"
    return CommandError(f"the {child.name} ended ({how}): {said}")


def _show_problem(said: Said) -> None:
    """What a person may want to act on; the rest is in the log."""
    level = str(said.line.get("level", "info"))
    if level in ("warning", "error", "critical"):
        print(f"{said.child.name}: {level}: {said.line['msg']}", file=sys.stderr, flush=True)
