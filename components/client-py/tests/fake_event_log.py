"""A fake orchestrator that pushes events, too: WatchGroups and Evict as orchestrator.proto describes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import grpc

from fake_orchestrator import FakeOrchestrator
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

EPOCH_STEP = 1 << 32


class TellingOrchestrator(FakeOrchestrator):
    """Its memory of events ends with it, as the real one's: sequences rise across restarts all the same."""

    def __init__(self, address: str, *groups: str) -> None:
        super().__init__(address, *groups)
        self.epoch = 0
        self.conditions: dict[str, list[pb2.Condition]] = {}
        self.watchers = 0
        self._log: list[pb2.GroupEvent] = []
        self.answers: dict[int, list[str]] = {}
        """What an Evict says it did, by action; an action without an answer is refused with NOT_FOUND."""

    def start(self) -> None:
        self.epoch += 1
        self._log = []
        super().start()

    def tell(self, group: str, kind: str, job: str = "", detail: str = "", duration_ms: int = 0) -> pb2.GroupEvent:
        """Something happens in the group, at once or, with no server, before the next start is heard."""
        with self.changed:
            event = pb2.GroupEvent(
                group=pb2.GroupStatus(group_id=group), kind=kind, job_id=job, detail=detail, duration_ms=duration_ms,
                sequence=self.last_sequence + 1,
            )  # fmt: skip
            event.time.FromSeconds(1_700_000_000)
            self._log.append(event)
            self.changed.notify_all()
            return event

    @property
    def last_sequence(self) -> int:
        return self._log[-1].sequence if self._log else self.epoch * EPOCH_STEP

    def WatchGroups(
        self, request: pb2.WatchGroupsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb2.GroupEvent]:
        self._enter("WatchGroups", request, context)()
        ended: deque[bool] = deque()

        def end() -> None:
            with self.changed:
                ended.append(True)
                self.changed.notify_all()

        context.add_callback(end)
        with self.changed:
            self.watchers += 1
            wanted = list(request.group_ids) or list(self.groups)
            seen = len(self._log)
            pending = [e for e in self._log if request.after_sequence and e.sequence > request.after_sequence]
            pending = [e for e in pending if e.group.group_id in wanted]
            pending += [self._live(pb2.GroupEvent(kind="state", sequence=self.last_sequence), g) for g in wanted]
            self.changed.notify_all()
        try:
            while True:
                yield from pending
                with self.changed:
                    while not (len(self._log) > seen or ended or self._stopping):
                        self.changed.wait()
                    if ended:
                        return
                    if self._stopping:
                        context.abort(grpc.StatusCode.UNAVAILABLE, "stopped")
                    pending = [self._live(e, e.group.group_id) for e in self._log[seen:] if e.group.group_id in wanted]
                    seen = len(self._log)
        finally:
            with self.changed:
                self.watchers -= 1
                self.changed.notify_all()

    def Evict(self, request: pb2.EvictRequest, context: grpc.ServicerContext) -> pb2.EvictResponse:
        self._enter("Evict", request, context)()
        actions = self.answers.get(request.action)
        if actions is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"group {request.group_id!r} has nothing; nothing was changed.")
        return pb2.EvictResponse(actions=actions)

    def _live(self, event: pb2.GroupEvent, group_id: str) -> pb2.GroupEvent:
        group = self.groups[group_id]
        live = pb2.GroupEvent()
        live.CopyFrom(event)
        live.time.FromSeconds(1_700_000_000)
        live.group.CopyFrom(
            pb2.GroupStatus(
                group_id=group_id,
                group_state=pb2.GroupStatus.STATE_LOCKED if group.lease else pb2.GroupStatus.STATE_IDLE,
                locking_job=group.lease.job_id if group.lease else "",
                waiter_queue_depth=len(group.waiting),
                waiters=[pb2.Waiter(job_id=self._askers[r][0], request_id=r) for r in group.waiting],
                conditions=self.conditions.get(group_id, []),
            )
        )
        live.group.state_timestamp.FromSeconds(1_700_000_000)
        return live
