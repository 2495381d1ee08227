"""Which processes belong to which context, and what the outside is told of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from snapshot_agent_server.core.contexts import (
    Context,
    ContextState,
    ContextView,
    PodProcess,
    ProcessRecord,
    failed_text,
    foreign_text,
)
from snapshot_agent_server.core.effects import (
    Effect,
    ForgetProcess,
    ForgetTrees,
    RecordProcess,
    RecordTree,
    WatchProcess,
)
from snapshot_agent_server.core.events import ObservedProcess
from snapshot_agent_server.core.groups import Groups
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, ProcessId
from snapshot_agent_server.core.modes import Backend
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.pods import Pods
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.trees import Tree


class Registry:
    def __init__(self, settings: CoreSettings) -> None:
        self.groups = Groups.fixed(settings.groups)
        self.pods = Pods()
        self.contexts: dict[ContextKey, Context] = {}
        self.trees: dict[ContextKey, tuple[Tree, ...]] = {}
        """Of contexts that are process trees, wholly or in part."""
        self._key_of: dict[int, ContextKey] = {}

    def context(self, key: ContextKey) -> Context:
        """The context, made if there is none yet."""
        return self.contexts.setdefault(key, Context(key))

    def is_server(self, pid: int) -> bool:
        """Whether this process serves the callbacks of a context, without being one of its processes perhaps."""
        workloads = (context.workload for context in self.contexts.values())
        return any(w is not None and w.server is not None and w.server.pid == pid for w in workloads)

    def key_of(self, pid: int) -> ContextKey | None:
        return self._key_of.get(pid)

    def record(self, process: ProcessId) -> ProcessRecord | None:
        key = self._key_of.get(process.pid)
        record = self.contexts[key].processes.get(process.pid) if key is not None else None
        return record if record is not None and record.id == process else None

    def owner(self, process: ProcessId) -> ContextKey | None:
        """The context that a process is known in."""
        return self._key_of.get(process.pid) if self.record(process) is not None else None

    def records(self, keys: Sequence[ContextKey]) -> Iterator[ProcessRecord]:
        """The processes of these contexts, in the order of registration."""
        for key in keys:
            context = self.contexts.get(key)
            if context is not None:
                yield from context.processes.values()

    def of_job(self, job: JobId) -> tuple[ContextKey, ...]:
        return tuple(key for key in self.contexts if key.job == job)

    def is_open(self, key: ContextKey) -> bool:
        """Whether processes may come to the context that nobody names: of its trees, or of its job's pods."""
        return key in self.trees or self.pods.of_job(key.job)

    def groups_in_use(self) -> set[GroupId]:
        return {key.group for key in self.contexts}

    def jobs(self) -> set[JobId]:
        return {key.job for key in self.contexts}

    def strays(self, busy: Set[ContextKey]) -> list[tuple[ContextKey, ProcessRecord, ContextKey | None]]:
        """Processes that the labels of their pods put elsewhere by now: where they are, and where they belong; and
        those in pods that turned out not to use a device.

        Found ones only, since a name that somebody gave counts for more; and only while they run and nothing is under
        way: what is locked or saved is brought back by who stopped it, under the old name.
        """
        found: list[tuple[ContextKey, ProcessRecord, ContextKey | None]] = []
        for key, context in self.contexts.items():
            for record in context.processes.values():
                if record.pod is None or not record.is_found or key in busy:
                    continue
                if record.state is DriverState.NONE:
                    found.append((key, record, None))
                    continue
                belongs = self.pods.key(record.pod, record.usage, self.groups, self.contexts)
                is_clear = belongs is not None or not self.pods.is_silent(record.pod, key.job)
                if is_clear and belongs != key and record.state is DriverState.RUNNING:
                    found.append((key, record, belongs))
        return found

    def refusal(self, key: ContextKey, processes: Sequence[ObservedProcess]) -> Refusal | None:
        """Why these processes cannot join that context, or None. Changes nothing."""
        for process in processes:
            other = self._key_of.get(process.id.pid)
            known = self.record(process.id)
            if other is not None and other != key and known is not None and not _may_move(known):
                return Refusal(
                    RefusalKind.PROCESS_TAKEN,
                    f"process {process.id.pid} is in the context of job {other.job!r} in group {other.group!r} already;"
                    f" a process belongs to one context, since the driver saves it whole. Register it for"
                    f" {key.group!r} only after it was restarted, or use one process per group.",
                )
            foreign = {a for a, _ in process.usage} - set(self.groups.members(key.group))
            if foreign:
                groups = sorted({group for a in foreign if (group := self.groups.of(a)) is not None})
                return Refusal(RefusalKind.BAD_PROCESS, foreign_text(process.id.pid, key, groups, sorted(foreign)))
        return None

    def join(
        self,
        key: ContextKey,
        processes: Sequence[ObservedProcess],
        now: float,
        *,
        is_found: bool = False,
    ) -> list[Effect]:
        """Add processes to a context. Known ones stay as they are; one whose pid was used again replaces the old.

        `is_found`: members of a tree, or processes in a pod, that nobody named. They are on record lazily, since a
        restarted agent finds them again, and never taken from another context; whoever names one may have it as long
        as it does not use CUDA.
        """
        effects: list[Effect] = []
        for observed in processes:
            old = self._key_of.get(observed.id.pid)
            known = self.record(observed.id)
            if known is not None and (is_found or old == key):
                known.is_found = known.is_found and is_found
                continue
            if old is not None:
                effects += self.leave(self.contexts[old].processes[observed.id.pid].id)
            record = ProcessRecord(
                observed.id,
                usage=dict(observed.usage),
                is_found=is_found,
                pod=observed.pod,
                inner_pid=observed.inner_pid,
            )
            record.seen_on = frozenset(record.usage)
            record.settle(observed.state, now)
            self.contexts.setdefault(key, Context(key)).processes[observed.id.pid] = record
            self._key_of[observed.id.pid] = key
            effects += [
                RecordProcess(observed.id, key, dict(record.usage), dict(record.saved), is_lazy=is_found),
                WatchProcess(observed.id),
            ]
        return effects

    def plant(self, key: ContextKey, tree: Tree) -> list[Effect]:
        """From now on what this tree has belongs to the context; the same tree again changes nothing."""
        own = self.trees.get(key, ())
        if tree in own:
            return []
        self.trees[key] = (*own, tree)
        return [RecordTree(key, tree)]

    def fell(self, key: ContextKey) -> list[Effect]:
        """The context's trees have no members any more."""
        return [ForgetTrees(key)] if self.trees.pop(key, None) is not None else []

    def restore(self, key: ContextKey, record: ProcessRecord) -> None:
        """Take over a process as an earlier agent left it."""
        self.contexts.setdefault(key, Context(key)).processes[record.id.pid] = record
        self._key_of[record.id.pid] = key

    def leave(self, process: ProcessId) -> list[Effect]:
        """Forget a process that has ended. A context without processes stays until `drop`."""
        if self.record(process) is None:
            return []
        key = self._key_of.pop(process.pid)
        del self.contexts[key].processes[process.pid]
        return [ForgetProcess(process)]

    def drop(self, key: ContextKey) -> None:
        del self.contexts[key]

    def fault(self, key: ContextKey) -> str:
        """Why a context is faulted, with advice; empty if it is not."""
        context = self.contexts[key]
        failed = [pid for pid, process in context.processes.items() if process.state is DriverState.FAILED]
        return failed_text(key, failed) if failed else self.foreign(key)

    def foreign(self, key: ContextKey) -> str:
        """Advice if a process was seen on accelerators outside the context's group, else empty."""
        context = self.contexts.get(key)
        own = set(self.groups.members(key.group))
        for process in context.processes.values() if context is not None else ():
            outside = process.seen_on - own
            if outside:
                groups = sorted({group for a in outside if (group := self.groups.of(a)) is not None})
                return foreign_text(process.id.pid, key, groups, sorted(outside))
        return ""

    def view(self, key: ContextKey, is_moving: bool) -> ContextView:
        context = self.contexts[key]
        fault = self.fault(key)
        state = ContextState.FAULTED if fault else context.state()
        if is_moving:
            state = ContextState.TRANSITIONING
        reason = fault or context.note
        if not reason and DriverState.CHECKPOINTED in context.states() and state is ContextState.RUNNING:
            reason = "partly saved: some processes of the context are in host memory, others on the device"
        if not reason and self.groups.is_leaving(key.group):
            reason = f"group {key.group!r} has left this node: what is here can be restored or ended, nothing new comes"
        workload = context.workload
        if not reason and workload is not None and workload.connection is None:
            reason = "its workload is not connected: it can be neither saved nor restored before it is again"
        return ContextView(
            key=key,
            state=state,
            locked=context.is_locked(),
            reason=reason,
            pids=tuple(sorted(context.pids())),
            usage=context.usage(),
            backend=Backend.CUDA if workload is None else Backend.APP_CHANNEL,
            discarded=() if workload is None else workload.discarded,
            in_pods=tuple(sorted(self._in_pods(context), key=lambda found: found.pid)),
        )

    def _in_pods(self, context: Context) -> Iterator[PodProcess]:
        for record in context.processes.values():
            pod = self.pods.known.get(record.pod) if record.pod is not None else None
            if pod is not None and record.inner_pid:
                yield PodProcess(pod.host, record.inner_pid, record.id.start_time)


def _may_move(record: ProcessRecord) -> bool:
    """Nobody named it, and there is nothing of it on a device: whoever names it now knows better."""
    return record.is_found and record.state is DriverState.NONE
