"""Telling the node's agent which processes are a job's, and how the job saves itself, if it does."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._channel import open_channel, status_of
from timeslice._core.calls import REPEATED
from timeslice._processes import REGISTERED, ProcessId, identify, node_name, start_time
from timeslice._settings import agent_address
from timeslice.snapshot_agent._commands import Commands, Offer, running_loop
from timeslice.snapshot_agent.adapters import resolve_adapter
from timeslice.snapshot_agent.client import SnapshotAgentError, agent_error

__all__ = ["WorkloadHandle", "register_workload"]

logger = logging.getLogger("timeslice")

CONNECT_TIMEOUT_S = 2.0
"""For an agent that never answered: a wrong address should be known at once."""
ANSWER_TIMEOUT_S = 10.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STABLE_S = 5.0
"""A connection that lasted this long starts the backoff anew."""
REGISTERED_KEY = "timeslice-registered"
REFUSAL_LAG_S = 0.1
"""Far above the microseconds between the two halves of one message, and paid once per registration at most."""

Outgoing = queue.SimpleQueue[pb2.WorkloadMessage | None]


def register_workload(
    agent: str | None,
    job_id: str,
    group: str = "",
    workload: Any = None,
    on_snapshot: Callable[..., Any] | None = None,
    on_restore: Callable[..., Any] | None = None,
    supported_modes: Sequence[str] | None = None,
    default_mode: str | None = None,
    tags: Sequence[str] | None = None,
    *,
    pids: Sequence[int] | None = None,
) -> WorkloadHandle:
    """Register the job with the agent of this node: its processes, how it saves itself, or both.

    Returns once the agent has accepted. An agent that restarts is registered with again, in the background, until the
    handle is closed or the last process that was named has ended. There is one registration with callbacks for each
    job, group and node: a later one takes the place of the one before.

    Without callbacks the driver saves the processes. With a workload or callbacks the agent has the job do it:
    `on_snapshot(mode, tags)` when another job is to have the accelerators (mode "offload" or "discard"),
    `on_restore(tags)` when it is this job's turn again. They are called one at a time, in a thread of their own, while
    the job waits for its next turn; coroutines run on the event loop that is running now, if there is one: do not block
    it in `acquire` then. An exception means that nothing has changed. A callback that takes longer than the deadline
    (120 s, if nobody says otherwise) holds up its group until it ends. Nothing keeps such a job from the device: it
    must not touch it between its turns.

    Registering more processes for the same job and group adds them. A session that this process keeps for the job
    attests the processes too.

    Args:
        agent: "unix:PATH" or "HOST:PORT"; else $TIMESLICE_AGENT_ADDR, else the socket of `timeslice up`, else, in a
            pod, that of the node's agent, /run/timeslice/agent.sock.
        job_id: as in `acquire`.
        group: as in `acquire`; a process belongs to one group.
        workload: a vLLM engine made with enable_sleep_mode=True, or an object with snapshot(mode, tags) and
            restore(tags); see `adapters`. Instead of it:
        on_snapshot, on_restore: both, or neither.
        supported_modes, default_mode, tags: what the workload can do and what it holds, if not as its adapter says.
        pids: the processes that use the accelerators, of this user and alive. Each must be registered before it touches
            a device, or soon after.
    Raises:
        ValueError: no job id, neither processes nor callbacks, a process that does not exist, one callback without the
            other, callbacks besides a workload, or a mode that is not known or not supported.
        TypeError: the workload has nothing that could be called.
        SnapshotAgentError: the agent refused (the text says why), or does not answer.
    """
    if not job_id:
        raise ValueError("job_id is missing")
    has_callbacks = workload is not None or on_snapshot is not None or on_restore is not None
    if not has_callbacks and not pids:
        raise ValueError(
            "pids is missing: name the processes that use the accelerators, such as pids=[os.getpid()], or say how the"
            " job saves itself, by workload=... or by on_snapshot=... and on_restore=..."
        )
    if not has_callbacks and (supported_modes is not None or default_mode is not None or tags is not None):
        raise ValueError("supported_modes, default_mode and tags say how callbacks work; there are none")
    commands = None
    if has_callbacks:
        adapter = resolve_adapter(workload, on_snapshot, on_restore)
        commands = Commands(job_id, adapter, Offer(adapter, supported_modes, default_mode, tags), running_loop())
    processes = identify(pids or (), node_name(os.environ))
    if gone := sorted(set(pids or ()) - {p.pid for p in processes}):
        raise ValueError(f"there is no process {', '.join(map(str, gone))} on this machine")
    handle = WorkloadHandle(agent_address(agent, os.environ), job_id, group, processes, commands)
    handle._start()
    if processes:
        REGISTERED.add(job_id, processes)
    return handle


class WorkloadHandle:
    """A registration, kept up in a background thread."""

    def __init__(
        self,
        agent: str,
        job_id: str,
        group: str,
        processes: Sequence[ProcessId],
        commands: Commands | None = None,
    ) -> None:
        self._agent, self._job_id, self._group = agent, job_id, group
        self._processes = list(processes)
        self._named = bool(processes)
        self._commands = commands
        self._closed = threading.Event()
        self._answered = threading.Event()
        self._refusal: SnapshotAgentError | None = None
        self._lock = threading.Lock()
        self._call: Any = None
        self._outgoing: Outgoing | None = None
        self._thread = threading.Thread(target=self._run, name=f"timeslice workload {job_id}", daemon=True)

    def close(self, timeout: float = 5.0) -> None:
        """Stop registering again. What the agent knows it keeps, for as long as the processes live.

        Callbacks are called no more: one under way is waited for, then the agent is told that there are none; a job
        that registered no processes has no context from then on. A second call does nothing.

        Args:
            timeout: seconds to wait in all.
        """
        until = time.monotonic() + timeout
        self._closed.set()
        if self._commands is not None:
            self._commands.stop(timeout)
            with self._lock:
                outgoing = self._outgoing
            if outgoing is not None:
                outgoing.put(None)
                self._join(max(0.0, until - time.monotonic()))
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()
        self._join(max(0.1, until - time.monotonic()))

    def _join(self, timeout_s: float) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _start(self) -> None:
        """Start the thread and wait for the agent's first answer.

        Raises:
            SnapshotAgentError: it refused, or does not answer.
        """
        if self._commands is not None:
            self._commands.start()
        self._thread.start()
        if not self._answered.wait(CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S):
            self.close()
            raise SnapshotAgentError(
                f"the snapshot agent at {self._agent} did not answer within {CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S:g} s"
            )
        if self._refusal is not None:
            self.close()
            raise self._refusal

    # The thread.

    def _run(self) -> None:
        backoff_s, started = FIRST_BACKOFF_S, time.monotonic()
        while not self._closed.is_set():
            connected = time.monotonic()
            error = self._serve_one_connection()
            if self._closed.is_set():
                return
            now = time.monotonic()
            if not self._answered.is_set():
                # Before the first answer the caller waits: a missing agent gets a moment, a refusal none.
                if status_of(error).code in REPEATED and now - started < CONNECT_TIMEOUT_S:
                    self._closed.wait(0.1)
                    continue
                self._refusal = agent_error(
                    error, f"the snapshot agent refused {self._names()} of job {self._job_id!r}", self._agent
                )
                self._answered.set()
                return
            status = status_of(error)
            if self._commands is not None and status.code == "ABORTED":
                logger.warning("job %s is not asked to save itself any more: %s", self._job_id, status.details)
                return
            self._processes = [p for p in self._processes if start_time(p.pid) == p.start_time]
            if not self._processes and (self._named or self._commands is None):
                return  # Nothing is left to register.
            if now - connected > STABLE_S:
                backoff_s = FIRST_BACKOFF_S
            pause_s = backoff_s * (0.5 + random.random())
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
            logger.warning(
                "the snapshot agent at %s let go of job %s (%s); registering again in %.1f s",
                self._agent, self._job_id, status.details, pause_s,
            )
            self._closed.wait(pause_s)

    def _serve_one_connection(self) -> Any:
        """Register, then wait until the connection ends; returns the grpc.RpcError that ended it."""
        outgoing: Outgoing = queue.SimpleQueue()
        with open_channel(self._agent, []) as channel:
            stub: Any = pb2_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
            call = stub.WorkloadChannel(self._messages(outgoing))
            with self._lock:
                self._call, self._outgoing = call, outgoing
            if self._closed.is_set():
                call.cancel()
            try:
                if _is_accepted(call):
                    self._accepted()
                for command in call:
                    if self._commands is not None:
                        self._commands.take(command)
                    else:
                        logger.error("the agent sent job %s a command that it did not offer to serve: %s",
                                     self._job_id, command.WhichOneof("command"))
                return _Ended()
            except grpc.RpcError as err:
                return err
            finally:
                outgoing.put(None)
                with self._lock:
                    self._call = self._outgoing = None

    def _messages(self, outgoing: Outgoing) -> Iterator[pb2.WorkloadMessage]:
        """The registration, then results, until None is put."""
        register = pb2.RegisterWorkload(
            job_id=self._job_id, group=self._group, pids=[p.pid for p in self._processes]
        )
        if self._commands is not None:
            register.capabilities.CopyFrom(self._commands.capabilities)
            register.instance.CopyFrom(self._commands.connected(outgoing.put))
        yield pb2.WorkloadMessage(register=register)
        while (message := outgoing.get()) is not None:
            yield message

    def _accepted(self) -> None:
        if self._answered.is_set():
            logger.warning("registered job %s with the snapshot agent at %s again", self._job_id, self._agent)
        if self._commands is not None:
            self._commands.accepted()
        self._answered.set()

    def _names(self) -> str:
        return "process " + ", ".join(str(p.pid) for p in self._processes) if self._processes else "callbacks"


def _is_accepted(call: Any) -> bool:
    """Wait for the agent's initial metadata, which it sends when it has accepted a registration.

    A refusal ends the call, and grpc then reports metadata too, a moment before it reports the end. An agent that marks
    its metadata tells the two apart at once; with one that does not, the moment is waited for.
    """
    ended = threading.Event()
    if not call.add_callback(ended.set):
        return False
    marked = any(key == REGISTERED_KEY for key, _ in call.initial_metadata() or ())
    return marked or not ended.wait(REFUSAL_LAG_S)


class _Ended:
    """The agent closed the connection without an error."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "it closed the connection"
