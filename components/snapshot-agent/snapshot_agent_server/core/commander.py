"""Has workloads save and restore their own contexts: sends each command once, and takes their word for what came of it.

Holds no state but the number of its commands: workloads and operations say all, so that a restart goes on from them.
See OPERATIONS.md, "Workloads that save themselves".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from snapshot_agent_server.core.effects import (
    ChannelEnd,
    Effect,
    EndChannel,
    ForgetWorkload,
    RecordWorkload,
    SendCommand,
    WatchProcess,
)
from snapshot_agent_server.core.ids import CommandId, ConnectionId, ContextKey, OperationId, ProcessId
from snapshot_agent_server.core.operations import GONE, Kind, Operation, Phase, Result, Status
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.workloads import Command, CommandResult, Offer, Workload, WorkloadState

TARGET = {Kind.SNAPSHOT: WorkloadState.SAVED, Kind.RESTORE: WorkloadState.RUNNING}


class Commander:
    def __init__(
        self,
        settings: CoreSettings,
        registry: Registry,
        operation: Callable[[OperationId], Operation | None],
        incarnation: str,
    ) -> None:
        """`operation` finds one that waits or runs; `incarnation` makes the ids of commands unique across restarts."""
        self._settings = settings
        self._registry = registry
        self._operation = operation
        self._incarnation = incarnation
        self._commands = 0
        self._workloads: dict[ContextKey, Workload] = {}
        """The contexts' workloads once more, so that a node without any pays nothing for them."""

    # -- operations, as the Runner has them

    def begin(self, operation: Operation, now: float) -> None:
        operation.phase = Phase.FORWARD
        operation.started_at = now

    def advance(self, operation: Operation, now: float) -> tuple[list[Effect], Result | None]:
        """Send the next command, if the one before has been answered; and the result, if there is one now."""
        if operation.kind not in TARGET or operation.error.startswith(GONE):
            return [], self._result(operation, now, operation.error)
        for key in operation.keys:
            context = self._registry.contexts.get(key)
            workload = context.workload if context is not None else None
            if workload is None:
                is_sure = not operation.error  # nothing had been sent to it
                text = operation.error or f"{GONE}the workload of context {key} ended"
                return [], self._result(operation, now, text, is_rolled_back=is_sure)
            if workload.command is not None:
                return [], self._early_result(operation, workload, now)
            if operation.error:
                return [], self._result(operation, now, operation.error, is_rolled_back=True)
            if workload.state is TARGET[operation.kind]:
                continue
            if now >= operation.deadline:
                text = f"{_deadline_text(operation)}, and did not reach the workload of context {key}"
                text += f": {not_connected_text()}" if workload.connection is None else ""
                return [], self._result(operation, now, text, is_rolled_back=True)
            return (self._send(operation, workload, now) if workload.connection is not None else []), None
        return [], self._result(operation, now)

    def wake_at(self, operation: Operation, now: float) -> float | None:
        return operation.deadline if operation.deadline > now else None

    # -- workloads

    def refusal(self, key: ContextKey, offer: Offer | None) -> Refusal | None:
        """Why a workload may not register, or None."""
        there = self._workloads.get(key)
        if offer is None or there is None or not offer.is_returning or there.comes_back_as(offer):
            return None
        text = f"another workload has registered for context {key} since, and counts; nothing was changed."
        return Refusal(RefusalKind.REPLACED, text)

    def register(self, key: ContextKey, offer: Offer, now: float) -> list[Effect]:
        """A workload came, or came back."""
        context = self._registry.context(key)
        old = context.workload
        effects: list[Effect] = []
        if old is not None and old.connection not in (None, offer.connection):
            effects.append(EndChannel(old.connection, ChannelEnd.REPLACED, key))
        if old is not None and old.comes_back_as(offer):
            old.update(offer)
            workload = old
        else:
            if old is not None and old.command is not None:
                self._orphan(old.command, f"{GONE}another workload took the place of the one that was told to")
            workload = context.workload = self._workloads[key] = Workload.of(key, offer)
        self._catch_up(workload, offer, now)
        effects.append(RecordWorkload(workload))
        if offer.server is not None:
            effects.append(WatchProcess(offer.server))
        return effects

    def restore(self, workload: Workload, now: float) -> list[Effect]:
        """Take over a workload as an earlier agent left it: connected to nobody."""
        workload.connection, workload.lost_at = None, now
        self._registry.context(workload.key).workload = self._workloads[workload.key] = workload
        return [WatchProcess(workload.server)] if workload.server is not None else []

    def answered(self, result: CommandResult, now: float) -> list[Effect]:
        """A result came. One of a command that is settled already, or that nobody sent, changes nothing."""
        for workload in self._workloads.values():
            if workload.command is not None and workload.command.id == result.command:
                self._settle(workload, workload.command, result, now)
                return [RecordWorkload(workload)]
        return []

    def lost(self, connection: ConnectionId, now: float) -> ContextKey | None:
        """A connection ended; the context whose it was, None if that has another one by now, or is gone."""
        for workload in self._workloads.values():
            if workload.connection == connection:
                workload.connection, workload.lost_at = None, now
                return workload.key
        return None

    def served_by(self, process: ProcessId) -> list[ContextKey]:
        return [workload.key for workload in self._workloads.values() if workload.server == process]

    def commands_any(self, keys: Iterable[ContextKey]) -> bool:
        """Whether one of these contexts has a workload."""
        return any(key in self._workloads for key in keys)

    def servers(self, keys: Iterable[ContextKey]) -> tuple[ProcessId, ...]:
        """Who serves the callbacks of these contexts, as far as the agent sees it."""
        found = (self._workloads.get(key) for key in keys)
        return tuple(dict.fromkeys(w.server for w in found if w is not None and w.server is not None))

    def overdue(self, now: float) -> list[ContextKey]:
        """Contexts whose workload has been away for too long, and whose process nobody sees live."""
        return [w.key for w in self._workloads.values() if (until := self._until(w)) is not None and until <= now]

    def next_overdue(self) -> float | None:
        return min((until for w in self._workloads.values() if (until := self._until(w)) is not None), default=None)

    def end(self, key: ContextKey, reason: str) -> list[Effect]:
        """The workload will not come back. The context stays, saved by the driver, if it has processes."""
        context = self._registry.contexts[key]
        workload = context.workload
        assert workload is not None, f"context {key} has no workload to end"
        context.workload = None
        del self._workloads[key]
        if workload.command is not None:
            self._orphan(workload.command, reason if context.processes else f"{GONE}{reason}")
        effects: list[Effect] = [ForgetWorkload(key)]
        if workload.connection is not None:
            effects.append(EndChannel(workload.connection, ChannelEnd.GONE, key))
        return effects

    # -- helpers, in the order of use

    def _send(self, operation: Operation, workload: Workload, now: float) -> list[Effect]:
        """One command. From now on only the workload knows where the context is."""
        assert workload.connection is not None
        self._commands += 1
        wish = operation.wish
        workload.command = Command(
            id=CommandId(f"{self._incarnation}-{self._commands}"),
            operation=operation.id,
            kind=operation.kind,
            mode=(wish.mode if wish is not None else None) or workload.default_mode,
            tags=(wish.tags if wish is not None else ()) or workload.tags,
            sent_at=now,
        )
        return [RecordWorkload(workload), SendCommand(workload.connection, workload.command)]

    def _early_result(self, operation: Operation, workload: Workload, now: float) -> Result | None:
        """Past the deadline, while the workload has not answered: the caller is told that nobody knows."""
        if now < operation.deadline or operation.result is not None:
            return None
        why = not_connected_text() if workload.connection is None else "it has not said yet what became of it"
        text = (
            f"{_deadline_text(operation)}; the workload of context {workload.key} was told, and {why}: the context"
            " stays in transition and its accelerators closed until it does."
        )
        return self._result(operation, now, text, is_indeterminate=True)

    def _catch_up(self, workload: Workload, offer: Offer, now: float) -> None:
        """What the workload says of the command that was under way when its connection broke."""
        command = workload.command
        results = {result.command: result for result in offer.results}
        if command is not None and command.id in results:
            self._settle(workload, command, results[command.id], now)
        elif command is not None and offer.instance and offer.running != command.id:
            workload.command = None  # it has not arrived, and cannot any more: the operation may send another
        if workload.command is None and offer.running is not None:
            # Of an agent before this one, whose record is lost: it can only be the way to the other side.
            kind = Kind.RESTORE if workload.state is WorkloadState.SAVED else Kind.SNAPSHOT
            mode = workload.default_mode
            workload.command = Command(offer.running, OperationId(""), kind, mode, workload.tags, now)

    def _settle(self, workload: Workload, command: Command, result: CommandResult, now: float) -> None:
        workload.settle(command, result)
        operation = self._operation(command.operation)
        if operation is None:
            return
        operation.step_us[command.kind] = round((now - command.sent_at) * 1e6)
        if result.error is None:
            operation.has_moved = True
        else:
            operation.error = f"the {command.kind} callback of context {workload.key} failed: {result.error}"

    def _orphan(self, command: Command, error: str) -> None:
        operation = self._operation(command.operation)
        if operation is not None:
            operation.error = error

    def _until(self, workload: Workload) -> float | None:
        if workload.connection is not None or workload.server is not None:
            return None
        return workload.lost_at + self._settings.channel_grace_s

    def _result(
        self,
        operation: Operation,
        now: float,
        error: str = "",
        *,
        is_rolled_back: bool = False,
        is_indeterminate: bool = False,
    ) -> Result:
        contexts = [self._registry.contexts.get(key) for key in operation.keys]
        dropped = {
            tag: None for c in contexts if c is not None and c.workload is not None for tag in c.workload.discarded
        }
        is_gone = error.startswith(GONE)
        return Result(
            status=Status.FAILED if error else Status.COMPLETE,
            elapsed_ms=round((now - operation.accepted_at) * 1000),
            error=error,
            is_rolled_back=is_rolled_back and not is_gone and not operation.has_moved,
            is_indeterminate=is_indeterminate,
            is_gone=is_gone,
            step_us=dict(operation.step_us),
            discarded=() if error else tuple(dropped),
        )


def not_connected_text() -> str:
    return "it is not connected (its process lives and may come back, or its connection broke a short while ago)"


def _deadline_text(operation: Operation) -> str:
    return f"{operation.kind} passed its deadline of {operation.deadline - operation.accepted_at:g} s"
