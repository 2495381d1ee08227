"""The orchestrator's own account of its groups, followed from the first grant to the last."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from timeslice_demo.ground_truth import Lease
from timeslice_demo.recorded import Pool
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2, orchestrator_pb2_grpc

GRANTED = "granted"
YIELDED = "yielded"
"""Kinds of GroupEvents that begin and end a lease; others tell of queues and switches."""


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
    """Follows WatchGroups in the background from construction to `stop`.

    Args:
        groups: each pool's group at the orchestrator.
    """

    def __init__(self, address: str, groups: Mapping[Pool, str]) -> None:
        self._pools = {group: pool for pool, group in groups.items()}
        self._channel = grpc.insecure_channel(address)
        stub = orchestrator_pb2_grpc.TimeSliceOrchestratorServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._stream = stub.WatchGroups(orchestrator_pb2.WatchGroupsRequest(group_ids=list(self._pools)))
        self._entries: list[GroupLogEntry] = []
        self._error: grpc.RpcError | None = None
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="lease log", daemon=True)
        self._thread.start()

    def wait_for_job(self, job: str, limit_s: float | None = None) -> None:
        """Return when the orchestrator has the job in a queue, or holding a group.

        Raises:
            TimeoutError: it has not for so long.
            grpc.RpcError: the stream broke before.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._has_ended or any(entry.job == job for entry in self._entries), limit_s
            ):
                raise TimeoutError(f"{job} has asked for nothing within {limit_s:.0f} s")
            if self._error is not None:
                raise self._error

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
        try:
            for event in self._stream:
                with self._changed:
                    self._entries.append(self._entry(event))
                    self._changed.notify_all()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _entry(self, event: orchestrator_pb2.GroupEvent) -> GroupLogEntry:
        return GroupLogEntry(
            sequence=event.sequence,
            time_s=event.time.seconds + event.time.nanos / 1e9,
            kind=event.kind,
            pool=self._pools[event.group.group_id],
            job=event.job_id,
            token=event.group.lease.fencing_token,
            duration_ms=event.duration_ms,
            detail=event.detail,
        )


def disagreements(entries: Sequence[GroupLogEntry], leases: Sequence[Lease]) -> list[str]:
    """Where the orchestrator's log is not one lease after the other, or not what the jobs say; empty if all is well.

    Judged by the order of events alone, so no clock is involved.
    """
    found: list[str] = []
    for pool in Pool:
        holder: str | None = None
        granted: list[str] = []
        for entry in sorted(entries, key=lambda entry: entry.sequence):
            if entry.pool is not pool:
                continue
            if entry.kind == GRANTED:
                if holder is not None:
                    found.append(f"the {pool} pool was granted to {entry.job} while {holder} held it")
                holder = entry.job
                granted.append(entry.job)
            elif entry.kind == YIELDED:
                if holder != entry.job:
                    by = holder or "nobody"
                    found.append(f"the {pool} pool was given back by {entry.job} while {by} held it")
                holder = None
        own = [lease.job for lease in sorted(leases, key=lambda lease: lease.begin_ns) if lease.pool is pool]
        if own != granted:
            found.append(f"the {pool} pool was granted to {', '.join(granted)}, but used by {', '.join(own)}")
    return found
