"""A driver worker: a process that calls the CUDA driver and NVML for the agent, and that may be killed at any time.

    python -m snapshot_agent_server.driver.worker FD

It says {"ready": ...} or {"missing": TEXT} once, then answers one request after the other until the agent's end closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from snapshot_agent_server.core.ids import ProcessId
from snapshot_agent_server.driver.margin import margin_bytes
from snapshot_agent_server.driver.wire import MAX_BYTES, RELEASE, STOP, Message, decode, encode
from snapshot_agent_server.processes import proc

PR_SET_PDEATHSIG = 1
LONGEST_WAIT_S = 3600.0  # a socket takes no infinite limit


class DriverRefused(Exception):
    def __init__(self, code: int, name: str) -> None:
        super().__init__(name)
        self.code, self.name = code, name


class Calls:
    """The requests, by name. Errors of the driver leave as DriverRefused."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        from snapshot_agent_server.driver.nvml import Nvml

        self._driver = driver
        self._check(driver.cuInit(0))
        self._nvml = Nvml()

    def ready(self) -> Message:
        version = self._check(self._driver.cuDriverGetVersion())
        return {"driver_version": int(version[0]), "devices": self._nvml.sample()}

    def state(self, pid: int) -> Message:
        return {"state": self._state(pid)}

    def lock(self, pid: int, timeout_ms: int) -> Message:
        args = self._driver.CUcheckpointLockArgs()
        args.timeoutMs = timeout_ms
        self._check(self._driver.cuCheckpointProcessLock(pid, args))
        return {}

    def checkpoint(self, pid: int, accelerators: list[str]) -> Message:
        known = {uuid: self._nvml.processes(uuid).get(pid) for uuid in accelerators}
        used = {uuid: self._nvml.memory(uuid)[1] for uuid, size in known.items() if size is None}
        start = time.monotonic_ns()
        self._check(self._driver.cuCheckpointProcessCheckpoint(pid, None))
        took_us = (time.monotonic_ns() - start) // 1000
        usage = {}
        for uuid, size in known.items():
            moved = size if size is not None else max(0, used[uuid] - self._nvml.memory(uuid)[1])
            if moved:
                usage[uuid] = moved
        return {"usage": usage, "took_us": took_us}

    def restore(self, pid: int, need: dict[str, int], margin: int | None) -> Message:
        short = []
        for uuid, size in need.items():
            total, _, free = self._nvml.memory(uuid)
            needed = size + margin_bytes(margin, total)
            if free < needed:
                resident = [[pid, size] for pid, size in self._nvml.processes(uuid).items()]
                short.append(
                    {"accelerator": uuid, "free": free, "total": total, "needed": needed, "resident": resident}
                )
        if short:
            return {"short": short}
        start = time.monotonic_ns()
        self._check(self._driver.cuCheckpointProcessRestore(pid, None))
        return {"took_us": (time.monotonic_ns() - start) // 1000}

    def unlock(self, pid: int) -> Message:
        self._check(self._driver.cuCheckpointProcessUnlock(pid, None))
        return {}

    def sample(self, pids: list[int]) -> Message:
        return {"devices": self._nvml.sample(), **self.states(pids)}

    def states(self, pids: list[int]) -> Message:
        states: list[list[Any]] = []
        for pid in pids:
            try:
                states.append([pid, self._state(pid)])
            except DriverRefused as error:
                if error.code == int(self._driver.CUresult.CUDA_ERROR_INVALID_VALUE):
                    states.append([pid, None])
        return {"states": states}

    def _state(self, pid: int) -> str:
        (state,) = self._check(self._driver.cuCheckpointProcessGetState(pid))
        return str(state.name).removeprefix("CU_PROCESS_STATE_")

    def _check(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        result, *values = answer
        if int(result) != 0:
            raise DriverRefused(int(result), str(getattr(result, "name", result)))
        return tuple(values)


def main() -> None:
    # A worker must not outlive the agent, also if it hangs in the driver then.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process group: the agent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent has ended, or given this worker up
        serve(socket.socket(fileno=int(sys.argv[1])))


def serve(channel: socket.socket) -> None:
    try:
        calls = Calls()
        word: Message = {"ready": calls.ready()}
    except Exception as error:
        channel.send(encode({"missing": f"{type(error).__name__}: {error}"[:1000]}))
        return
    channel.send(encode(word))
    named: dict[str, Callable[..., Message]] = {
        name: getattr(calls, name) for name in ("state", "states", "lock", "checkpoint", "restore", "unlock", "sample")
    }
    while data := channel.recv(MAX_BYTES):
        request = decode(data)
        if request in (STOP, RELEASE):
            continue  # it came when there was no further step any more
        said = _Said(channel)
        reply = _made(named, request)
        pid = request["args"][0]
        for step in request.get("then", ()):
            if "refused" in reply or "short" in reply or not _may_begin(step, pid, said):
                break
            channel.send(encode({**reply, "goes_on": True}))
            reply = _made(named, step)
            pid = step["args"][0]
        channel.send(encode(reply))


class _Said:
    """What the agent says while a request is under way."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._is_released = False

    def allows(self, step: Message) -> bool:
        """Whether a step may begin as far as the agent is concerned; waits for its word if it is held."""
        is_held = step.get("is_held", False)
        while True:
            must_wait = is_held and not self._is_released
            left_s = max(0.0, step["not_after"] - time.monotonic()) if must_wait else 0.0
            try:
                self._channel.settimeout(min(left_s, LONGEST_WAIT_S))
                word = self._channel.recv(MAX_BYTES)
            except TimeoutError:  # and then see again whether it is too late
                continue
            except BlockingIOError:
                return not must_wait
            finally:
                self._channel.settimeout(None)
            if not word or decode(word) != RELEASE:  # nothing: the agent has closed its end
                return False
            self._is_released = True


def _made(named: dict[str, Callable[..., Message]], step: Message) -> Message:
    start = time.monotonic_ns()
    try:
        reply = named[step["call"]](*step["args"])
    except DriverRefused as error:
        reply = {"refused": [error.code, error.name]}
    except Exception as error:  # NVML's errors among them; the agent retries them like any flake
        reply = {"refused": [-1, f"{type(error).__name__}: {error}"[:500]]}
    reply.setdefault("took_us", (time.monotonic_ns() - start) // 1000)
    return reply


def _may_begin(step: Message, answered: int, said: _Said) -> bool:
    """Whether a further step may begin: the agent lets it, it is not too late, and its process can be asked.

    `answered`: the process that the step before was made with: it has just done what it was asked, which says more than
    /proc, and at once.
    """
    if not said.allows(step) or time.monotonic() >= step["not_after"]:
        return False
    process = ProcessId(step["args"][0], step["start_time"])
    return process.pid == answered or proc.can_be_asked(process)


if __name__ == "__main__":
    main()
