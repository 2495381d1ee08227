"""Where the edges meet: feeds the core with events and carries out its effects. Takes no decision about a job."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server import logs
from snapshot_agent_server.api import messages
from snapshot_agent_server.api.channels import Channel, Channels
from snapshot_agent_server.api.errors import RefusedCall
from snapshot_agent_server.api.requests import Call, KillCall, Registration
from snapshot_agent_server.api.streams import Stream, Streams
from snapshot_agent_server.backends.cuda import CudaBackend
from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.dispatch import Held, OnDisk, dispatch
from snapshot_agent_server.core.effects import (
    Accept,
    CallDriver,
    Effect,
    EndChannel,
    EndStreamsBelow,
    KillProcesses,
    ListMembers,
    PublishAccelerator,
    PublishContext,
    PublishGone,
    PublishGroups,
    PublishOperation,
    Refuse,
    SendCommand,
    StopProgram,
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
from snapshot_agent_server.core.ids import AcceleratorId, GroupId, OperationId, ProcessId
from snapshot_agent_server.core.node import Node
from snapshot_agent_server.core.operations import Kind, Operation, Status
from snapshot_agent_server.core.outcomes import Outcome
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.samples import Sample
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.workloads import CommandResult
from snapshot_agent_server.driver.interface import Driver, Program
from snapshot_agent_server.observer import SAMPLE_TIMEOUT_S, Observer, observed
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.pidfd import ProcessEnds, kill
from snapshot_agent_server.processes.pods import PodWalker
from snapshot_agent_server.store.records import boot_statements, read_memory
from snapshot_agent_server.store.sqlite import Store
from snapshot_agent_server.store.writer import RecordWriter

log = logging.getLogger("snapshot_agent")

SOON_S = 0.05
ASK_AGAIN_S = 5.0
"""After a sample that hung on the driver's states, samples are NVML's alone for so long."""


class AgentShell:
    """Runs one node's core. `run` serves until cancelled; `close` lets what is under way come to an end first."""

    def __init__(
        self,
        settings: CoreSettings,
        driver: Driver,
        store: Store,
        incarnation: str,
        sample_interval_s: float = 0.25,
        own_pids: Callable[[], set[int]] = set,
        clock: Callable[[], float] = time.monotonic,
        processes: Path = Path("/proc"),
    ) -> None:
        """`processes`: where those of pods are looked for."""
        self._settings = settings
        self._driver = driver
        self._store = store
        self._clock = clock
        self._sample_interval_s = sample_interval_s
        self._node = Node(settings, incarnation)
        self._observer = Observer(driver, self._node.registry, own_pids, PodWalker(processes))
        self._backend = CudaBackend(driver)
        self._programs: dict[ProcessId, Program] = {}
        """Those that can be stopped, by the process of the call that is under way."""
        self._ahead: set[OperationId] = set()
        """Operations with calls that went ahead of their order's record, until that is on disk."""
        self._withheld: list[tuple[CallDriver, Outcome, CallDriver | None]] = []
        """What came of these calls."""
        self._held_programs: list[Program] = []
        """Those whose further calls wait for the record."""
        self._streams = Streams(incarnation)
        self._ends = ProcessEnds(lambda process: self._post_or_stop(ProcessEnded(process)))
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self._calls: dict[int, asyncio.Future[Accept | Refuse]] = {}
        self._call_ids = itertools.count(1)
        self._writer = RecordWriter(store, self._perform)
        self._sample_soon = asyncio.Event()
        self._sample_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """When the core wants to be woken."""
        self._timer_due = 0.0
        self._tasks: asyncio.TaskGroup | None = None
        self._is_started = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_sampling_broken = False
        self._channels = Channels()
        self._is_over = False
        self._has_record = False

    # -- life

    async def run(self) -> None:
        """Take up what an earlier agent left, then serve. If one loop fails, all stop."""
        memory = self._observer.with_members(read_memory(self._store, proc.boot_id()))
        self._observer.name_pods(memory)
        self._has_record = memory.groups is not None
        self._store.write(boot_statements(proc.boot_id()))
        await self._observer.ask_states(memory, self._settings.state_timeout_s, self._clock)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._writer.run(), name="write records")
                self._apply(self._node.recover(memory, self._clock()))
                self._arm()
                tasks.create_task(self._sample_loop(), name="sample NVML")
                tasks.create_task(self._stop_on_failure(), name="failures of callbacks")
                await self.look_into_pods()
                self._is_started.set()
        finally:
            self._is_over = True
            self._ends.close()
            for timer in (self._timer, self._sample_timer):
                if timer is not None:
                    timer.cancel()

    @property
    def has_record(self) -> bool:
        """An earlier agent has left what the cluster had told it. Once started."""
        return self._has_record

    async def started(self) -> None:
        await self._is_started.wait()

    async def close(self, grace_s: float) -> None:
        """Refuse new requests and wait, at most `grace_s`, until operations are finished or rolled back."""
        self.post(Closing())
        try:
            async with asyncio.timeout(grace_s):
                while not self._node.is_idle():
                    self._changed.clear()
                    await self._changed.wait()
                await self._writer.idle()
        except TimeoutError:
            logs.transition(log, logging.WARNING, f"operations still under way after {grace_s:g} s; going all the same")
        self._streams.end_all()

    # -- what the gRPC edge asks

    async def request(self, call: Call, then: Call | None = None) -> tuple[Accept, Accept | Refusal | None]:
        """Ask for an operation, and for another one that comes behind it in the same message: both at once, on record
        by one write. The second may be refused where the first is not.

        Raises: RefusedCall.
        """
        second: Requested | None = None
        refusal: Refusal | None = None
        try:
            second = await self._requested(then) if then is not None else None
        except RefusedCall as error:
            refusal = error.refusal
        accepted, other = await self._ask(await self._requested(call, second), second)
        return accepted, other.refusal if isinstance(other, Refuse) else other or refusal

    async def _requested(self, call: Call, then: Requested | None = None) -> Requested:
        targets = await self._observer.observe(self._observer.claim(call.pids)) if call.pids else ()
        return Requested(
            call=next(self._call_ids),
            kind=call.kind,
            job=call.job,
            group=call.group,
            operation=call.operation,
            token=call.token,
            epoch=call.epoch,
            timeout_s=call.timeout_s,
            leave_locked=call.leave_locked,
            after=call.after,
            targets=targets,
            wish=call.wish,
            then=then,
        )

    async def kill(self, call: KillCall) -> Accept:
        self._find_members()
        if self._node.registry.pods.of_job(call.job):
            self.post(await self._observer.list_members(ListMembers(jobs=(call.job,))))
        number = next(self._call_ids)
        event = KillRequested(number, call.job, call.group, call.token, call.epoch, call.reason)
        accepted, _ = await self._ask(event)
        return accepted

    def told(self, event: PodsChanged | GroupsChanged) -> None:
        """The cluster says something new of this node."""
        if not self._is_over:
            self.post(event)

    def groups(self) -> Mapping[GroupId, Sequence[AcceleratorId]]:
        return self._node.registry.groups.present

    def open_channel(self) -> Channel:
        return self._channels.open()

    async def register(self, registration: Registration) -> None:
        if self._settings.is_in_cluster:
            # Pids are those of the pod, and a tree is in it: what its processes are is known by its cgroups.
            claims = self._observer.claim_in_pods(registration.pids, registration.key.job)
            server = self._observer.seen_in_pods(registration.server, registration.key.job)
            tree = None
        else:
            claims = self._observer.claim(registration.pids)
            server = self._observer.seen(registration.server)
            tree = self._observer.plant(registration.tree)
        processes = await self._observer.observe(claims)
        offer = registration.offer
        if offer is not None:
            offer = replace(offer, server=server)
        await self._ask(Registered(next(self._call_ids), registration.key, processes, tree, offer))

    def answered(self, channel: Channel, result: CommandResult) -> None:
        self.post(CommandAnswered(channel.id, result))

    def close_channel(self, channel: Channel, is_closed: bool) -> None:
        """`is_closed`: by the workload; else its connection broke."""
        self._channels.close(channel)
        if not self._is_over:
            self.post(ChannelEnded(channel.id, is_closed))

    async def watch(self, epoch: int, takes_together: bool = False) -> Stream:
        if epoch > 0:
            await self._ask(EpochSeen(next(self._call_ids), epoch))
        return self._streams.open(epoch, self.status(per_context=True), takes_together)

    def unwatch(self, stream: Stream) -> None:
        self._streams.close(stream)

    def operation(self, operation: OperationId) -> Operation | None:
        return self._node.operation(operation)

    def status(self, per_context: bool) -> pb.StatusResponse:
        return messages.status_response(
            self._node.views(),
            self._node.accelerator_views(),
            self._node.fences,
            self._node.registry.groups,
            per_context,
        )

    # -- events in

    def post(self, event: Event) -> None:
        """Let the core handle an event, and start what it wants done."""
        self._apply(self._node.handle(event, self._clock()))
        self._arm()
        self._changed.set()

    def _post_or_stop(self, event: Event) -> None:
        """For callbacks of the loop, which nobody awaits."""
        try:
            self.post(event)
        except Exception as error:
            self._failure = error
            self._failed.set()

    async def _stop_on_failure(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def _ask(
        self, event: Requested | KillRequested | Registered | EpochSeen, second: Requested | None = None
    ) -> tuple[Accept, Accept | Refuse | None]:
        """Post what a call says, and wait for its answer, and that of a second one in the same event.

        Raises: RefusedCall, for the first.
        """
        loop = asyncio.get_running_loop()
        numbers = (event.call,) if second is None else (event.call, second.call)
        answers = [loop.create_future() for _ in numbers]
        self._calls.update(zip(numbers, answers, strict=True))
        try:
            self.post(event)
            for answer in answers:
                await answer
        finally:
            for number in numbers:
                del self._calls[number]
        first = answers[0].result()
        if isinstance(first, Refuse):
            raise RefusedCall(first.refusal)
        return first, answers[1].result() if second is not None else None

    def _arm(self) -> None:
        """Have the loop call when the core wants to be woken. A timer that is early stays, and is set anew then."""
        self._due = self._node.next_wake(self._clock())
        if self._due is None or (self._timer is not None and self._timer_due <= self._due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._set_timer(self._due)

    def _set_timer(self, due: float) -> None:
        self._timer_due = due
        # A little late rather than early: an event before its time changes nothing and would come again at once.
        delay = max(0.0, due - self._clock()) + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._due is not None and self._due > self._clock():
            self._set_timer(self._due)
        elif self._due is not None:
            self._post_or_stop(Woken())

    # -- effects out

    def _apply(self, effects: Iterable[Effect]) -> None:
        """Start to write records, make driver calls, publish, and answer; see dispatch.py for what waits for what."""
        todo = dispatch(effects, holding=self._writer.holding)
        if todo.is_withheld:
            self._ahead |= {one.operation for one in todo.at_once if isinstance(one, CallDriver)}
        for effect in todo.at_once:  # first: the driver works while records and messages are made
            self._perform(effect)
        held = todo.behind if todo.must_wait else ()
        if todo.records or held:
            self._writer.add(todo.records, held, todo.level)
        is_answered = any(isinstance(one, Accept) for one in todo.behind)
        for public in todo.public:
            self._publish(public, is_answered=is_answered)
        for waiting in held:  # while the disk works
            if isinstance(waiting, CallDriver):
                self._backend.look(waiting)
        if not todo.must_wait:
            for behind in todo.behind:
                self._perform(behind)

    def _perform(self, effect: Held) -> None:
        match effect:
            case CallDriver():
                is_held = effect.operation in self._ahead
                program = self._backend.begin(effect, self._driver_answered, is_held=is_held)
                if effect.then and program is not None:
                    self._programs[effect.process] = program
                    if is_held:
                        self._held_programs.append(program)
            case OnDisk():
                self._on_disk()
            case StopProgram(process):
                if process in self._programs:
                    self._programs[process].stop()
            case Accept() | Refuse():
                answer = self._calls.get(effect.call)
                if answer is not None and not answer.done():
                    answer.set_result(effect)
            case KillProcesses():
                self._kill(effect)
            case WatchProcess(process):
                self._ends.watch(process)
            case SendCommand(connection, command):
                self._channels.send(connection, messages.command_message(command))
            case EndChannel():
                self._channels.finish(effect)

    def _kill(self, effect: KillProcesses) -> None:
        """Whoever lets itself be killed is, also where another does not."""
        killed: list[int] = []
        refused: list[int] = []
        for process in effect.processes:
            try:
                if kill(process):
                    killed.append(process.pid)
            except PermissionError:
                refused.append(process.pid)
        where = ", ".join(map(str, effect.keys))
        self._log(
            logging.WARNING,
            f"context {where}: killed on request" + (f" ({effect.reason})" if effect.reason else ""),
            pids=tuple(killed),
            not_permitted=tuple(refused),
        )
        if refused:
            named = ", ".join(map(str, refused))
            text = f"process {named} of context {where} may not be killed by the agent's user; end it by hand"
            self._perform(Refuse(effect.call, Refusal(RefusalKind.WRONG_USER, text)))
        else:
            self._perform(Accept(effect.call, killed_pids=tuple(killed)))

    def _publish(self, effect: Effect, *, is_answered: bool) -> None:
        """`is_answered`: the order that brought the change about is answered by itself."""
        match effect:
            case PublishContext(view, before):
                is_lock_alone = before is not None and replace(before, locked=view.locked) == view
                event = pb.AgentEvent(job=messages.job_status(view))
                self._streams.publish(event, can_wait=is_answered and is_lock_alone)
                was = before.state if before is not None else "unknown"
                if before is None or before.state is not view.state or before.locked is not view.locked:
                    level = logging.WARNING if view.state is ContextState.FAULTED else logging.INFO
                    lock = ", locked" if view.locked else ""
                    self._log(
                        level,
                        f"context {view.key}: {was} -> {view.state}{lock}"
                        + (f" ({view.reason})" if view.reason else ""),
                        job=view.key.job,
                        group=view.key.group,
                        pids=view.pids,
                        device_bytes=view.device_bytes,
                        host_bytes=view.host_bytes,
                    )
            case PublishGone(key, reason):
                self._streams.publish(pb.AgentEvent(gone=messages.context_ref(key)))
                self._log(logging.INFO, f"context {key}: gone ({reason})", job=key.job, group=key.group)
            case PublishOperation(operation, keys, kind, result):
                ended = pb.OperationEnded(
                    operation_id=operation,
                    context=messages.context_ref(keys[0]) if keys else None,
                    result=messages.result_message(Kind(kind), result),
                )
                self._streams.publish(pb.AgentEvent(operation=ended))
                level = logging.INFO if result.status is Status.COMPLETE or result.is_gone else logging.WARNING
                where = ", ".join(map(str, keys)) or "no context"
                self._log(
                    level,
                    f"{kind} of {where}: {result.status}" + (f" ({result.error})" if result.error else ""),
                    operation=operation,
                    elapsed_ms=result.elapsed_ms,
                    device_bytes=result.device_bytes,
                    rolled_back=result.is_rolled_back,
                    indeterminate=result.is_indeterminate,
                    step_us=dict(result.step_us),
                )
            case PublishGroups(groups, problems):
                self._log(logging.INFO, f"groups on this node: {', '.join(groups) or 'none'}", groups=dict(groups))
                for problem in problems:
                    self._log(logging.WARNING, problem)
            case PublishAccelerator(view):
                self._streams.publish(pb.AgentEvent(accelerator=messages.accelerator_status(view)))
            case EndStreamsBelow(epoch):
                self._streams.end_below(epoch)
                self._log(logging.INFO, f"leader epoch rises to {epoch}", leader_epoch=epoch)
            case ListMembers():
                assert self._tasks is not None, "effects are carried out by `run` only"
                self._tasks.create_task(self._list_members(effect), name="list members")
            case TakeSample():
                # Not at once: what comes next on this node, a restore perhaps, shall not share the cores with it; one
                # sample behind the last operation shows what all before it changed.
                if self._sample_timer is not None:
                    self._sample_timer.cancel()
                self._sample_timer = asyncio.get_running_loop().call_later(SOON_S, self._sample_soon.set)

    def _log(self, level: int, message: str, **fields: object) -> None:
        """One line for one change of state."""
        logs.transition(log, level, message, **fields)

    def _find_members(self) -> None:
        """Let the core know of all members of trees as they are now; what they do with CUDA is asked later."""
        new = self._observer.new_members()
        if new:
            self.post(MembersListed(tuple((key, ObservedProcess(process)) for key, process in new)))

    async def look_into_pods(self) -> None:
        """Find who uses a device in the pods that are known, now: before anyone is told of the node."""
        jobs = tuple({pod.job for pod in self._node.registry.pods.known.values()})
        if jobs:
            self.post(await self._observer.list_members(ListMembers(jobs=jobs)))

    async def _list_members(self, wanted: ListMembers) -> None:
        self.post(await self._observer.list_members(wanted))

    def _on_disk(self) -> None:
        """Calls that went ahead of their order's record are like all others now."""
        programs, self._held_programs = self._held_programs, []
        for program in programs:
            program.release()
        withheld, self._withheld = self._withheld, []
        self._ahead.clear()
        for answer in withheld:
            self._driver_answered(*answer)

    def _driver_answered(self, call: CallDriver, outcome: Outcome, begun: CallDriver | None) -> None:
        if call.operation in self._ahead:
            self._withheld.append((call, outcome, begun))
            return
        program = self._programs.pop(call.process, None)
        if program is not None and begun is not None:
            self._programs[begun.process] = program
        if not self._is_over:
            self._post_or_stop(Answered(call.operation, call.process, call.verb, outcome, goes_on=begun is not None))

    # -- observing

    async def _sample_loop(self) -> None:
        ask_again_at = 0.0
        while True:
            now = self._clock()
            pids = self._node.pids_to_ask(now) if now >= ask_again_at else []
            new = self._observer.new_members()
            in_pods = self._observer.in_pods()
            maybe = [p.pid for _, p in in_pods] if now >= ask_again_at else []
            sample = await self._driver.sample([*pids, *(p.pid for _, p in new), *maybe], SAMPLE_TIMEOUT_S)
            if new or in_pods:
                found = tuple((key, observed(process, sample)) for key, process in new)
                self.post(MembersListed(found, in_pods=self._observer.observed_in_pods(in_pods, sample)))
            if isinstance(sample, Sample):
                self._is_sampling_broken = False
                self.post(Sampled(sample))
            else:
                if pids or maybe:
                    ask_again_at = self._clock() + ASK_AGAIN_S
                if not self._is_sampling_broken:
                    self._is_sampling_broken = True
                    logs.transition(log, logging.WARNING, f"no sample of the accelerators: {sample.reason}; trying on")
            try:
                async with asyncio.timeout(self._sample_interval_s):
                    await self._sample_soon.wait()
            except TimeoutError:
                pass
            self._sample_soon.clear()
