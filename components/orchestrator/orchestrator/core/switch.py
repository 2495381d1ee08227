"""One switch: takes contexts off the accelerators of all nodes, and brings the next holder's there.

Driven by what is observed (`switch_steps`): forward, or, when a context could not be saved, back until its job is whole
again. Does nothing before its intent is durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from orchestrator.core.nodes import Node
from orchestrator.core.operations import End, OperationKind, Outcome
from orchestrator.core.site import Site, Trouble
from orchestrator.core.switch_steps import Bring, Lock, Save, Step, Wait, barrier_steps, forward_steps, repair_steps
from orchestrator.core.types import ContextState, ContextView, JobId, NodeId, OnUnsaveable, Token

KILL_AGAIN_S = 10.0


class Phase(StrEnum):
    """Where a switch is."""

    RECORDING = "recording"
    FORWARD = "forward"
    REPAIR = "repair"
    BLOCKED = "blocked"
    PLACED = "placed"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a switch cannot go on by itself."""

    job: JobId
    reason: str
    missing_bytes: int
    retry_s: float


class Switch:
    """Brings `target` (None: nobody) onto the device and everybody else off it."""

    def __init__(self, site: Site, target: JobId | None, token: Token, now: float) -> None:
        self._site = site
        self.target = target
        self.token = token
        self.started_s = now
        self.phase = Phase.RECORDING
        self.has_restored = False
        self.blocked: Blocked | None = None
        self._not_before_s = now
        self._restore_tries = 0
        self._restore_error = ""
        self._is_crowded = False
        self._kill_again_s: dict[NodeId, float] = {}
        self.seen: set[tuple[NodeId, JobId]] = set()
        """Contexts that an agent has looked at since this switch began."""
        self._locked_idle: set[tuple[NodeId, JobId]] = set()
        """Contexts that were locked in this switch: if one of them still shows as idle, its lock holds all the same."""
        self._is_expected = False

    def intend(self, token: Token) -> None:
        """Go on under this token, once that is recorded."""
        self.token = token
        self.phase = Phase.RECORDING
        self.blocked = None

    def recorded(self) -> None:
        """The intent is durable: go on with the next `advance`."""
        if self.phase is Phase.RECORDING:
            self.phase = Phase.FORWARD

    def advance(self, now: float, *, is_expected: bool = False) -> None:
        """Take every step that can be taken now; `is_expected`: somebody is there to be granted when it is done."""
        self._is_expected = is_expected
        for _ in range(8):
            before = self.phase
            match before:
                case Phase.RECORDING:
                    return
                case Phase.FORWARD | Phase.PLACED:
                    self._forward(now)
                case Phase.REPAIR:
                    self._repair(now)
                case Phase.BLOCKED:
                    self._reconsider(now)
                case _:
                    assert_never(before)
            if self.phase is before:
                return

    def note(self, outcome: Outcome, now: float) -> None:
        """Take account of how an operation ended; `advance` decides what follows."""
        site, operation = self._site, outcome.operation
        if outcome.end is End.DONE and operation.kind is OperationKind.RESTORE and operation.job == self.target:
            self.has_restored = True
        if operation.kind is OperationKind.SNAPSHOT and outcome.end in (End.DONE, End.FAILED, End.GONE):
            self.seen.add((operation.node, operation.job))
            site.unlooked.discard((operation.node, operation.job))
        if operation.kind is OperationKind.LOCK and outcome.end is End.DONE:
            self._locked_idle.add((operation.node, operation.job))
        if outcome.end not in (End.FAILED, End.INDETERMINATE):
            return
        site.retry_later((operation.node, operation.job, operation.kind), now)
        is_target = operation.job == self.target
        match operation.kind:
            case OperationKind.RESTORE if is_target:
                self._restore_tries += 1
                self._restore_error = f"node {operation.node}: {outcome.error}"
                self._is_crowded = True
                self._wait(self._restore_tries, now)
            case OperationKind.SNAPSHOT if is_target:
                for trouble in site.troubles.values():
                    trouble.repair_tries += trouble.is_repairing
            case OperationKind.LOCK if is_target:
                pass
            case OperationKind.SNAPSHOT | OperationKind.LOCK:
                trouble = site.troubles.setdefault(operation.job, Trouble())
                cannot_lock = operation.kind is OperationKind.LOCK
                trouble.failed(f"node {operation.node}: {outcome.error}", cannot_lock=cannot_lock)
            case OperationKind.RESTORE:
                if operation.job in site.troubles:
                    site.troubles[operation.job].repair_tries += 1
            case OperationKind.UNLOCK:
                pass
            case _:
                assert_never(operation.kind)

    # ------------------------------------------------------------ forward

    def _forward(self, now: float) -> None:
        site = self._site
        self.phase = Phase.FORWARD
        if site.is_repairing:
            self.phase = Phase.REPAIR
            return
        self._forget_troubles()
        if now < self._not_before_s or not all(node.was_observed for node in site.nodes) or self._is_target_lost(now):
            return
        unsaveable = self._unsaveable_beside(now)
        if unsaveable is None:
            return
        if not self._pass_barrier(unsaveable, now):
            return
        moving = site.unsaved_jobs() if self.target is not None else site.unrest()
        todo: list[tuple[Node, list[Step]]] = []
        for node in site.nodes:
            staying = unsaveable | site.staying_on(node, self.target, is_crowded=self._is_crowded)
            unsaved = {job: view for job, view in node.unsaved(site.group).items() if job in moving}
            own = node.context(site.group, self.target) if self.target is not None else None
            todo.append((node, forward_steps(unsaved, self.target, own, staying, site.unseen_on(node, self.seen))))
        unready = [node for node, steps in todo if steps or not node.is_connected or site.operations.on(node.id)]
        last = self._last_to_come(todo, unready)
        for node, steps in todo:
            self._perform(node, steps, now, lets_on=node is last)
        if not unready:
            self.phase = Phase.PLACED
            if self.blocked is not None:
                site.publish("unblocked", self.blocked.job)
            self.blocked = None

    def _last_to_come(self, todo: list[tuple[Node, list[Step]]], unready: list[Node]) -> Node | None:
        """Return the node where the target may be unlocked as soon as it is back there, if there is one: all that is
        left to be done anywhere is its restore, and perhaps one snapshot before that; and it has no context elsewhere.
        """
        site, target = self._site, self.target
        if target is None or not self._is_expected or len(unready) != 1 or not site.is_enforced(target):
            return None
        [node] = unready
        if [other for other, _ in site.contexts_of(target)] != [node]:
            return None
        leaving: JobId | None = None
        match next(steps for other, steps in todo if other is node):
            case [Bring(after=None)]:
                pass
            case [Save(job), Bring(after=after)] if after == job:
                leaving = job
            case _:
                return None
        under_way = [operation for operation in site.operations.on(node.id) if operation.job != leaving]
        return None if under_way else node

    def _forget_troubles(self) -> None:
        """A job that is off the device gives no trouble any more."""
        site = self._site
        for job in list(site.troubles):
            if not site.has(job, ContextState.RUNNING, ContextState.TRANSITIONING, ContextState.FAULTED):
                del site.troubles[job]
                site.blocked_since.pop(job, None)

    def _is_target_lost(self, now: float) -> bool:
        """Give up on a target that cannot be brought back; tell whether the switch must stop here."""
        site, target = self._site, self.target
        if target is None:
            return False
        if site.has(target, ContextState.FAULTED):
            reasons = [view.reason for _, view in site.contexts_of(target) if view.state is ContextState.FAULTED]
            site.fault(target, reasons[0] or "its context is in the driver's FAILED state")
        elif self._restore_tries >= site.settings.max_tries:
            missing = max((site.shortage(node, target, set()) for node in site.nodes), default=0)
            has_figures = all(view.total_bytes for node in site.nodes for view in node.accelerators_of(site.group))
            if missing and has_figures and site.is_enforced(target):
                self._block(target, self._restore_error + self._strangers(), missing, now)
                return True
            site.fault(target, f"its context could not be brought back: {self._restore_error}")
        return target in site.faults

    def _strangers(self) -> str:
        pids = [
            f"{node.id}: {', '.join(map(str, view.unmanaged_pids))}"
            for node in self._site.nodes
            for view in node.accelerators_of(self._site.group)
            if view.unmanaged_pids
        ]
        return f" (processes of no known job on the accelerators: {'; '.join(pids)})" if pids else ""

    def _unsaveable_beside(self, now: float) -> set[JobId] | None:
        """Return the jobs that must stay where they are, locked; None: the target does not fit beside them."""
        if self.target is None:
            return set()
        stuck = self._stuck()
        obstacle = self._obstacle(stuck)
        if obstacle is not None:
            self._block(*obstacle, now)
            return None
        return stuck

    def _stuck(self) -> set[JobId]:
        """Return the jobs on the device that cannot be saved."""
        site = self._site
        unsaveable = {
            job
            for job, trouble in site.troubles.items()
            if trouble.tries >= site.settings.max_tries and site.has(job, ContextState.RUNNING)
        }
        failed = {
            job
            for node in site.nodes
            for job, view in node.unsaved(site.group).items()
            if view.state is ContextState.FAULTED
        }
        return (unsaveable | failed) - {self.target}

    def _obstacle(self, stuck: set[JobId]) -> tuple[JobId, str, int] | None:
        """Return who of `stuck` stands in the target's way, why, and how many bytes are missing; None: nobody."""
        missing = self._missing_beside(stuck) if stuck else 0
        for job in sorted(stuck):
            trouble = self._site.troubles.get(job, Trouble(reason="its context is in the driver's FAILED state"))
            if trouble.cannot_lock or missing or not self._site.is_enforced(job):
                return job, trouble.reason, missing
        return None

    def _missing_beside(self, staying: set[JobId]) -> int:
        site, target = self._site, self.target
        assert target is not None, "nobody has to fit when nobody is to be granted"
        here = [(node, {job for job in staying if node.context(site.group, job) is not None}) for node in site.nodes]
        return max((site.shortage(node, target, jobs) for node, jobs in here if jobs), default=0)

    def _pass_barrier(self, unsaveable: set[JobId], now: float) -> bool:
        """Lock, on all nodes, the jobs that are on several, and those that stay; tell whether all are locked."""
        site = self._site
        if len(site.nodes) == 1 and not unsaveable:
            return True
        leaving = site.unsaved_jobs() - {self.target} if self.target is not None else site.unrest()
        places = Counter(
            job
            for node in site.nodes
            for job, view in node.unsaved(site.group).items()
            if job in leaving and self._may_be_on_device(node, view)
        )
        spread = {job for job in leaving if job in unsaveable or places[job] > 1}
        if not spread:
            return True
        has_passed = True
        for node in site.nodes:
            unlooked = site.unseen_on(node, self.seen | self._locked_idle)
            steps = barrier_steps(node.contexts(site.group), sorted(spread), unlooked)
            locks = [step for step in steps if isinstance(step, Lock)]
            if locks:
                has_passed = False
                self._perform(node, locks, now)
        return has_passed

    def _may_be_on_device(self, node: Node, view: ContextView) -> bool:
        """Tell whether a context has, or may have without an agent's having seen it, something on the device."""
        if view.state is ContextState.IDLE:
            return view.job in self._site.unseen_on(node, self.seen)
        return view.state in (ContextState.RUNNING, ContextState.TRANSITIONING)

    # ------------------------------------------------------------ repair

    def _repair(self, now: float) -> None:
        unfinished = [
            job
            for job, trouble in list(self._site.troubles.items())
            if trouble.is_repairing and not self._repair_job(job, trouble, now)
        ]
        if not unfinished:
            self.phase = Phase.FORWARD

    def _repair_job(self, job: JobId, trouble: Trouble, now: float) -> bool:
        """Bring a job towards being whole again; tell whether it is."""
        site = self._site
        if site.has(job, ContextState.FAULTED) or trouble.repair_tries >= site.settings.max_tries:
            site.fault(job, f"it could neither be saved nor brought back whole: {trouble.reason}")
        if job in site.faults:
            trouble.is_repairing = False
            return True
        is_busy = any(site.operations.of(node.id, job) is not None for node in site.nodes)
        has_saved = site.has(job, ContextState.SAVED)
        if has_saved and not site.has(job, ContextState.RUNNING, ContextState.TRANSITIONING):
            if is_busy or not site.is_known:
                return False
            trouble.is_repairing = False  # it is saved everywhere after all
            return True
        if has_saved:
            for node in site.nodes:
                steps = repair_steps(node.contexts(site.group), job, self._in_the_way(node, job))
                self._perform(node, steps, now)
            return False
        if is_busy or not site.is_known or site.has(job, ContextState.TRANSITIONING):
            return False
        locked = [(node, view) for node, view in site.contexts_of(job)
                  if view.locked and view.state is ContextState.RUNNING]
        if job == site.resident and locked:
            for node, _ in locked:
                if site.can_call(node, job, OperationKind.UNLOCK, now):
                    site.operations.unlock(node.id, job, site.token, now)
            return False
        trouble.is_repairing = False
        if trouble.tries < site.settings.max_tries:
            self._wait(trouble.tries, now)
        return True

    def _in_the_way(self, node: Node, job: JobId) -> list[JobId]:
        """Return who must go from a node before a torn job can come back there: the target's copy, and those who are
        not torn by it in their turn. If that is not enough, the restore is refused and counts as a failed repair."""
        site = self._site
        on_device = {
            other
            for other, view in node.unsaved(site.group).items()
            if other != job and view.state in (ContextState.RUNNING, ContextState.TRANSITIONING)
        }
        if not on_device or not site.shortage(node, job, on_device):
            return []
        return sorted(other for other in on_device if other == self.target or not self._is_elsewhere(other, node))

    def _is_elsewhere(self, job: JobId, here: Node) -> bool:
        trouble = self._site.troubles.get(job)
        return (trouble is not None and trouble.is_repairing) or any(
            node.id != here.id and view.state in (ContextState.RUNNING, ContextState.TRANSITIONING)
            for node, view in self._site.contexts_of(job)
        )

    # ------------------------------------------------------------ blocked

    def _block(self, job: JobId, reason: str, missing_bytes: int, now: float) -> None:
        site = self._site
        retry_s = now + site.settings.blocked_retry_s
        if job not in site.blocked_since:
            site.blocked_since[job] = now
            site.publish("blocked", job, detail=f"{reason} ({missing_bytes} bytes short)")
        self.blocked = Blocked(job, reason, missing_bytes, retry_s)
        self.phase = Phase.BLOCKED
        site.look_at(retry_s, "blocked")

    def _reconsider(self, now: float) -> None:
        """Go on when the cause is gone, or when it is time to try once more."""
        site, blocked = self._site, self.blocked
        assert blocked is not None
        if blocked.job == self.target:
            is_over = not any(site.shortage(node, blocked.job, set()) for node in site.nodes)
        else:
            obstacle = self._obstacle(self._stuck())
            is_over = obstacle is None
            if obstacle is not None and obstacle[0] != blocked.job:
                self.blocked = blocked = Blocked(*obstacle, blocked.retry_s)
                site.blocked_since.setdefault(blocked.job, now)
        if is_over or now >= blocked.retry_s:
            if is_over:
                self.blocked = None  # else it shows on while one more try is made
            else:
                for trouble in site.troubles.values():
                    trouble.tries = min(trouble.tries, site.settings.max_tries - 1)
                    trouble.cannot_lock = False
                    trouble.repair_tries = 0
            self._restore_tries = min(self._restore_tries, site.settings.max_tries - 1)
            self.phase = Phase.FORWARD
        elif site.config.on_unsaveable is OnUnsaveable.KILL and blocked.job != self.target:
            self._kill(blocked, now)

    def _kill(self, blocked: Blocked, now: float) -> None:
        site = self._site
        due_s = site.blocked_since[blocked.job] + site.config.kill_grace_s
        if now < due_s:
            site.look_at(due_s, "kill")
            return
        for node, _ in site.contexts_of(blocked.job):
            if node.is_connected and now >= self._kill_again_s.get(node.id, now):
                site.publish("killed", blocked.job, node.id, detail=blocked.reason)
                site.operations.kill(node.id, blocked.job, site.token, blocked.reason)
                self._kill_again_s[node.id] = now + KILL_AGAIN_S
                site.look_at(now + KILL_AGAIN_S, "kill")

    # ------------------------------------------------------------ doing

    def _wait(self, tries: int, now: float) -> None:
        self._not_before_s = now + self._site.backoff_s(tries)
        self._site.look_at(self._not_before_s, "switch")

    def _perform(self, node: Node, steps: Iterable[Step], now: float, *, lets_on: bool = False) -> None:
        """Ask the node's agent for what is not already under way; `lets_on`: who is brought is to be unlocked too."""
        site, operations = self._site, self._site.operations
        for step in steps:
            match step:
                case Wait():
                    pass
                case Lock(job):
                    if site.can_call(node, job, OperationKind.LOCK, now):
                        operations.lock(node.id, job, site.token, now)
                case Save(job):
                    if site.can_call(node, job, OperationKind.SNAPSHOT, now):
                        operations.save(node.id, job, site.token, now)
                        site.publish("snapshot_started", job, node.id)
                case Bring(job, after):
                    before = operations.of(node.id, after) if after is not None else None
                    if not site.can_call(node, job, OperationKind.RESTORE, now):
                        continue
                    if after is not None and (before is None or before.kind is not OperationKind.SNAPSHOT):
                        continue
                    if lets_on:
                        site.heir = job
                    operations.bring(node.id, job, site.token, now, after=before, leave_locked=not lets_on)
                    if after is None:
                        site.publish("restore_started", job, node.id)
                case _:
                    assert_never(step)
