"""What the agents say: every node's contexts and accelerators, as far as they are known now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.core.events import NodeObserved
from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    ContextState,
    ContextView,
    Fence,
    GroupId,
    JobId,
    NodeId,
    ProcessRef,
)

UNEXPLAINED = "was saved, or may be; its agent shows it without a context, and no end of its processes explains that"


class Node:
    """One node. While it is not connected, what is kept of it is what was last seen, and nothing is decided by it."""

    def __init__(self, node: NodeId, now: float) -> None:
        self.id = node
        self.is_connected = False
        self.was_observed = False
        self.since_s = now
        """Since when it is connected, or not."""
        self.disconnect_reason = "its agent has not answered yet"
        self.incarnation = ""
        self.accelerators: dict[AcceleratorId, AcceleratorView] = {}
        """Not to be changed, except by `observe` and `change_accelerator`."""
        self._accelerators_by_group: dict[GroupId, dict[AcceleratorId, AcceleratorView]] = {}
        self.fences: dict[GroupId, Fence] = {}
        self._by_group: dict[GroupId, dict[JobId, ContextView]] = {}
        self._by_job: dict[JobId, dict[GroupId, ContextView]] = {}
        self._unsaved: dict[GroupId, dict[JobId, ContextView]] = {}

    def contexts(self, group: GroupId) -> dict[JobId, ContextView]:
        """Return the contexts of a group by job; not to be changed."""
        return self._by_group.get(group, {})

    def unsaved(self, group: GroupId) -> dict[JobId, ContextView]:
        """Return those contexts of a group that are not saved, by job; not to be changed.

        Few, however many jobs wait for their turn with their memory saved: decisions look at these.
        """
        return self._unsaved.get(group, {})

    def context(self, group: GroupId, job: JobId) -> ContextView | None:
        """Return one context; None: absent."""
        contexts = self._by_group.get(group)
        return contexts.get(job) if contexts is not None else None

    def jobs(self) -> Collection[JobId]:
        """Return the jobs that have a context here."""
        return self._by_job.keys()

    def has_process(self, job: JobId, process: ProcessRef) -> bool:
        """Tell whether the agent attests a process of a job now.

        One in a pod takes its host name, which is the pod's, for its node, unless it was told better; its pid is the
        pod's in any case.
        """
        contexts = self._by_job.get(job)
        if contexts is None or not self.is_connected:
            return False
        if process.node != self.id:
            return any(process in context.in_pods for context in contexts.values())
        return any(
            process.pid in context.pids
            or any((p.pid, p.start_time) == (process.pid, process.start_time) for p in context.in_pods)
            for context in contexts.values()
        )

    def accelerators_of(self, group: GroupId) -> list[AcceleratorView]:
        """Return the accelerators that belong to a group on this node."""
        return list(self._accelerators_by_group.get(group, {}).values())

    def observe(self, event: NodeObserved, now: float) -> set[GroupId]:
        """Take over a node's whole state; return the groups of which something is, or was, known here."""
        touched = set(self._by_group)
        before = {(view.group, view.job): view for contexts in self._by_group.values() for view in contexts.values()}
        self.is_connected = True
        self.was_observed = True
        self.since_s = now
        self.incarnation = event.incarnation
        self.accelerators = {}
        self._accelerators_by_group = {}
        for accelerator in event.accelerators:
            self.change_accelerator(accelerator)
        self.fences = {fence.group: fence for fence in event.fences}
        self._by_group = {}
        self._by_job = {}
        self._unsaved = {}
        for view in event.contexts:
            self._store(_explained(before.get((view.group, view.job)), view))
        touched.update(self._by_group)
        for accelerator in event.accelerators:
            touched.update(accelerator.groups)
        return touched

    def change_accelerator(self, view: AcceleratorView) -> None:
        """Take over what the agent says of one accelerator."""
        before = self.accelerators.get(view.accelerator)
        for group in before.groups if before is not None else ():
            if group not in view.groups:
                self._accelerators_by_group[group].pop(view.accelerator, None)
        self.accelerators[view.accelerator] = view
        for group in view.groups:
            self._accelerators_by_group.setdefault(group, {})[view.accelerator] = view

    def disconnect(self, reason: str, now: float) -> None:
        """Note that the agent cannot be heard."""
        if self.is_connected:
            self.is_connected = False
            self.since_s = now
        self.disconnect_reason = reason or "its agent does not answer"

    def change(self, view: ContextView) -> None:
        """Take over what the agent says of one context."""
        self._store(_explained(self.context(view.group, view.job), view))

    def conclude(self, view: ContextView) -> None:
        """Take over what the end of an operation says of a context."""
        self._store(view)

    def forget(self, group: GroupId, job: JobId) -> None:
        """Note that a context is absent."""
        if self._by_group.get(group, {}).pop(job, None) is None:
            return
        if not self._by_group[group]:
            del self._by_group[group]
        self._unsaved.get(group, {}).pop(job, None)
        del self._by_job[job][group]
        if not self._by_job[job]:
            del self._by_job[job]

    def explain(self, group: GroupId, job: JobId) -> bool:
        """Believe the agent that a context is not there, on an operator's word; tell whether that was in doubt."""
        view = self.context(group, job)
        if view is None or not is_unexplained(view):
            return False
        self._store(replace(view, state=ContextState.IDLE, reason=""))
        return True

    def _store(self, view: ContextView) -> None:
        self._by_group.setdefault(view.group, {})[view.job] = view
        self._by_job.setdefault(view.job, {})[view.group] = view
        unsaved = self._unsaved.setdefault(view.group, {})
        if view.state is ContextState.SAVED:
            unsaved.pop(view.job, None)
        else:
            unsaved[view.job] = view


def is_unexplained(view: ContextView) -> bool:
    """Tell whether a context was saved and is now shown as if it had never been (an agent without memory)."""
    return view.reason == UNEXPLAINED


def _explained(before: ContextView | None, after: ContextView) -> ContextView:
    """A saved context does not become idle unless its processes ended: keep it as unknown until they have."""
    if before is None or after.state is not ContextState.IDLE:
        return after
    was_saved = before.state is ContextState.SAVED or is_unexplained(before)
    same_processes = before.pids == after.pids or bool(before.pids & after.pids)
    if was_saved and same_processes:
        return replace(after, state=ContextState.TRANSITIONING, reason=UNEXPLAINED)
    return after
