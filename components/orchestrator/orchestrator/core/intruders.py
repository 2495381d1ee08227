"""Jobs that are on the device without the lease."""

from __future__ import annotations

from orchestrator.core.leases import Leases
from orchestrator.core.operations import End, OperationKind, Outcome
from orchestrator.core.site import Site
from orchestrator.core.types import ContextState, JobId, OperationId


class Intruders:
    """Those of one group."""

    def __init__(self, site: Site, leases: Leases) -> None:
        self._site = site
        self._leases = leases
        self._locks: set[OperationId] = set()
        self.since: dict[JobId, float] = {}
        """Who was found, and since when."""

    def lock(self, now: float) -> None:
        """Lock whoever is on the device, unlocked, without the lease and without having been the last to have it."""
        site = self._site
        allowed = (self._leases.holder or site.resident, site.heir)
        for node in site.nodes:
            for job, context in node.unsaved(site.group).items():
                if job in allowed or context.state is not ContextState.RUNNING or context.locked:
                    continue
                if job not in self.since:
                    self.since[job] = now
                    site.publish("intruded", job, node.id)
                if context.can_be_locked and site.can_call(node, job, OperationKind.LOCK, now):
                    self._locks.add(site.operations.lock(node.id, job, site.token, now).id)
        for job in [job for job in self.since if not site.has(job, ContextState.RUNNING)]:
            del self.since[job]

    def took(self, outcome: Outcome, now: float) -> bool:
        """Tell whether the operation that ended was such a lock: no try of the switch, which counts its own."""
        operation = outcome.operation
        if operation.id not in self._locks:
            return False
        self._locks.discard(operation.id)
        if outcome.end is End.FAILED:
            self._site.retry_later((operation.node, operation.job, operation.kind), now)
        return True
