"""A node for the core to act on, in virtual time: processes with the driver's true states, and a record on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from apps import App
from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.dispatch import LAZY, Held, dispatch
from snapshot_agent_server.core.effects import (
    Accept,
    Ahead,
    CallDriver,
    ChannelEnd,
    Effect,
    EndChannel,
    EndStreamsBelow,
    ForgetOperation,
    ForgetProcess,
    ForgetTrees,
    ForgetWorkload,
    KillProcesses,
    ListMembers,
    PublishContext,
    PublishGone,
    PublishGroups,
    PublishOperation,
    Record,
    RecordEpoch,
    RecordFence,
    RecordGroups,
    RecordOperation,
    RecordPods,
    RecordProcess,
    RecordTree,
    RecordTurn,
    RecordWorkload,
    Refuse,
    SendCommand,
    StopProgram,
)
from snapshot_agent_server.core.events import (
    Answered,
    ChannelEnded,
    CommandAnswered,
    Event,
    MembersListed,
    ObservedProcess,
    PodsChanged,
    ProcessEnded,
    Registered,
    Requested,
    Sampled,
    Woken,
)
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import (
    AcceleratorId,
    ConnectionId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    PodUid,
    ProcessId,
)
from snapshot_agent_server.core.memory import Memory
from snapshot_agent_server.core.node import Node
from snapshot_agent_server.core.operations import Kind, Operation, Phase, Result
from snapshot_agent_server.core.outcomes import (
    RESULT_OF,
    STARTS_FROM,
    Abandoned,
    Code,
    Done,
    DriverState,
    Gone,
    NoRoom,
    Outcome,
    Refused,
    Room,
    Verb,
)
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.refusals import RefusalKind
from snapshot_agent_server.core.samples import DeviceSample, Sample
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.turn import Turn
from snapshot_agent_server.core.workloads import Workload

MIB = 1 << 20
GPU = {GroupId("g"): AcceleratorId("GPU-0"), GroupId("h"): AcceleratorId("GPU-1")}


@dataclass
class Target:
    id: ProcessId
    group: GroupId
    state: DriverState
    size: int = 8 * MIB
    queue: list[Verb] = field(default_factory=list)
    """Abandoned calls that are under way in the target still. The driver takes one after the other."""

    locked_late: bool = False

    def take_late(self) -> None:
        """The oldest abandoned call takes effect, or finds that it cannot."""
        verb = self.queue.pop(0)
        self.locked_late = isinstance(self.take(verb), Done) and verb is Verb.LOCK

    def take(self, verb: Verb) -> Outcome:
        if self.state is DriverState.NONE:
            return Refused(Code.INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE")
        if self.state is not STARTS_FROM[verb]:
            return Refused(Code.ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE")
        self.state = RESULT_OF[verb]
        usage = {GPU[self.group]: self.size} if verb is Verb.CHECKPOINT else None
        return Done(self.state, 10, usage)

    def drain(self) -> None:
        while self.queue:
            self.take_late()


@dataclass
class Disk:
    """What survives a crash."""

    epoch: int = 0
    tokens: dict[GroupId, int] = field(default_factory=dict)
    turns: dict[GroupId, Turn] = field(default_factory=dict)
    processes: dict[ProcessId, tuple[ContextKey, ProcessRecord]] = field(default_factory=dict)
    operations: dict[OperationId, Operation] = field(default_factory=dict)
    trees: list[tuple[ContextKey, Tree]] = field(default_factory=list)
    workloads: dict[ContextKey, Workload] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    claims: tuple[GroupClaim, ...] | None = None

    def write(self, record: Effect) -> None:
        match record:
            case RecordFence(group, token):
                self.tokens[group] = token
            case RecordEpoch(epoch):
                self.epoch = epoch
            case RecordTurn(group, turn):
                self.turns[group] = turn
            case RecordProcess(process, key, usage, saved):
                self.processes[process] = (key, ProcessRecord(process, usage=dict(usage), saved=dict(saved)))
            case ForgetProcess(process):
                self.processes.pop(process, None)
            case RecordTree(key, tree):
                self.trees.append((key, tree))
            case ForgetTrees(key):
                self.trees = [(other, tree) for other, tree in self.trees if other != key]
            case RecordWorkload(workload):
                self.workloads[workload.key] = replace(workload)
            case ForgetWorkload(key):
                self.workloads.pop(key, None)
            case RecordOperation(operation):
                # What was being listed is not on record.
                self.operations[operation.id] = replace(
                    copy.deepcopy(operation), is_listing=False, is_listed=False, listings=0, list_at=0.0
                )
            case ForgetOperation(operation_id):
                self.operations.pop(operation_id, None)
            case RecordPods(pods):
                self.pods = pods
            case RecordGroups(claims):
                self.claims = claims

    def memory(self, states: dict[ProcessId, DriverState], now: float) -> Memory:
        processes = []
        for process, (key, record) in self.processes.items():
            fresh = copy.deepcopy(record)
            if process in states:
                fresh.settle(states[process], now)
            processes.append((key, fresh))
        operations = [copy.deepcopy(operation) for operation in self.operations.values()]
        workloads = [replace(workload) for workload in self.workloads.values()]
        trees, pods, claims = list(self.trees), self.pods, self.claims
        tokens, turns = dict(self.tokens), dict(self.turns)
        return Memory(self.epoch, tokens, turns, processes, operations, trees, workloads, pods, claims)


class World:
    """Feeds a Node and carries out its effects when told to."""

    def __init__(self, *, has_fixed_groups: bool = True, **settings: object) -> None:
        self.now = 1000.0
        self.settings = CoreSettings(
            groups={group: (gpu,) for group, gpu in GPU.items()} if has_fixed_groups else {},
            is_in_cluster=True,
            **settings,  # type: ignore[arg-type]
        )
        self.incarnations = 0
        self.node = self._start_node()
        self.disk = Disk()
        self.apps: list[App] = []
        """All workloads that live, connected or not."""
        self.targets: dict[int, Target] = {}
        self.calls: list[CallDriver] = []
        """Driver calls under way."""
        self.unheard: list[Answered] = []
        """What workers have said already, and went on from, and the node has not heard yet."""
        self.stopped: set[ProcessId] = set()
        """The processes whose call is the last of its program."""
        self._begun: list[ProcessId | None] = []
        """Of each of the unheard, the process that its worker went on with."""
        self.listings: list[ListMembers] = []
        """Trees that are being looked through."""
        self.look = MembersListed()
        """A sample that has looked the trees and pods through and waits for the driver."""
        self.pods: dict[PodUid, Pod] = {}
        """Pods of jobs, as the cluster has them."""
        self.in_pod: dict[int, PodUid] = {}
        """The processes that were started in one, also in one that was deleted since."""
        self.told_groups: list[PublishGroups] = []
        self.members: dict[int, ContextKey] = {}
        """Members of trees, known to the node or not."""
        self.accepted: dict[int, Accept] = {}
        self.refused: dict[int, Refuse] = {}
        self.results: dict[OperationId, list[Result]] = {}
        self.published: dict[ContextKey, PublishContext] = {}
        self.gone: list[ContextKey] = []
        self.kills: dict[int, KillProcesses] = {}
        self.ended_below: list[int] = []
        self.on_result: Callable[[OperationId, Result], None] = lambda operation, result: None
        self._lazy: list[Effect] = []
        self.is_disk_slow = False
        """What may go ahead of a record does so, and the record stays to be written until `write`."""
        self._behind: list[Held] | None = None
        """What waits for a record that something went ahead of. None: all that must be is on disk."""
        self._level = LAZY
        """Of those records; see dispatch.py."""
        self.is_withheld = False
        """The node is to hear of no call until then."""
        self._numbers = 0
        self._pids = 100

    # -- what happens

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def start(self, group: str = "g", state: DriverState = DriverState.RUNNING, size: int = 8 * MIB) -> Target:
        self._pids += 1
        target = Target(ProcessId(self._pids, self._pids * 10), GroupId(group), state, size)
        self.targets[self._pids] = target
        return target

    def app(self, job: str, group: str = "g", *, is_seen: bool = True, is_known: bool = True, **fields: object) -> App:
        """A workload that registers. `is_seen`: the agent sees its process; `is_known`: it says which one it is."""
        number = self.number()
        server = ProcessId(5000 + number, number) if is_seen else None
        instance = f"instance-{number}" if is_known else ""
        app = App(ContextKey(JobId(job), GroupId(group)), instance, server, **fields)  # type: ignore[arg-type]
        self.apps.append(app)
        self.connect(app)
        return app

    def connect(self, app: App, *targets: Target) -> None:
        """A workload registers on a new connection, perhaps with processes."""
        call, connection = self.number(), ConnectionId(self.number())
        self.post(Registered(call, app.key, tuple(map(self.observed, targets)), offer=app.offer(connection)))
        if call in self.refused:
            assert self.refused[call].refusal.kind is RefusalKind.REPLACED
            app.connection, app.ended_by_agent = None, ChannelEnd.REPLACED
        app.was_accepted = True

    def disconnect(self, app: App, *, is_closed: bool = False) -> None:
        """Its connection breaks, or is closed by it; what was on its way to it is lost."""
        assert app.connection is not None
        connection, app.connection = app.connection, None
        self.post(ChannelEnded(connection, is_closed))

    def say(self, app: App, error: str | None = None) -> None:
        """Carry out the command that has arrived first, and say so, if there is anybody to hear it."""
        result = app.execute(error)
        if app.connection is not None:
            self.post(CommandAnswered(app.connection, result))

    def end_app(self, app: App) -> None:
        """Its process ends: its connection breaks, and whoever sees it says so."""
        self.apps.remove(app)
        if app.connection is not None:
            self.disconnect(app)
        if app.server is not None:
            self.post(ProcessEnded(app.server))

    def observed(self, target: Target) -> ObservedProcess:
        on_device = target.state in (DriverState.RUNNING, DriverState.LOCKED)
        usage = ((GPU[target.group], target.size),) if on_device else ()
        return ObservedProcess(target.id, target.state, usage)

    def unseen(self, keys: Container[ContextKey]) -> list[tuple[ContextKey, ObservedProcess]]:
        """Members of trees that the node does not know."""
        owner = self.node.registry.owner
        found = [(self.members[pid], target) for pid, target in self.targets.items() if pid in self.members]
        return [(key, self.observed(one)) for key, one in found if key in keys and owner(one.id) is None]

    def pod(self, job: str, group: str | None = "g", *, uid: str = "") -> PodUid:
        """A pod of a job comes, or has other labels now; the cluster tells."""
        name = PodUid(uid or f"pod-{self.number()}")
        self.pods[name] = Pod(name, f"default/{name}", JobId(job), None if group is None else GroupId(group))
        self.tell_pods()
        return name

    def delete_pod(self, uid: PodUid) -> None:
        """It goes from the cluster; its processes are another matter."""
        del self.pods[uid]
        self.tell_pods()

    def tell_pods(self, others: Collection[PodUid] = ()) -> None:
        self.post(PodsChanged(tuple(self.pods.values()), frozenset(others)))

    def run_in(self, uid: PodUid, state: DriverState = DriverState.RUNNING, group: str = "g") -> Target:
        """A process starts in a pod, on the accelerator of a group. Unseen: nobody registers it."""
        target = self.start(group, state)
        self.in_pod[target.id.pid] = uid
        return target

    def unseen_in_pods(self, jobs: Collection[JobId] | None = None) -> list[tuple[PodUid, ObservedProcess]]:
        """Processes in pods that the node has been told of, and that it does not know."""
        owner, known = self.node.registry.owner, self.node.registry.pods.known
        found = [(self.in_pod[pid], target) for pid, target in self.targets.items() if self.in_pod.get(pid) in known]
        found = [(uid, target) for uid, target in found if jobs is None or known[uid].job in jobs]
        return [(uid, self.observed(target)) for uid, target in found if owner(target.id) is None]

    def begin_look(self) -> None:
        """A sample looks the trees and pods through, and then waits for the driver."""
        self.look = MembersListed(tuple(self.unseen(self.node.registry.trees)), in_pods=tuple(self.unseen_in_pods()))

    def end_look(self) -> None:
        """The driver has answered; much may have happened meanwhile."""
        look, self.look = self.look, MembersListed()
        if look != self.look:
            self.post(look)

    def list_members(self, wanted: ListMembers, *, is_silent: bool = False) -> None:
        """The trees have been looked through, and the driver has answered, unless it `is_silent`."""
        self.listings.remove(wanted)
        found, in_pods = self.unseen(self.node.registry.trees), self.unseen_in_pods(wanted.jobs)
        for process in wanted.ask:
            target, key = self.targets.get(process.pid), self.node.registry.owner(process)
            if target is not None and key is not None:
                found.append((key, self.observed(target)))
        if is_silent:
            found = [(key, ObservedProcess(observed.id)) for key, observed in found]
            in_pods = [(uid, ObservedProcess(observed.id)) for uid, observed in in_pods]
        self.post(MembersListed(tuple(found), wanted.operation, wanted.emptied, tuple(in_pods)))

    def ask(self, kind: Kind, key: ContextKey, token: int = 1) -> OperationId:
        """The orchestrator asks for an operation; its id."""
        number = self.number()
        operation = OperationId(f"{kind}-{number}")
        self.post(Requested(number, kind, key.job, key.group, operation, token=token, epoch=1))
        return operation

    def answer_all(self) -> None:
        """Listings and calls come to an end by the rules, until none is left."""
        while self.calls or self.listings:
            if self.listings:
                self.list_members(self.listings[0])
            else:
                self.answer(self.calls[0])

    def post(self, event: Event) -> list[Effect]:
        effects = self.node.handle(event, self.now)
        self._take(effects)
        return effects

    def pass_time(self, seconds: float) -> None:
        """Let time pass; the core is woken whenever it asked for it."""
        end = self.now + seconds
        for _ in range(10_000):
            due = self.node.next_wake(self.now)
            if due is None or due > end:
                break
            assert due >= self.now, "asked to be woken in the past: a busy loop"
            self.now = max(due, self.now) + 1e-6
            self.post(Woken())
        else:
            raise AssertionError("the core keeps asking to be woken")
        self.now = max(self.now, end)

    def answer(self, call: CallDriver, outcome: Outcome | None = None) -> None:
        """A driver call comes to an end; by the rules, unless an outcome is given."""
        self.hear()
        self._release(call)
        if call not in self.calls:
            return  # what was heard has brought the call to its end
        if outcome is None:
            outcome = self.obey(call)
        self._say(call, outcome)
        self.hear()

    def go_on(self, call: CallDriver) -> None:
        """A call of a program is done by the rules; the node does not hear of it yet, but if nothing follows."""
        self._release(call)
        if call not in self.calls:
            return
        self._say(call, self.obey(call))
        if not self.unheard or not self.unheard[-1].goes_on:
            self.hear()

    def _release(self, call: CallDriver) -> None:
        """What may not go ahead of its order waits for the disk: the worker says nothing until then."""
        if self.is_withheld and call.then and call.then[0].ahead_of is not Ahead.ORDER:
            self.write()
            self.hear()

    def hear(self) -> None:
        """What workers have said reaches the node, unless they went ahead of a record that is not on disk."""
        while self.unheard and not self.is_withheld:
            self._begun.pop(0)
            self.post(self.unheard.pop(0))

    def _say(self, call: CallDriver, outcome: Outcome) -> None:
        """A worker says what came of a call, and begins the next one if it may."""
        self.calls.remove(call)
        begun = self._next(call, outcome)
        if begun is not None:
            others = [other for other in self.calls if other.process == begun.process]
            assert not others, f"two calls at once to one process: {begun} beside {others}"
            self.calls.append(begun)
        self.stopped.discard(call.process)
        self._begun.append(begun.process if begun is not None else None)
        self.unheard.append(Answered(call.operation, call.process, call.verb, outcome, begun is not None))

    def _next(self, call: CallDriver, outcome: Outcome) -> CallDriver | None:
        if not call.then or not isinstance(outcome, Done) or call.process in self.stopped:
            return None
        following, *later = call.then
        target = self.targets.get(following.process.pid)
        assert following.not_after is not None
        if target is None or target.id != following.process or self.now >= following.not_after:
            return None
        return replace(following, then=tuple(later))

    def obey(self, call: CallDriver) -> Outcome:
        target = self.targets.get(call.process.pid)
        if target is None or target.id != call.process:
            return Gone()
        if call.verb is Verb.STATE:
            if target.state is DriverState.NONE:
                return Refused(Code.INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE")
            return Done(target.state)
        target.drain()
        target.locked_late = False
        return target.take(call.verb)

    def no_room(self, call: CallDriver) -> NoRoom:
        target = self.targets[call.process.pid]
        return NoRoom((Room(GPU[target.group], free=MIB, total=64 * MIB, needed=target.size),))

    def kill(self, pid: int) -> None:
        """A process ends; calls to it come back as such."""
        target = self.targets.pop(pid)
        self.post(ProcessEnded(target.id))
        for call in [call for call in self.calls if call.process == target.id]:
            self.answer(call, Gone())

    def sample(self) -> None:
        self.begin_look()
        self.end_look()
        states = {}
        for pid in self.node.pids_to_ask(self.now):
            target = self.targets.get(pid)
            states[pid] = target.state if target is not None else DriverState.NONE
        devices = []
        for index, (group, gpu) in enumerate(GPU.items()):
            here = {
                pid: target.size
                for pid, target in self.targets.items()
                if target.group == group and target.state in (DriverState.RUNNING, DriverState.LOCKED)
            }
            devices.append(DeviceSample(gpu, index, "GPU", 64 * MIB, sum(here.values()), 0.0, dict(here)))
        taken_at, self.now = self.now, self.now + 1e-4
        self.post(Sampled(Sample(taken_at, tuple(devices), states)))

    def hang(self, call: CallDriver) -> None:
        """A call that is not answered, and is under way in the target still."""
        target = self.targets.get(call.process.pid)
        if target is not None and call.verb is not Verb.STATE:
            target.queue.append(call.verb)

    def crash(self, is_lazy_lost: bool, fates: Sequence[str] = (), down_s: float = 0.0) -> None:
        """The agent is killed, and starts again after `down_s`. Calls are cut off: "lost", "done" or "late"."""
        for call, fate in zip(self.calls, [*fates, *["lost"] * len(self.calls)], strict=False):
            if fate == "done":
                self.obey(call)
            elif fate == "late":
                self.hang(call)
        self.calls.clear()
        self.unheard.clear()
        self._begun.clear()
        self.stopped.clear()
        self.listings.clear()
        self.look = MembersListed()
        if not is_lazy_lost:
            self._flush()
        self._lazy.clear()
        self._behind = None
        self._level, self.is_withheld = LAZY, False
        self.now += down_s
        for app in self.apps:
            app.connection = None
        self.node = self._start_node()
        self.published.clear()
        states = {target.id: target.state for target in self.targets.values()}
        memory = self.disk.memory(states, self.now)
        for _, record in memory.processes:
            record.pod = self.in_pod.get(record.id.pid)
            record.is_found = record.pod in {pod.uid for pod in memory.pods}
        effects = self.node.recover(self._with_members(memory, states), self.now)
        self._take(effects)
        jobs = tuple({pod.job for pod in self.node.registry.pods.known.values()})
        self.post(MembersListed(in_pods=tuple(self.unseen_in_pods(jobs))))
        for process in list(self.disk.processes):
            if process.pid not in self.targets:
                self.post(ProcessEnded(process))
        living = {app.server for app in self.apps}
        for workload in list(self.disk.workloads.values()):
            if workload.server is not None and workload.server not in living:
                self.post(ProcessEnded(workload.server))

    def _with_members(self, memory: Memory, states: dict[ProcessId, DriverState]) -> Memory:
        """What trees have besides what is on record."""
        known = {record.id for _, record in memory.processes}
        trees = {key for key, _ in memory.trees}
        new = []
        for pid, key in self.members.items():
            target = self.targets.get(pid)
            if target is not None and key in trees and target.id not in known:
                new.append((key, ProcessRecord(target.id, is_found=True)))
                new[-1][1].settle(target.state, self.now)
        return replace(memory, processes=[*memory.processes, *new])

    def settle(self, seconds: float = 300.0) -> None:
        """Faults are over: answer all calls by the rules, sample, and let time pass, until nothing is left to do."""
        end = self.now + seconds
        self.is_disk_slow = False
        self.write()
        self.hear()
        for target in self.targets.values():
            target.drain()
        for app in self.apps:
            if app.is_deaf and app.connection is not None:
                self.disconnect(app)  # a stream that lost something is one that breaks
        while self.now < end:
            while self.calls or self.listings:
                if self.listings:
                    self.list_members(self.listings[0])
                else:
                    self.answer(self.calls[0])
            for app in [app for app in self.apps if not app.ended_by_agent]:
                if not app.instance:  # what it does not say, nobody will ever know: it ends
                    self.end_app(app)
                    continue
                if app.connection is None:
                    self.connect(app)
                while app.inbox:
                    self.say(app)
            if self.node.is_idle():
                self.now += 0.001
                self.sample()
                if not self.calls and not self.listings and self.node.next_wake(self.now) is None:
                    return
            self.pass_time(0.25)
        raise AssertionError(f"operations that never end: {self.node._queue.active}")

    def _start_node(self) -> Node:
        self.incarnations += 1
        return Node(self.settings, f"i{self.incarnations}")

    # -- what the core wants

    def _take(self, effects: list[Effect]) -> None:
        told = [type(effect) for effect in effects if isinstance(effect, PublishContext | PublishOperation)]
        assert told == sorted(told, key=lambda kind: kind is PublishOperation), "an end is told before the new state"
        records = [copy.deepcopy(effect) for effect in effects if isinstance(effect, get_args(Record))]
        todo = dispatch(effects, holding=self._level)
        if self._behind is not None and todo.level > LAZY and not todo.at_once:
            self.write()
            todo = dispatch(effects, holding=LAZY)
        self._lazy += records
        if todo.level > LAZY and todo.at_once and (self.is_disk_slow or self._behind is not None):
            self._behind = self._behind or []
            self._level = max(self._level, todo.level)
        elif todo.level > LAZY:
            self._flush()
        if self._behind is None:
            self._do(effects)
            return
        self.is_withheld = self.is_withheld or todo.is_withheld
        self._behind += todo.behind
        self._do([*todo.at_once, *todo.public])

    def write(self) -> None:
        """What is to be on record is, and what waited for that is done."""
        self._flush()
        behind, self._behind = self._behind or [], None
        self._level, self.is_withheld = LAZY, False
        self._do(behind)

    @property
    def is_writing(self) -> bool:
        """Something went ahead of a record that is not on disk yet."""
        return self._behind is not None

    def _do(self, effects: Sequence[Held]) -> None:
        for effect in effects:
            match effect:
                case CallDriver():
                    self._check_unlock(effect)
                    others = [call for call in self.calls if call.process == effect.process]
                    assert not others, f"two calls at once to one process: {effect} beside {others}"
                    self.calls.append(effect)
                case StopProgram(process):
                    at: ProcessId | None = process
                    for answer, begun in zip(self.unheard, self._begun, strict=True):
                        at = begun if answer.process == at else at
                    if any(call.process == at for call in self.calls):  # else all of it is done
                        self.stopped.add(at)
                case ListMembers():
                    self.listings.append(effect)
                case SendCommand(connection, command):
                    for app in self.apps:
                        if app.connection == connection:
                            app.receive(command)
                case EndChannel(connection, end):
                    for app in self.apps:
                        if app.connection == connection:
                            app.connection, app.ended_by_agent = None, end
                case Accept(call):
                    assert call not in self.accepted
                    assert call not in self.refused
                    self.accepted[call] = effect
                case Refuse(call):
                    assert call not in self.accepted
                    assert call not in self.refused
                    self.refused[call] = effect
                case PublishOperation(operation, _, _, result):
                    self.results.setdefault(operation, []).append(result)
                    self.on_result(operation, result)
                case PublishContext(view):
                    self.published[view.key] = effect
                case PublishGone(key, _):
                    self.gone.append(key)
                    self.published.pop(key, None)
                case KillProcesses(call):
                    assert call not in self.refused
                    self.kills[call] = effect
                case PublishGroups():
                    self.told_groups.append(effect)
                case EndStreamsBelow(epoch):
                    self.ended_below.append(epoch)
                case _:
                    pass

    def _check_unlock(self, call: CallDriver) -> None:
        """On its way forward a restore unlocks nobody for a token or an epoch that has been overtaken."""
        operation = self.node.operation(call.operation)
        if call.verb is not Verb.UNLOCK or operation is None or operation.kind is not Kind.RESTORE:
            return
        groups = [key.group for key in operation.keys]
        is_stale = self.node.fences.check(groups, operation.token, operation.epoch) is not None
        assert not is_stale or operation.phase is Phase.ROLLBACK, f"{operation} unlocks"

    def _flush(self) -> None:
        for record in self._lazy:
            self.disk.write(record)
        self._lazy.clear()


FAULTS = ("flake", "died", "died after", "late", "refused")


def fault(world: World, call: CallDriver, kind: str) -> Outcome:
    """The outcome of a call that fails in one of the ways of FAULTS."""
    match kind:
        case "flake":
            return Refused(Code.NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED")
        case "died":
            return Abandoned("no answer")
        case "died after":
            world.obey(call)
            return Abandoned("no answer")
        case "late":
            world.hang(call)
            return Abandoned("no answer")
        case _:
            if call.verb is Verb.STATE:
                return Refused(999, "CUDA_ERROR_UNKNOWN")
            return world.no_room(call) if call.verb is Verb.RESTORE else Refused(Code.NOT_SUPPORTED, "NOT_SUPPORTED")


__all__ = ["FAULTS", "GPU", "Kind", "Target", "World", "fault"]
