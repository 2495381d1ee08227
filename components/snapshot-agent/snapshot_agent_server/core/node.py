"""The agent's state machine: contexts, operations and fences of one node. Events in, effects out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from snapshot_agent_server.core.accelerators import Accelerators
from snapshot_agent_server.core.admission import Admission
from snapshot_agent_server.core.contexts import ContextView, ProcessRecord
from snapshot_agent_server.core.effects import (
    Accept,
    Effect,
    Emptied,
    EndStreamsBelow,
    ForgetProcess,
    ForgetTrees,
    KillProcesses,
    ListMembers,
    PublishContext,
    PublishGone,
    PublishGroups,
    PublishOperation,
    RecordEpoch,
    RecordFence,
    RecordGroups,
    RecordPods,
    Refuse,
    TakeSample,
    WatchProcess,
)
from snapshot_agent_server.core.events import (
    Answered,
    ChannelEnded,
    Closing,
    CommandAnswered,
    EpochSeen,
    Event,
    GroupsChanged,
    KillRequested,
    MembersListed,
    ObservedProcess,
    PodsChanged,
    ProcessEnded,
    Registered,
    Requested,
    Sampled,
    Woken,
)
from snapshot_agent_server.core.fences import Fences
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import ContextKey, GroupId, OperationId, PodUid, ProcessId
from snapshot_agent_server.core.memory import Memory
from snapshot_agent_server.core.operations import Kind, Operation
from snapshot_agent_server.core.outcomes import DriverState, Gone
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.queue import Queue
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.samples import AcceleratorView, Sample
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.workloads import WorkloadState


class Node:
    def __init__(self, settings: CoreSettings, incarnation: str = "") -> None:
        """`incarnation`: another one with every start of the agent."""
        self._settings = settings
        self.fences = Fences(settings.allow_unfenced)
        self.registry = Registry(settings)
        self.admission = Admission()
        self._queue = Queue(settings, self.registry, self.admission, self.fences, incarnation)
        self._commander = self._queue.commander
        self._accelerators = Accelerators(self.registry)
        self._published: dict[ContextKey, ContextView] = {}
        self._is_closing = False
        self._listings = 0

    # -- what the shell may read

    def operation(self, operation: OperationId) -> Operation | None:
        return self._queue.operations.get(operation)

    def views(self) -> list[ContextView]:
        return [self._view(key) for key, context in self.registry.contexts.items() if context.is_present]

    def accelerator_views(self) -> list[AcceleratorView]:
        return self._accelerators.views()

    def is_idle(self) -> bool:
        """No operation is running or waiting."""
        return not self._queue.active

    def pids_to_ask(self, now: float) -> list[int]:
        """Whose driver state the next sample shall bring: those who may start CUDA unseen, and the suspect."""
        busy = self._queue.busy()
        return [
            pid
            for key, context in self.registry.contexts.items()
            if key not in busy
            for pid, process in context.processes.items()
            if process.state is DriverState.NONE or not process.state.is_settled or process.suspect_until > now
        ]

    def next_wake(self, now: float) -> float | None:
        """When `Woken` is due, seconds on the monotonic clock; None: only an event can change anything."""
        times = (self._queue.wake_at(now), self.admission.wake_at(now), self._commander.next_overdue())
        return min((time for time in times if time is not None), default=None)

    # -- events

    def recover(self, memory: Memory, now: float) -> list[Effect]:
        """Take up what an earlier agent on this node left. Call once, before any event.

        The states of the processes in `memory` are the driver's own answers, or UNKNOWN.
        """
        self.fences.epoch = memory.epoch
        self.fences.tokens.update(memory.tokens)
        self.admission.turns.update(memory.turns)
        effects: list[Effect] = []
        if self._settings.is_in_cluster:
            self.registry.pods.change(memory.pods, (), ())
            if memory.groups is not None:
                self.registry.groups.change(memory.groups, ())
        for key, record in memory.processes:
            record.left_as = record.state
            record.suspect_until = now + self._settings.suspect_s  # calls of the earlier agent may take effect yet
            self.registry.restore(key, record)
            effects.append(WatchProcess(record.id))
        for key, tree in memory.trees:
            if key in self.registry.contexts:
                self.registry.plant(key, tree)
            else:
                effects.append(ForgetTrees(key))  # all members were listed, and there is none
        for workload in memory.workloads:
            effects += self._commander.restore(workload, now)
        self._queue.recover(memory.operations, now)
        effects += self._queue.heal(self.registry.contexts, now)
        return _ends_last(effects + self._follow_up(now))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event at `now` (seconds, monotonic clock); return what the shell must do, in that order."""
        match event:
            case Registered():
                effects = self._register(event, now)
            case Requested():
                effects = self._request(event, now)
                if event.then is not None:
                    effects += self._request(event.then, now)
            case KillRequested():
                effects = self._kill(event)
            case EpochSeen(call, epoch):
                stale = self.fences.check_epoch(epoch)
                effects = [Refuse(call, stale)] if stale else [*self._raise((), 0, epoch), Accept(call)]
            case Answered(process=process, outcome=Gone()):
                effects = self._end(process) + self._queue.answered(event, now)
            case Answered():
                effects = self._queue.answered(event, now)
            case ProcessEnded(process):
                effects = self._end(process)
            case MembersListed():
                effects = self._listed(event, now)
            case CommandAnswered(_, result):
                effects = self._commander.answered(result, now)
            case ChannelEnded(connection, is_closed):
                key = self._commander.lost(connection, now)
                closed = "its workload closed its registration"
                effects = self._end_workload(key, closed) if is_closed and key is not None else []
            case PodsChanged(pods, others):
                effects = self._pods_changed(pods, others)
            case GroupsChanged(claims):
                effects = self._groups_changed(claims)
            case Sampled(sample):
                effects = self._sampled(sample, now)
            case Woken():
                effects = []
            case Closing():
                self._is_closing = True
                effects = []
            case _:
                assert_never(event)
        return _ends_last(effects + self._follow_up(now))

    def _register(self, event: Registered, now: float) -> list[Effect]:
        refusal = self._unknown_group(event.key.group) or self.registry.refusal(event.key, event.processes)
        refusal = refusal or self._commander.refusal(event.key, event.offer)
        if refusal is not None:
            return [Refuse(event.call, refusal)]
        self._queue.found(event.key)
        effects = self._join(event.key, event.processes, now)
        if event.tree is not None:
            effects += self.registry.plant(event.key, event.tree)
        if event.offer is not None:
            effects += self._commander.register(event.key, event.offer, now)
            self.registry.contexts[event.key].emptied = 0
            if DriverState.LOCKED in self.registry.contexts[event.key].states():
                effects += self._queue.repair(Kind.UNLOCK, event.key, now)  # else its callbacks would hang
        return [*effects, Accept(event.call)]

    def _kill(self, event: KillRequested) -> list[Effect]:
        """No operation: it waits for none, and those under way end as gone when the processes have ended."""
        key = ContextKey(event.job, event.group) if event.group is not None else None
        keys = (key,) if key is not None else self.registry.of_job(event.job)
        groups = [key.group for key in keys]
        refusal = self._closing() or (self._unknown_group(event.group) if event.group is not None else None)
        refusal = refusal or self.fences.check(groups, event.token, event.epoch)
        processes = tuple(record.id for record in self.registry.records(keys)) or self._commander.servers(keys)
        if refusal is None and not processes and self._commander.commands_any(keys):
            text = f"nobody knows the processes of job {event.job!r}, which registered callbacks only; end them by hand"
            refusal = Refusal(RefusalKind.NOT_DONE, text)
        if refusal is None and not processes:
            where = f" in group {event.group!r}" if event.group is not None else ""
            text = f"job {event.job!r} has no context{where} on this node: nothing to kill."
            refusal = Refusal(RefusalKind.UNKNOWN_CONTEXT, text)
        if refusal is not None:
            return [Refuse(event.call, refusal)]
        effects = self._raise(groups, event.token, event.epoch)
        return [*effects, KillProcesses(event.call, keys, processes, event.reason)]

    def _closing(self) -> Refusal | None:
        text = "the agent is shutting down; nothing was changed. Ask again when it is back."
        return Refusal(RefusalKind.CLOSING, text) if self._is_closing else None

    def _request(self, event: Requested, now: float) -> list[Effect]:
        closing = self._closing()
        if closing is not None:
            return [Refuse(event.call, closing)]
        unknown = self._unknown_group(event.group) if event.group is not None else None
        keys: tuple[ContextKey, ...]
        if event.group is not None:
            keys = (ContextKey(event.job, event.group),)
        else:
            keys = self.registry.of_job(event.job)
            if event.targets and not keys and len(self.registry.groups) == 1:
                keys = tuple(ContextKey(event.job, group) for group in self.registry.groups)
            if event.targets and len(keys) != 1:
                text = "a request that names processes must name the group too"
                unknown = Refusal(RefusalKind.BAD_PROCESS, text)
        groups = [key.group for key in keys]
        refusal = unknown or self.fences.check(groups, event.token, event.epoch)
        if refusal is None and event.targets:
            refusal = self.registry.refusal(keys[0], event.targets)
        if refusal is not None:
            return [Refuse(event.call, refusal)]
        effects = self._raise(groups, event.token, event.epoch)
        if event.targets:
            effects += self._join(keys[0], event.targets, now)
        return effects + self._queue.requested(event, keys, now)

    def _unknown_group(self, group: GroupId) -> Refusal | None:
        if group in self.registry.groups:
            return None
        known = ", ".join(map(repr, sorted(self.registry.groups))) or "none"
        return Refusal(
            RefusalKind.UNKNOWN_GROUP,
            f"no group {group!r} on this node; it has {known}. Check the name, or which accelerators are in which group"
            " (--group of the agent; in a cluster TimeSliceGroups).",
        )

    def _raise(self, groups: Iterable[GroupId], token: int, epoch: int) -> list[Effect]:
        groups = list(groups)
        is_new_leader = epoch > self.fences.epoch
        tokens = dict(self.fences.tokens)
        if not self.fences.raise_to(groups, token, epoch):
            return []
        effects: list[Effect] = [RecordFence(g, token) for g in groups if token > tokens.get(g, 0)]
        if is_new_leader:
            effects += [RecordEpoch(epoch), EndStreamsBelow(epoch)]
        return effects

    def _end(self, process: ProcessId) -> list[Effect]:
        """A process has ended; with its last process a context is gone, and with who served it a workload."""
        effects: list[Effect] = []
        key = self.registry.key_of(process.pid)
        record = self.registry.record(process)
        if key is not None and record is not None:
            effects += [*self.registry.leave(process), TakeSample()]
            context = self.registry.contexts[key]
            if not context.processes:
                context.last_ended = record
                effects += self._emptied(key)
        for key in self._commander.served_by(process):
            effects += self._end_workload(key, f"process {process.pid}, which served its callbacks, ended")
        return effects

    def _end_workload(self, key: ContextKey, reason: str) -> list[Effect]:
        """A workload will not come back, nor its context, unless that has processes, which the driver saves."""
        context = self.registry.contexts[key]
        if context.processes:
            return self._commander.end(key, reason)
        if not self.registry.is_open(key):
            return self._gone(key, reason)
        if context.workload is not None and context.workload.state is WorkloadState.SAVED:
            self._queue.lost(key, f"{reason} while it was saved")
        return [*self._commander.end(key, reason), *self._emptied(key, reason)]

    def _join(self, key: ContextKey, processes: Sequence[ObservedProcess], now: float) -> list[Effect]:
        """Take in processes that somebody named. What they leave may be empty then."""
        effects = self.registry.join(key, processes, now)
        if any(isinstance(effect, ForgetProcess) for effect in effects):
            for other in [other for other, context in self.registry.contexts.items() if not context.is_present]:
                effects += self._emptied(other)
        return effects

    def _emptied(self, key: ContextKey, reason: str = "") -> list[Effect]:
        """The last that was known of a context is gone; those of a tree may have left children that nobody has seen."""
        if not self.registry.is_open(key):
            return self._gone(key, reason)
        self._listings += 1
        self.registry.contexts[key].emptied = self._listings
        jobs = (key.job,) if self.registry.pods.of_job(key.job) else ()
        return [ListMembers(emptied=Emptied(key, self._listings, reason), jobs=jobs)]

    def _gone(self, key: ContextKey, reason: str = "") -> list[Effect]:
        context = self.registry.contexts[key]
        ended, workload = context.last_ended, context.workload
        if not reason:
            reason = f"process {ended.id.pid}, the last of context {key}, ended" if ended is not None else "no process"
        was_saved = ended is not None and bool(ended.saved)
        effects: list[Effect] = []
        if workload is not None:
            was_saved = was_saved or workload.state is WorkloadState.SAVED
            effects += self._commander.end(key, reason)
        self.registry.drop(key)
        self._published.pop(key, None)
        if was_saved:
            self._queue.lost(key, f"{reason} while it was saved")
        if not self.registry.of_job(key.job) and self.registry.pods.left(key.job):
            effects.append(RecordPods(tuple(self.registry.pods.known.values())))
        if key.group not in self.registry.groups_in_use() and self.registry.groups.unused(key.group):
            effects += self._publish_groups()
        return [*effects, *self.registry.fell(key), *self.admission.gone(key), PublishGone(key, reason)]

    def _listed(self, event: MembersListed, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key, observed in event.found:
            record = self.registry.record(observed.id)
            if record is None and key in self.registry.trees:
                effects += self.registry.join(key, (observed,), now, is_found=True)
            elif record is not None and record.state is DriverState.NONE:
                self._asked(record, observed, now)
        for pod, observed in event.in_pods:
            effects += self._seen_in(pod, observed, event.operation is not None, now)
        if event.emptied is not None:
            key = event.emptied.key
            context = self.registry.contexts.get(key)
            if context is not None and context.emptied == event.emptied.number:
                context.emptied = 0
                effects += self._gone(key, event.emptied.reason) if not context.processes else []
        pods = self.registry.pods
        unplaced = {pods.known[pod].job for pod, observed in event.in_pods if self._is_unplaced(pod, observed)}
        self._queue.listed(event.operation, unplaced, now)
        return effects

    def _seen_in(self, pod: PodUid, observed: ObservedProcess, is_waited_for: bool, now: float) -> list[Effect]:
        """A process of a pod joins its job's context when it uses a device; what does not is in nobody's way.

        `is_waited_for`: an operation must not miss it, so that one of which the driver said nothing joins too.
        """
        uses = observed.usage or observed.state not in (DriverState.NONE, DriverState.UNKNOWN)
        uses = uses or (is_waited_for and observed.state is DriverState.UNKNOWN)
        registry = self.registry
        key = registry.pods.key(pod, dict(observed.usage), registry.groups, registry.contexts)
        if key is None or not uses or self.registry.record(observed.id) is not None:
            return []
        self._queue.found(key)
        return self.registry.join(key, (replace(observed, pod=pod),), now, is_found=True)

    def _is_unplaced(self, pod: PodUid, observed: ObservedProcess) -> bool:
        """Nobody said whether the process uses a device, nor of which group: its pod does not name one."""
        known = self.registry.pods.known.get(pod)
        is_unsaid = observed.state is DriverState.UNKNOWN and not observed.usage
        is_unsaid = is_unsaid and known is not None and known.group is None
        return is_unsaid and self.registry.record(observed.id) is None

    def _pods_changed(self, pods: Sequence[Pod], others: Collection[PodUid]) -> list[Effect]:
        # What a waiting operation looks for may be in a pod that is deleted meanwhile.
        jobs = self.registry.jobs() | {key.job for key in self._queue.busy()}
        if not self.registry.pods.change(pods, others, jobs):
            return []
        return [RecordPods(tuple(self.registry.pods.known.values())), TakeSample()]

    def _groups_changed(self, claims: Sequence[GroupClaim]) -> list[Effect]:
        if not self.registry.groups.change(claims, self.registry.groups_in_use()):
            return []
        return [RecordGroups(tuple(claims)), *self._publish_groups()]

    def _publish_groups(self) -> list[Effect]:
        """A sample shows the accelerators anew, and finds whose group is there now."""
        groups = self.registry.groups
        return [PublishGroups(dict(groups.present), tuple(groups.problems())), TakeSample()]

    def _move_strays(self, now: float) -> list[Effect]:
        """The labels of pods were changed, or the groups."""
        effects: list[Effect] = []
        for key, record, belongs in self.registry.strays(self._queue.busy()):
            effects += self.registry.leave(record.id)
            if belongs is not None:
                usage = tuple(record.usage.items())
                seen = ObservedProcess(record.id, record.state, usage, record.pod, record.inner_pid)
                effects += self.registry.join(belongs, (seen,), now, is_found=True)
            if not self.registry.contexts[key].is_present:
                is_idle = record.state is DriverState.NONE
                why = "does not use a device" if is_idle else "belongs elsewhere by its pod's labels"
                effects += self._gone(key, f"process {record.id.pid} {why}")
        return effects

    def _asked(self, record: ProcessRecord, observed: ObservedProcess, now: float) -> None:
        """What the driver says of a process that did not use CUDA when it was asked last."""
        if observed.state is DriverState.NONE:
            return
        if not record.usage:
            record.usage = dict(observed.usage)
            record.seen_on = frozenset(record.usage)
        record.settle(observed.state, now)

    def _sampled(self, sample: Sample, now: float) -> list[Effect]:
        return [*self._accelerators.sampled(sample, self._queue.busy(), now), *self._move_strays(now)]

    def _follow_up(self, now: float) -> list[Effect]:
        """What follows from any event: operations go on, intruders are locked, changes are published."""
        effects: list[Effect] = []
        for key in self._commander.overdue(now):
            effects += self._end_workload(key, "its workload has not come back")
        effects += self._queue.advance(now)
        for kind, key in list(self.admission.repairs(self.registry, self._queue.busy(), self._settings, now)):
            effects += self._queue.repair(kind, key, now)
        for key in list(self.registry.contexts):
            if self._queue.is_brief(key, now) or not self.registry.contexts[key].is_present:
                continue
            view = self._view(key)
            before = self._published.get(key)
            if view != before:
                self._published[key] = view
                effects.append(PublishContext(view, before))
        return effects

    def _view(self, key: ContextKey) -> ContextView:
        return self.registry.view(key, self._queue.is_moving(key))


def _ends_last(effects: list[Effect]) -> list[Effect]:
    """Tell what an operation has made of a context before its end: a snapshot of a context that had nothing to save
    ends well too, and who heard that first would take the context for saved."""
    return sorted(effects, key=lambda effect: isinstance(effect, PublishOperation))
