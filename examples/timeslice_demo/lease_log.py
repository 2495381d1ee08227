"""The orchestrator's own account of its groups, followed from the first grant to the last."""

import contextlib
import threading
from dataclasses import dataclass

import grpc
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2, orchestrator_pb2_grpc

from timeslice_demo.recorded import Pool


@dataclass(frozen=True, slots=True)
class GroupLogEntry:
    """One event of the orchestrator's log; time_s is the time of day."""

    sequence: int
    time_s: float
    kind: str
    pool: Pool
    job: str
    token: int
    duration_ms: int
    detail: str


class LeaseLog:
    """Follows WatchGroups in the background from construction to `stop`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        stub = orchestrator_pb2_grpc.TimeSliceOrchestratorServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._stream = stub.WatchGroups(orchestrator_pb2.WatchGroupsRequest(group_ids=list(Pool)))
        self._entries: list[GroupLogEntry] = []
        self._error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._read, name="lease log", daemon=True)
        self._thread.start()

    def stop(self) -> list[GroupLogEntry]:
        """End the stream; return what came.

        Raises:
            grpc.RpcError: the stream broke before.
        """
        self._stream.cancel()
        self._thread.join()
        self._channel.close()
        if self._error is not None:
            raise self._error
        return self._entries

    def _read(self) -> None:
        with contextlib.suppress(grpc.FutureCancelledError):
            try:
                for event in self._stream:
                    self._entries.append(_entry(event))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:
                    self._error = error


def _entry(event: orchestrator_pb2.GroupEvent) -> GroupLogEntry:
    return GroupLogEntry(
        sequence=event.sequence,
        time_s=event.time.seconds + event.time.nanos / 1e9,
        kind=event.kind,
        pool=Pool(event.group.group_id),
        job=event.job_id,
        token=event.group.lease.fencing_token,
        duration_ms=event.duration_ms,
        detail=event.detail,
    )
