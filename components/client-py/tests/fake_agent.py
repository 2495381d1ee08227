"""A small snapshot agent with state, in the test's own process: registrations, operations, refusals, restarts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc


class FakeAgent(pb2_grpc.SnapshotAgentServiceServicer):
    def __init__(self, address: str, *, marks_acceptance: bool = True) -> None:
        self.address, self.marks_acceptance = address, marks_acceptance
        self.registered: list[pb2.RegisterWorkload] = []
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.states: dict[str, int] = {}
        self.health = health.HealthServicer()
        self.polls_until_end = 1
        self.channels = 0
        self.results: list[pb2.CommandResult] = []
        self.half_closed = 0
        """Channels that their workload said to be done with."""
        self._to_send: deque[pb2.AgentCommand] = deque()
        self._channel_end: tuple[grpc.StatusCode, str] | None = None
        self.changed = threading.Condition()
        self._polls: dict[str, int] = {}
        self._operations: dict[str, tuple[str, int]] = {}
        self._stopping = False

    def start(self) -> None:
        self._stopping = False
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        pb2_grpc.add_SnapshotAgentServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        self._server.stop(grace=None).wait()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "this never came about"

    def send(self, command_id: str, **command: object) -> None:
        """Send a command to the workload that is connected."""
        with self.changed:
            self._to_send.append(pb2.AgentCommand(command_id=command_id, **command))  # type: ignore[arg-type]
            self.changed.notify_all()

    def result(self, command_id: str) -> pb2.CommandResult:
        """What the workload says of a command; waits for it."""
        self.wait_until(lambda: command_id in {result.command_id for result in self.results})
        return next(result for result in self.results if result.command_id == command_id)

    def end_channel(self, code: grpc.StatusCode, text: str) -> None:
        with self.changed:
            self._channel_end = (code, text)
            self.changed.notify_all()

    def WorkloadChannel(
        self, messages: Iterator[pb2.WorkloadMessage], context: grpc.ServicerContext
    ) -> Iterator[pb2.AgentCommand]:
        register = next(messages).register
        with self.changed:
            if self.refusals:
                context.abort(*self.refusals.pop(0))
        over = threading.Event()

        def ended() -> None:
            with self.changed:
                over.set()
                self.channels -= 1
                self.changed.notify_all()

        with self.changed:
            self.registered.append(register)
            self.channels += 1
            self.changed.notify_all()
        if not context.add_callback(ended):
            ended()
        context.send_initial_metadata([("timeslice-registered", "1")] if self.marks_acceptance else [])
        threading.Thread(target=self._read, args=(messages, over), daemon=True).start()
        return self._commands(context, over)

    def _read(self, messages: Iterator[pb2.WorkloadMessage], over: threading.Event) -> None:
        try:
            for message in messages:
                with self.changed:
                    self.results.append(message.result)
                    self.changed.notify_all()
        except Exception:
            return  # the connection broke
        with self.changed:
            self.half_closed += not over.is_set()
            over.set()
            self.changed.notify_all()

    def _commands(self, context: grpc.ServicerContext, over: threading.Event) -> Iterator[pb2.AgentCommand]:
        while True:
            with self.changed:
                self.changed.wait_for(
                    lambda: over.is_set() or self._stopping or bool(self._to_send) or self._channel_end is not None
                )
                if self._channel_end is not None:
                    end, self._channel_end = self._channel_end, None
                    context.abort(*end)
                if over.is_set() or self._stopping:
                    return
                command = self._to_send.popleft()
            yield command

    def Snapshot(self, request: pb2.SnapshotRequest, context: grpc.ServicerContext) -> pb2.SnapshotResponse:
        return pb2.SnapshotResponse(
            operation_id=self._begin(request.job_id, pb2.JOB_STATE_RUNNING, pb2.JOB_STATE_SAVED, context)
        )

    def Restore(self, request: pb2.RestoreRequest, context: grpc.ServicerContext) -> pb2.RestoreResponse:
        return pb2.RestoreResponse(
            operation_id=self._begin(request.job_id, pb2.JOB_STATE_SAVED, pb2.JOB_STATE_RUNNING, context)
        )

    def GetOperation(self, request: pb2.GetOperationRequest, context: grpc.ServicerContext) -> pb2.GetOperationResponse:
        if request.operation_id not in self._operations:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown operation {request.operation_id!r}")
        self._polls[request.operation_id] -= 1
        if self._polls[request.operation_id] > 0:
            return pb2.GetOperationResponse(status=pb2.OPERATION_STATUS_PENDING, elapsed_ms=1)
        job_id, state = self._operations[request.operation_id]
        self.states[job_id] = state
        return pb2.GetOperationResponse(
            status=pb2.OPERATION_STATUS_COMPLETE, elapsed_ms=7, snapshot_device_bytes=1024
        )

    def Status(self, request: pb2.StatusRequest, context: grpc.ServicerContext) -> pb2.StatusResponse:
        return pb2.StatusResponse(
            job_statuses=[pb2.JobStatus(job_id=job, state=state) for job, state in self.states.items()],
            accelerator_statuses=[pb2.AcceleratorStatus(id="GPU-1", memory_used_bytes=5, memory_total_bytes=9)],
        )

    def _begin(self, job_id: str, needed: int, then: int, context: grpc.ServicerContext) -> str:
        if self.states.get(job_id) != needed:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"job {job_id!r} is not {pb2.JobState.Name(needed)}")
        operation_id = f"op-{len(self._operations)}"
        with self.changed:
            self._operations[operation_id] = (job_id, then)
            self._polls[operation_id] = self.polls_until_end
            self.changed.notify_all()
        return operation_id
