"""Where one group's switches happen: its nodes, the calls under way there, and what is known of its jobs' troubles."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from orchestrator.core.effects import Effect, Publish
from orchestrator.core.identifiers import Identifiers
from orchestrator.core.nodes import Node
from orchestrator.core.operations import End, OperationKind, Operations, Outcome
from orchestrator.core.room import shortage
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import (
    ContextState,
    ContextView,
    CoreSettings,
    GroupConfig,
    GroupId,
    JobId,
    NodeId,
    Token,
)

ContextCall = tuple[NodeId, JobId, OperationKind]
"""One kind of call for one context."""


@dataclass(slots=True)
class Trouble:
    """A job whose context could not be taken off the device."""

    tries: int = 0
    reason: str = ""
    is_repairing: bool = False
    """It must be whole on the device again before anything else happens."""
    repair_tries: int = 0
    cannot_lock: bool = False

    def failed(self, reason: str, *, cannot_lock: bool) -> None:
        """Count a try, unless it was part of a repair."""
        self.reason = reason
        self.cannot_lock = cannot_lock
        if not self.is_repairing:
            self.tries += 1
            self.is_repairing = True
            self.repair_tries = 0


@dataclass(slots=True)
class Site:
    """Shared by a group and its switch; holds no decision of its own."""

    config: GroupConfig
    settings: CoreSettings
    ids: Identifiers
    timers: Timers
    out: list[Effect]
    nodes: list[Node]
    operations: Operations
    token: Token
    """The highest durable or intended token: it goes with every call to an agent."""
    resident: JobId | None = None
    """The last holder: the only job without the lease that may be on the device unlocked."""
    heir: JobId | None = None
    """Who may have been unlocked before the record of its grant, when everybody else had been taken off the device:
    whom a leader before us meant to grant when it ended, or whom a restore under way lets on. None: nobody, or that is
    found out."""
    troubles: dict[JobId, Trouble] = field(default_factory=dict)
    faults: dict[JobId, str] = field(default_factory=dict)
    new_faults: list[JobId] = field(default_factory=list)
    evicted: set[JobId] = field(default_factory=set)
    """Jobs whose lease was ended for them: they may not stay on the device."""
    unlooked: set[tuple[NodeId, JobId]] = field(default_factory=set)
    """Contexts of evicted jobs that showed as idle then, and that no agent has looked at since."""
    blocked_since: dict[JobId, float] = field(default_factory=dict)
    indeterminate: dict[tuple[NodeId, JobId], str] = field(default_factory=dict)
    """Contexts of which the driver has not said how an operation ended, and what the agent said of that."""
    unexplained: set[tuple[NodeId, JobId]] = field(default_factory=set)
    """Contexts that were saved, or may be, and that their agent no longer knows."""
    kill_failures: dict[tuple[NodeId, JobId], tuple[float, str]] = field(default_factory=dict)
    """Contexts on the device that could not be killed: since when, and why."""
    pauses: dict[ContextCall, float] = field(default_factory=dict)
    failures: dict[ContextCall, int] = field(default_factory=dict)
    group: GroupId = field(init=False)

    def __post_init__(self) -> None:
        self.group = self.config.group

    @property
    def is_known(self) -> bool:
        """Every node of the group is connected, so that what is kept of it is what is there; and there is one."""
        return bool(self.nodes) and all(node.is_connected for node in self.nodes)

    def contexts_of(self, job: JobId) -> Iterator[tuple[Node, ContextView]]:
        """Yield a job's contexts with their nodes, as last seen."""
        for node in self.nodes:
            context = node.context(self.group, job)
            if context is not None:
                yield node, context

    def has(self, job: JobId, *states: ContextState) -> bool:
        """Tell whether a context of the job is in one of these states on some node."""
        for node in self.nodes:
            context = node.context(self.group, job)
            if context is not None and context.state in states:
                return True
        return False

    def is_on_device(self, node: NodeId, job: JobId) -> bool:
        """Tell whether a job's context on a node may have anything on the device."""
        return any(
            other.id == node and context.state not in (ContextState.IDLE, ContextState.SAVED)
            for other, context in self.contexts_of(job)
        )

    def jobs(self) -> set[JobId]:
        """Return the jobs that have a context on any node."""
        return {job for node in self.nodes for job in node.contexts(self.group)}

    def unsaved_jobs(self) -> set[JobId]:
        """Return the jobs that have a context which is not saved on any node."""
        return {job for node in self.nodes for job in node.unsaved(self.group)}

    def is_enforced(self, job: JobId) -> bool:
        """Tell whether all contexts of the job can be locked, and their sizes are known when they are saved."""
        return all(context.can_be_locked for _, context in self.contexts_of(job))

    def is_torn(self, job: JobId) -> bool:
        """Tell whether a job is saved on some nodes and on the device, or about to be, on others."""
        return self.has(job, ContextState.SAVED) and self.has(job, ContextState.RUNNING, ContextState.TRANSITIONING)

    def unrest(self) -> set[JobId]:
        """Return the jobs that must go off the device although nobody may be waiting: evicted, or torn."""
        evicted = {job for job in self.evicted if self.has(job, ContextState.RUNNING) and job not in self.troubles}
        for node in self.nodes if self.unlooked else ():
            evicted |= self.unseen_on(node) - {self.resident} - self.troubles.keys()
        return evicted | {job for job in self.unsaved_jobs() if self.is_torn(job) and job not in self.troubles}

    def unseen_on(self, node: Node, seen: Collection[tuple[NodeId, JobId]] = ()) -> set[JobId]:
        """Return the jobs that may be on this node's device although their context was last seen idle.

        Agents notice by sampling that a process starts to use a device, so whoever held the group until now may have
        memory there that nobody has reported yet.
        """
        suspects = {job for where, job in self.unlooked if where == node.id}
        if self.resident is not None:
            suspects.add(self.resident)
        return {
            job
            for job in suspects
            if (node.id, job) not in seen
            and (context := node.context(self.group, job)) is not None
            and context.pids
        }

    def evict(self, job: JobId) -> None:
        """A job's lease was ended for it: it must go off the device, also where nobody has seen it there."""
        self.resident = None
        self.evicted.add(job)
        self.unlooked |= {
            (node.id, job) for node, context in self.contexts_of(job) if context.state is ContextState.IDLE
        }

    def welcome(self, job: JobId) -> None:
        """A job is granted: nothing is held against it any more."""
        self.resident = job
        self.heir = None
        self.troubles.pop(job, None)
        self.blocked_since.pop(job, None)
        self.evicted.discard(job)
        self.unlooked = {suspect for suspect in self.unlooked if suspect[1] != job}

    @property
    def is_heir_known(self) -> bool:
        """It can be found out whether the heir was unlocked."""
        heir = self.heir
        return heir is not None and self.is_known and not (
            self.operations.lets_on(heir) or self.has(heir, ContextState.TRANSITIONING)
        )

    def settle_heir(self) -> None:
        """Find out whether the heir was unlocked, now that every node is known: then it is who was let on last."""
        heir, self.heir = self.heir, None
        if heir is not None and self._is_unlocked(heir) and not (self.resident and self._is_unlocked(self.resident)):
            self.resident = heir

    def _is_unlocked(self, job: JobId) -> bool:
        return any(
            context.state is ContextState.RUNNING and not context.locked for _, context in self.contexts_of(job)
        )

    def silence_since(self, node: Node, now: float) -> float | None:
        """Return since when a node has not answered, if that is long enough to count."""
        if node.is_connected and not self.operations.silent_since:
            return None
        silences = [] if node.is_connected else [node.since_s]
        if node.id in self.operations.silent_since:
            silences.append(self.operations.silent_since[node.id])
        since_s = min(silences, default=None)
        return since_s if since_s is not None and now - since_s >= self.settings.unreachable_after_s else None

    def staying_on(self, node: Node, target: JobId | None, *, is_crowded: bool = False) -> set[JobId]:
        """Return the jobs whose locked contexts need not go: `target` is in place already, or fits beside them.

        The last holder always goes, since it is not known how much the next one will take; so do others when nothing of
        the target is there yet.
        """
        locked = {
            job
            for job, context in node.unsaved(self.group).items()
            if context.state is ContextState.RUNNING and context.locked and job not in (target, self.resident)
            and context.can_be_locked
        }
        if target is None or not locked:
            return set()
        own = node.context(self.group, target)
        if own is None or own.state is ContextState.IDLE:
            return set()
        if own.state is ContextState.SAVED and (is_crowded or self.shortage(node, target, locked)):
            return set()
        return locked

    def shortage(self, node: Node, target: JobId, staying: set[JobId]) -> int:
        """Return by how many bytes `target` does not fit on a node beside `staying`."""
        return shortage(node, self.group, target, staying, self.settings.restore_margin_bytes)

    def accelerators(self) -> tuple[str, ...]:
        """Return "NODE/ACCELERATOR" of each accelerator of the group, as far as its agents have said."""
        return tuple(
            f"{node.id}/{view.accelerator}" for node in self.nodes for view in node.accelerators_of(self.group)
        )

    def use_token(self, token: Token) -> None:
        """Send this token with every further call, now that it is durable."""
        self.token = max(self.token, token)

    @property
    def is_repairing(self) -> bool:
        """A job must be made whole before anything else."""
        return any(trouble.is_repairing for trouble in self.troubles.values())

    def publish_end(self, outcome: Outcome, now: float) -> None:
        """Tell people how an operation ended, and what starts with its end."""
        operation, result = outcome.operation, outcome.result
        elapsed_s = result.elapsed_s if result is not None else now - operation.started_s
        is_move = operation.kind in (OperationKind.SNAPSHOT, OperationKind.RESTORE)
        if outcome.end is End.DONE and is_move:
            self.publish(f"{operation.kind}_finished", operation.job, operation.node, elapsed_s)
            for other in self.operations.on(operation.node):
                if other.after == operation.id:
                    self.publish("restore_started", other.job, other.node)
        elif outcome.end not in (End.DONE, End.LOST):
            detail = f"{outcome.end}: {outcome.error}"
            self.publish(f"{operation.kind}_failed", operation.job, operation.node, elapsed_s, detail)

    def fault(self, job: JobId, reason: str) -> None:
        """Note that a job cannot be served until somebody acts."""
        if job not in self.faults:
            self.faults[job] = reason
            self.new_faults.append(job)
            self.publish("faulted", job, detail=reason)

    def retry_later(self, call: ContextCall, now: float) -> None:
        """Do not call so again for a while after it failed, longer each time."""
        self.failures[call] = self.failures.get(call, 0) + 1
        self.pause(call, self.backoff_s(min(self.failures[call], 6)), now)

    def succeeded(self, call: ContextCall) -> None:
        """A call for a context succeeded, or the context is gone."""
        self.failures.pop(call, None)
        self.pauses.pop(call, None)

    def pause(self, call: ContextCall, seconds: float, now: float) -> None:
        """Do not call so again for a while."""
        self.pauses[call] = now + seconds
        self.look_at(now + seconds, "/".join(call))

    def is_paused(self, call: ContextCall, now: float) -> bool:
        """Tell whether this call is not to be made now."""
        until_s = self.pauses.get(call)
        if until_s is not None and now >= until_s:
            del self.pauses[call]
            until_s = None
        return until_s is not None

    def can_call(self, node: Node, job: JobId, kind: OperationKind, now: float) -> bool:
        """Tell whether a context can be called now: nothing is under way for it, and no pause holds."""
        return (
            self.operations.of(node.id, job) is None
            and self.operations.can_call(node.id, now)
            and not self.is_paused((node.id, job, kind), now)
        )

    def backoff_s(self, tries: int) -> float:
        """Return the pause after so many failed tries."""
        return self.settings.backoff_s * 2.0 ** max(0, min(tries, 8) - 1) * self.ids.jitter()

    def look_at(self, at_s: float, subject: str) -> None:
        """Have the group look again at a time."""
        self.timers.set(Timer(self.group, "look", subject), at_s)

    def publish(
        self,
        kind: str,
        job: JobId | None = None,
        node: NodeId | None = None,
        duration_s: float | None = None,
        detail: str = "",
    ) -> None:
        """Tell people that something happened."""
        self.out.append(
            Publish(
                group=self.group,
                kind=kind,
                job=job,
                node=node,
                duration_s=duration_s,
                detail=detail,
                token=self.token or None,
            )
        )
