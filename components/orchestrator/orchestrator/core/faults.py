"""Jobs that cannot be served until somebody acts, and what else is found wrong with the contexts of a group."""

from __future__ import annotations

from orchestrator.core import texts
from orchestrator.core.leases import Leases
from orchestrator.core.ledger import Ledger
from orchestrator.core.nodes import is_unexplained
from orchestrator.core.site import Site
from orchestrator.core.types import AgentErrorKind, ContextState, Ending, OperationId
from orchestrator.core.waiting import Waiting


class Faults:
    """Finds one group's faults and draws the consequences; they are kept in its `Site`."""

    def __init__(self, site: Site, leases: Leases, waiting: Waiting, ledger: Ledger) -> None:
        self._site = site
        self._leases = leases
        self._waiting = waiting
        self._ledger = ledger

    def look(self) -> None:
        """Find what is new, and forget what is over."""
        site = self._site
        for job in list(site.faults):
            if job not in site.new_faults and site.is_known and not any(site.contexts_of(job)):
                del site.faults[job]  # its processes are gone: the next ones start without it
                self._ledger.changed()
                site.publish("fault_cleared", job)
        unexplained = set()
        for node in site.nodes:
            for job, context in node.unsaved(site.group).items():
                if context.state is ContextState.FAULTED and job not in site.faults:
                    reason = context.reason or "its context is in the driver's FAILED state"
                    site.fault(job, f"node {node.id}: {reason}")
                elif context.state is ContextState.TRANSITIONING and is_unexplained(context):
                    unexplained.add((node.id, job))
        site.unexplained = unexplained
        for killed in list(site.kill_failures):
            if not site.is_on_device(*killed):
                del site.kill_failures[killed]

    def act(self, now: float) -> None:
        """End the lease of a faulted job, refuse its waiters, repair it no further."""
        self._ledger.changed()
        for job in self._site.new_faults:
            reason = self._site.faults.get(job, "")
            trouble = self._site.troubles.get(job)
            if trouble is not None:
                trouble.is_repairing = False
            if self._leases.holder == job:
                self._leases.end(Ending.FAULTED, reason, now)
            self._waiting.drop_job(job, texts.job_faulted(job, self._site.group, reason))
        self._site.new_faults.clear()

    def kill_failed(self, operation: OperationId, kind: AgentErrorKind, error: str, now: float) -> bool:
        """A call did not succeed; tell whether it was a kill. Who is still there is shown until it is gone."""
        killed = self._site.operations.take_kill(operation)
        if killed is not None and kind is not AgentErrorKind.GONE:
            node, job = killed
            since_s, before = self._site.kill_failures.get(killed, (now, ""))
            self._site.kill_failures[killed] = (since_s, error)
            if error != before:
                self._site.publish("kill_failed", job, node, detail=error)
        return killed is not None
