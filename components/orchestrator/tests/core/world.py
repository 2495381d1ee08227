"""A model of everything around the core: agents with drivers, a store, clients; on virtual time, and failing on demand.

Messages travel in channels: those of one channel arrive in order, channels among each other in any order. `settle`
delivers all of them, the oldest first; the property tests choose one at a time, lose some, and repeat others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from orchestrator.core import effects as fx
from orchestrator.core import events as ev
from orchestrator.core.orchestrator import Orchestrator
from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    AgentErrorKind,
    CallId,
    ContextState,
    ContextView,
    CoreSettings,
    DeviceUsage,
    EndedLease,
    Epoch,
    EvictAction,
    Fence,
    GroupConfig,
    GroupId,
    GroupRecord,
    GroupView,
    JobId,
    Lease,
    NodeId,
    OnUnsaveable,
    OperationId,
    OperationResult,
    ProcessRef,
    Refusal,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)

Channel = tuple[str, ...]
Call = fx.LockContext | fx.UnlockContext | fx.StartSnapshot | fx.StartRestore | fx.QueryOperation

DEVICE_BYTES = 100
CONTEXT_BYTES = 60
SETTINGS = CoreSettings(restore_margin_bytes=5)


@dataclass
class Context:
    """One job's processes for a group on a node, in truth."""

    job: JobId
    group: GroupId
    state: ContextState
    pids: frozenset[int]
    size: int = CONTEXT_BYTES
    locked: bool = False
    is_unsaveable: bool = False
    is_unlockable: bool = False
    by_operation: OperationId | None = None
    is_tame: bool = False
    """It was locked, or known while its job held the lease, and no agent has freed it by a roll-back since: it runs
    only when the orchestrator lets it."""

    backend: str = ""
    """Empty: a driver's. One that the application saves is never shown as locked."""
    discarded_tags: tuple[str, ...] = ()
    in_pods: frozenset[ProcessRef] = frozenset()
    is_unsampled: bool = False
    """Its processes came onto the device since the agent last looked: it says idle until it looks again."""

    def is_free(self) -> bool:
        """Tell whether its processes can touch the device, but for what their job keeps to by itself."""
        return self.state is ContextState.RUNNING and not self.locked and not self.backend


@dataclass
class Work:
    """A Snapshot or Restore at an agent."""

    id: OperationId
    kind: str
    key: tuple[JobId, GroupId]
    after: OperationId | None
    before: tuple[ContextState, bool]
    fence: tuple[Token, Epoch]
    leave_locked: bool = True
    result: OperationResult | None = None
    is_started: bool = False


class Agent:
    """One node's agent and driver. Outgoing messages go to `send(channel, event)`."""

    def __init__(self, node: NodeId, groups: Iterable[GroupId], send: Callable[[Channel, ev.Event], None]) -> None:
        self.node = node
        self.groups = tuple(groups)
        self.send = send
        self.contexts: dict[tuple[JobId, GroupId], Context] = {}
        self.works: dict[OperationId, Work] = {}
        self.fences: dict[GroupId, tuple[Token, Epoch]] = {}
        self.is_up = True
        self.is_connected = False
        self.incarnation = 0
        self.fates: dict[tuple[str, JobId], deque[str]] = defaultdict(deque)
        """What becomes of the next operations: "ok", "rolled back", "indeterminate saved", "indeterminate running",
        "gone", "failed", "hang"."""
        self.is_stalled = False
        """`settle` does not let its driver finish anything."""
        self.locks_asked: list[JobId] = []
        self.is_mute = False
        """Takes calls and never answers them."""

    # ---- what the orchestrator sees

    def view(self, context: Context) -> ContextView:
        state = ContextState.IDLE if context.is_unsampled else context.state
        on_device = state is not ContextState.SAVED and state is not ContextState.IDLE
        accelerator = self.accelerator(context.group)
        return ContextView(
            context.job,
            context.group,
            state,
            context.locked and not context.backend,
            context.pids,
            device_bytes=context.size if on_device else 0,
            host_bytes=0 if on_device else context.size,
            usage=(
                DeviceUsage(accelerator, context.size if on_device else 0, 0 if on_device else context.size),
            ),
            backend=context.backend,
            discarded_tags=context.discarded_tags,
            in_pods=context.in_pods,
        )

    def accelerator(self, group: GroupId) -> AcceleratorId:
        return AcceleratorId(f"GPU-{self.groups.index(group)}")

    def used(self, group: GroupId) -> int:
        return sum(
            context.size
            for context in self.contexts.values()
            if context.group == group and context.state not in (ContextState.SAVED, ContextState.IDLE)
        )

    def accelerator_view(self, group: GroupId) -> AcceleratorView:
        return AcceleratorView(self.accelerator(group), self.used(group), DEVICE_BYTES, (group,))

    def observed(self) -> ev.NodeObserved:
        return ev.NodeObserved(
            node=self.node,
            incarnation=str(self.incarnation),
            contexts=tuple(self.view(context) for context in self.contexts.values()),
            accelerators=tuple(self.accelerator_view(group) for group in self.groups),
            fences=tuple(Fence(group, *fence) for group, fence in self.fences.items()),
        )

    def connect(self) -> None:
        self.is_connected = True
        self.push(self.observed())

    def push(self, event: ev.Event) -> None:
        if self.is_connected and self.is_up:
            self.send(("stream", self.node), event)

    def push_context(self, context: Context) -> None:
        self.push(ev.AcceleratorChanged(self.node, self.accelerator_view(context.group)))
        self.push(ev.ContextChanged(self.node, self.view(context)))

    # ---- what jobs do

    def appear(
        self,
        job: JobId,
        group: GroupId,
        pids: Iterable[int] = (),
        size: int = CONTEXT_BYTES,
        *,
        is_unsampled: bool = False,
        backend: str = "",
    ) -> Context:
        pids = frozenset(pids) or frozenset({1000 + len(self.contexts)})
        context = Context(job, group, ContextState.RUNNING, pids, size, backend=backend, is_unsampled=is_unsampled)
        self.contexts[(job, group)] = context
        self.push_context(context)
        return context

    def sample(self, context: Context) -> None:
        """Look at the device, as a real agent does a few times a second."""
        if context.is_unsampled:
            context.is_unsampled = False
            self.push_context(context)

    def register(self, job: JobId, group: GroupId, pids: Iterable[int] = (), size: int = CONTEXT_BYTES) -> Context:
        """A job's processes are known and have nothing on the device yet; setting `state` later goes unseen."""
        pids = frozenset(pids) or frozenset({1000 + len(self.contexts)})
        context = Context(job, group, ContextState.IDLE, pids, size)
        self.contexts[(job, group)] = context
        self.push_context(context)
        return context

    def disappear(self, job: JobId, group: GroupId) -> None:
        """The context's processes end."""
        if self.contexts.pop((job, group), None) is None:
            return
        self.push(ev.AcceleratorChanged(self.node, self.accelerator_view(group)))
        self.push(ev.ContextGone(self.node, job, group))
        for work in list(self.works.values()):
            if work.key == (job, group) and work.result is None:
                self.end(work, OperationResult(False, gone=True, error="its processes have ended"))

    # ---- calls

    def is_stale(self, group: GroupId, token: Token, epoch: Epoch) -> bool:
        highest = self.fences.get(group, (Token(0), Epoch(0)))
        if epoch < highest[1] or token < highest[0]:
            return True
        self.fences[group] = (token, epoch)
        return False

    def lock(self, effect: fx.LockContext) -> ev.Event:
        self.locks_asked.append(effect.job)
        context = self.contexts.get((effect.job, effect.group))
        if self.is_stale(effect.group, effect.token, effect.epoch):
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.STALE, "stale")
        if context is None:
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.GONE, "no such context")
        self.sample(context)  # who is to be locked is asked first whether it uses the device by now
        if context.state is ContextState.IDLE:
            return ev.Locked(self.node, effect.operation)
        if context.state is not ContextState.RUNNING or context.is_unlockable:
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.REFUSED, "cannot be locked")
        context.locked = context.is_tame = True
        self.push_context(context)
        return ev.Locked(self.node, effect.operation)

    def unlock(self, effect: fx.UnlockContext) -> ev.Event:
        context = self.contexts.get((effect.job, effect.group))
        if self.is_stale(effect.group, effect.token, effect.epoch):
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.STALE, "stale")
        if context is not None:
            if context.state is not ContextState.RUNNING:
                return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.REFUSED, "not on the device")
            context.locked = False
            self.push_context(context)
        return ev.Unlocked(self.node, effect.operation)

    def start(self, effect: fx.StartSnapshot | fx.StartRestore) -> ev.Event | None:
        if effect.operation in self.works:
            return None
        if self.is_stale(effect.group, effect.token, effect.epoch):
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.STALE, "stale")
        key = (effect.job, effect.group)
        context = self.contexts.get(key)
        if context is None:
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.GONE, "no such context")
        after = effect.after if isinstance(effect, fx.StartRestore) else None
        if after is not None and after not in self.works:
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.REFUSED, "unknown predecessor")
        if any(work.key == key and work.result is None for work in self.works.values()):
            return ev.AgentCallFailed(self.node, effect.operation, AgentErrorKind.REFUSED, "busy")
        kind = "snapshot" if isinstance(effect, fx.StartSnapshot) else "restore"
        leave_locked = effect.leave_locked if isinstance(effect, fx.StartRestore) else True
        fence = (effect.token, effect.epoch)
        work = Work(effect.operation, kind, key, after, (context.state, context.locked), fence, leave_locked)
        self.works[effect.operation] = work
        if after is None:
            self.begin(work)
        else:
            before = self.works[after].result
            if before is not None:
                self.follow(work, before)
        return None

    def query(self, operation: OperationId) -> ev.Event:
        work = self.works.get(operation)
        if work is None:
            return ev.OperationUnknown(self.node, operation)
        if work.result is None:
            return ev.OperationPending(self.node, operation)
        return ev.OperationEnded(self.node, operation, work.result)

    # ---- work

    def running_works(self) -> list[Work]:
        return [work for work in self.works.values() if work.is_started and work.result is None]

    def begin(self, work: Work) -> None:
        context = self.contexts[work.key]
        context.is_unsampled = False
        wanted, done = (
            (ContextState.RUNNING, ContextState.SAVED)
            if work.kind == "snapshot"
            else (ContextState.SAVED, ContextState.RUNNING)
        )
        if context.state is done and context.locked and not self.leaves_locked(work):
            context.locked = False
            self.push_context(context)
        if context.state is done or (context.state is ContextState.IDLE and work.kind == "snapshot"):
            self.end(work, OperationResult(True))
            return
        if context.state is not wanted:
            self.end(work, OperationResult(False, rolled_back=True, error=f"cannot {work.kind} when {context.state}"))
            return
        if work.kind == "restore" and self.used(context.group) + context.size > DEVICE_BYTES:
            self.end(work, OperationResult(False, rolled_back=True, error="not enough free device memory"))
            return
        work.is_started = True
        work.before = (context.state, context.locked)
        context.state, context.locked, context.by_operation = ContextState.TRANSITIONING, True, work.id
        self.push_context(context)

    def leaves_locked(self, work: Work) -> bool:
        """As asked; and whatever was asked, once a higher token or epoch has come."""
        _, group = work.key
        return work.leave_locked or self.is_stale(group, *work.fence)

    def finish(self, work: Work) -> None:
        """The driver is done with it, in the way that `fates` says."""
        context = self.contexts.get(work.key)
        if context is None or work.result is not None:
            return
        fates = self.fates[(work.kind, context.job)]
        fate = fates.popleft() if fates else "ok"
        if fate == "hang":
            return
        if fate == "gone":
            self.disappear(*work.key)
            return
        if context.is_unsaveable and work.kind == "snapshot" and fate == "ok":
            fate = "rolled back"
        if fate.startswith("indeterminate"):
            context.by_operation = work.id
            self.end(work, OperationResult(False, indeterminate=True, error="the driver does not say"), fate)
            return
        is_left_locked = self.leaves_locked(work)
        if fate in ("left locked", "resumed"):  # somebody wanted otherwise; the agent was not killed after all
            is_left_locked |= fate == "left locked"
            fate = "ok"
        if fate == "ok":
            context.state = ContextState.SAVED if work.kind == "snapshot" else ContextState.RUNNING
            context.locked, context.is_tame = is_left_locked, True
        elif fate == "rolled back":
            context.state, context.locked = work.before
            context.is_tame &= not context.is_free()
        elif fate == "failed":
            context.state = ContextState.FAULTED
        else:
            raise AssertionError(fate)
        context.by_operation = None
        self.push_context(context)
        self.end(
            work,
            OperationResult(fate == "ok", rolled_back=fate == "rolled back", error="" if fate == "ok" else fate),
        )

    def resolve(self, context: Context, state: ContextState) -> None:
        """The driver says at last how an operation ended."""
        work = self.works.get(context.by_operation) if context.by_operation is not None else None
        is_let_on = work is not None and state is ContextState.RUNNING and not self.leaves_locked(work)
        context.state, context.locked, context.by_operation = state, not is_let_on, None
        context.is_tame = True
        self.push_context(context)

    def end(self, work: Work, result: OperationResult, _: str = "") -> None:
        work.result = result
        self.push(ev.OperationEnded(self.node, work.id, result))
        for other in self.works.values():
            if other.after == work.id and other.result is None and not other.is_started:
                self.follow(other, result)

    def follow(self, work: Work, before: OperationResult) -> None:
        if before.complete and work.key in self.contexts:
            self.begin(work)
        else:
            self.end(work, OperationResult(False, rolled_back=True, error="the operation before it failed"))

    def crash(self) -> None:
        """The agent dies; what its driver calls were doing ends in the state that the target is in."""
        self.is_up = self.is_connected = False
        for work in list(self.works.values()):
            if work.result is None:
                context = self.contexts.get(work.key)
                fates = self.fates[(work.kind, work.key[0])]
                if work.is_started and context is not None and "resumed" in list(fates)[:1]:
                    continue  # the driver has done all but the last; the next agent goes on from there
                if work.is_started and context is not None:
                    context.state, context.locked = work.before
                    context.is_tame &= not context.is_free()
                work.result = OperationResult(False, rolled_back=True, error="the agent was killed")
        resumed = {work.key for work in self.running_works()}
        for key, context in self.contexts.items():
            if context.state is ContextState.TRANSITIONING and key not in resumed:
                context.state, context.locked = ContextState.RUNNING, True

    def restart(self, *, keeps_operations: bool = True) -> None:
        self.is_up = True
        self.incarnation += 1
        if not keeps_operations:
            for work in self.running_works():
                context = self.contexts.get(work.key)
                if context is not None:
                    context.state, context.locked, context.is_tame = ContextState.RUNNING, True, True
                    context.by_operation = None
            self.works.clear()


@dataclass
class Answer:
    """What a call was answered."""

    lease: Lease | None = None
    queued: bool = False
    yielded: fx.ReplyYielded | None = None
    refusal: Refusal | None = None
    evicted: tuple[str, ...] | None = None
    waited_s: float = 0.0
    context_restored: bool = False
    discarded: tuple[str, ...] = ()


@dataclass
class Store:
    """The durable records, and how the next writes end."""

    epoch: int = 0
    records: dict[GroupId, GroupRecord] = field(default_factory=dict)
    ended: list[EndedLease] = field(default_factory=list)
    waiters: dict[tuple[GroupId, RequestId], WaiterRecord] = field(default_factory=dict)
    fates: deque[str] = field(default_factory=deque)
    """"ok", "failed", "unclear written", "unclear lost"."""

    def write(self, effect: fx.Record) -> ev.Event:
        record = effect.record
        fate = self.fates.popleft() if self.fates else "ok"
        held = self.records.get(record.group)
        assert record.version == (held.version if held else 0) + 1, "versions follow each other"
        if fate in ("ok", "unclear written"):
            self.records[record.group] = record
            self.ended.extend(effect.ended)
        if fate == "failed":
            return ev.RecordFailed(record.group, record.version, "disk full")
        if fate.startswith("unclear"):
            return ev.RecordUnclear(record.group, record.version, "cut off")
        return ev.Recorded(record.group, record.version)


class World:
    """One orchestrator, its agents, store and clients."""

    def __init__(
        self,
        nodes: int = 1,
        groups: Iterable[str] = ("g",),
        settings: CoreSettings = SETTINGS,
        on_unsaveable: OnUnsaveable = OnUnsaveable.WAIT,
    ) -> None:
        self.now = 1000.0
        self.settings = settings
        self.node_ids = [NodeId(f"n{index}") for index in range(1, nodes + 1)]
        self.configs = tuple(
            GroupConfig(group=GroupId(group), nodes=tuple(self.node_ids), on_unsaveable=on_unsaveable)
            for group in groups
        )
        self.channels: dict[Channel, deque[Callable[[], None]]] = {}
        self.agents = {
            node: Agent(node, [config.group for config in self.configs], self._from_agent) for node in self.node_ids
        }
        self.store = Store()
        self.answers: dict[CallId, Answer] = {}
        self.published: list[fx.Publish] = []
        self.lost: list[fx.NotifyLeaseLost] = []
        self.shared: list[fx.NotifyLeaseShared] = []
        self.opened: list[fx.AnswerSession] = []
        self.grants: list[Lease] = []
        self.stepped_down: str | None = None
        self.wake_at: float | None = None
        self.kills: list[fx.KillContext] = []
        self.sent: list[Call] = []
        """Calls to agents, in their order."""
        self.kill_failure: tuple[AgentErrorKind, str] | None = None
        """How every kill fails; None: it does not."""
        self.gathered: list[ev.Event] | None = None
        """What agents tell while `deliver_together` gathers it; None: it does not."""
        self.trace: deque[ev.Event | fx.Effect] = deque(maxlen=400)
        self.unwritten: dict[GroupId, fx.Record] = {}
        self.cancelled: set[CallId] = set()
        self.open_calls: set[CallId] = set()
        self.on_grant: Callable[[CallId, Lease], None] | None = None
        self.on_save: Callable[[fx.StartSnapshot], None] | None = None
        self.on_loss: Callable[[fx.NotifyLeaseLost], None] | None = None
        self.last_call = CallId(0)
        self.core: Orchestrator
        self.generation = 0
        self.start()

    # ---- the orchestrator's process

    def start(self) -> None:
        """Start an orchestrator from what the store holds, and connect it to the agents."""
        self.generation += 1
        self.store.epoch += 1
        self.core = Orchestrator(self.settings)
        self.wake_at = None
        self.handle(
            ev.Started(
                Epoch(self.store.epoch),
                self.configs,
                tuple(self.store.records.values()),
                tuple(self.store.ended),
                tuple(sorted(self.store.waiters.values(), key=lambda waiter: waiter.sequence)),
            )
        )
        for agent in self.agents.values():
            if agent.is_up:
                agent.connect()

    def crash(self, *, writes_land: bool = False) -> None:
        """Kill the orchestrator; messages to it are lost, writes under way land or do not."""
        self.channels.clear()
        self.generation += 1
        for effect in self.unwritten.values():
            if writes_land:
                self.store.fates.clear()
                self.store.write(effect)
        self.unwritten.clear()
        self.open_calls.clear()
        for agent in self.agents.values():
            agent.is_connected = False

    def handle(self, event: ev.Event) -> None:
        if self.gathered is not None:
            self.gathered.append(event)
            return
        assert self.stepped_down is None or isinstance(event, ev.Started)
        self.trace.append(event)
        for effect in self.core.handle(event, self.now):
            self.trace.append(effect)
            self.perform(effect)

    # ---- effects

    def post(self, channel: Channel, deliver: Callable[[], None]) -> None:
        generation = self.generation

        def guarded() -> None:
            if generation == self.generation:
                deliver()

        self.channels.setdefault(channel, deque()).append(guarded)

    def _from_agent(self, channel: Channel, event: ev.Event) -> None:
        self.post(channel, lambda: self.handle(event))

    def perform(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.StartSnapshot) and self.on_save is not None:
            self.on_save(effect)
        if isinstance(effect, fx.ReplyAcquired | fx.ReplyQueued | fx.Refuse):
            self.open_calls.discard(effect.call)
        match effect:
            case fx.WakeAt(at_s):
                self.wake_at = at_s
            case fx.Record():
                self.unwritten[effect.record.group] = effect
                self.post(("store", effect.record.group), lambda: self._write(effect))
            case fx.ReadRecord(group):
                self.post(
                    ("store", group), lambda: self.handle(ev.RecordRead(group, self.store.records.get(group)))
                )
            case fx.RecordWaiter(waiter):
                self.store.waiters[(waiter.group, waiter.request)] = waiter
            case fx.ForgetWaiter(group, request):
                self.store.waiters.pop((group, request), None)
            case fx.ForgetEnded(group, up_to):
                self.store.ended = [e for e in self.store.ended if e.group != group or e.token > up_to]
            case fx.ReplyAcquired(call, lease, waited_s, restored, discarded):
                assert call not in self.cancelled, "a call that was cancelled was granted"
                self.grants.append(lease)
                if self.on_grant is not None:
                    self.on_grant(call, lease)
                self.answers[call] = Answer(
                    lease=lease, waited_s=waited_s, context_restored=restored, discarded=discarded
                )
            case fx.ReplyQueued(call):
                self.answers[call] = Answer(queued=True)
            case fx.ReplyYielded(call):
                self.answers[call] = Answer(yielded=effect)
            case fx.ReplyEvicted(call, actions):
                self.answers[call] = Answer(evicted=actions)
            case fx.Refuse(call, refusal):
                self.answers[call] = Answer(refusal=refusal)
            case fx.AnswerSession():
                self.opened.append(effect)
            case fx.NotifyLeaseLost():
                self.lost.append(effect)
                if self.on_loss is not None:
                    self.on_loss(effect)
            case fx.NotifyLeaseShared():
                self.shared.append(effect)
            case fx.LockContext() | fx.UnlockContext() | fx.StartSnapshot() | fx.StartRestore() | fx.QueryOperation():
                self.sent.append(effect)
                self.post(("call", effect.node, effect.operation), lambda: self._call(effect))
            case fx.KillContext():
                self.kills.append(effect)
                self.post(("call", effect.node, effect.operation), lambda: self._kill(effect))
            case fx.ForgetNode(node):
                self.agents[node].is_up = self.agents[node].is_connected = False
            case fx.Publish():
                self.published.append(effect)
            case fx.StepDown(reason):
                self.stepped_down = reason

    def _write(self, effect: fx.Record) -> None:
        self.unwritten.pop(effect.record.group)
        event = self.store.write(effect)
        self.post(("store", effect.record.group), lambda: self.handle(event))

    def _call(self, effect: Call) -> None:
        agent = self.agents[effect.node]
        if not agent.is_up:
            self._answer(
                effect, ev.AgentCallFailed(effect.node, effect.operation, AgentErrorKind.UNANSWERED, "unavailable")
            )
            return
        event: ev.Event | None
        match effect:
            case fx.LockContext():
                event = agent.lock(effect)
            case fx.UnlockContext():
                event = agent.unlock(effect)
            case fx.QueryOperation():
                event = agent.query(effect.operation)
            case _:
                event = agent.start(effect)
        if event is not None and not agent.is_mute:
            self._answer(effect, event)

    def _answer(self, effect: Call, event: ev.Event) -> None:
        self.post(("answer", effect.node, effect.operation), lambda: self.handle(event))

    def _kill(self, effect: fx.KillContext) -> None:
        if self.kill_failure is not None:
            self.handle(ev.AgentCallFailed(effect.node, effect.operation, *self.kill_failure))
            return
        self.agents[effect.node].disappear(effect.job, effect.group)

    # ---- running

    def deliverable(self) -> list[Channel]:
        """Return the channels that have a message, the oldest channel first."""
        return [channel for channel, messages in self.channels.items() if messages]

    def deliver(self, channel: Channel) -> None:
        messages = self.channels[channel]
        message = messages.popleft()
        if not messages:
            del self.channels[channel]
        message()

    def deliver_together(self, count: int) -> None:
        """Deliver what so many channels of agents have, the oldest first, as if all came in one turn of the loop."""
        channels = [channel for channel in self.deliverable() if channel[0] in ("stream", "answer")]
        self.gathered = []
        for channel in channels[:count]:
            for _ in range(len(self.channels[channel])):
                self.deliver(channel)
        events, self.gathered = self.gathered, None
        if events:
            self.handle(ev.Together(tuple(events)))

    def settle(self, *, working: bool = True, granting: bool = True) -> None:
        """Deliver everything, and let drivers finish, until nothing moves; `granting`: the store takes grants, too."""
        for _ in range(10_000):
            channels = [channel for channel in self.deliverable() if granting or not self.is_of_grant(channel)]
            if channels:
                self.deliver(channels[0])
                continue
            has_finished = False
            for agent in self.agents.values():
                for work in agent.running_works() if working and agent.is_up and not agent.is_stalled else ():
                    agent.finish(work)
                    has_finished |= work.result is not None
            if not has_finished:
                return
        raise AssertionError("does not come to rest: " + "\n".join(map(str, list(self.trace)[-24:])))

    def is_of_grant(self, channel: Channel) -> bool:
        """Tell whether a channel brings the store a record with a lease."""
        unwritten = self.unwritten.get(GroupId(channel[1])) if channel[0] == "store" else None
        return unwritten is not None and unwritten.record.lease is not None

    def advance(self, seconds: float) -> None:
        """Let time pass; everything that becomes due happens, in order."""
        end = self.now + seconds
        self.settle()
        for _ in range(100_000):
            if self.wake_at is None or self.wake_at > end:
                break
            self.now = max(self.now, self.wake_at)
            self.wake_at = None
            self.handle(ev.Woken())
            self.settle()
        else:
            raise AssertionError("wakes without end: " + "\n".join(map(str, list(self.trace)[-24:])))
        self.now = end

    # ---- clients

    def call(self) -> CallId:
        self.last_call = CallId(self.last_call + 1)
        return self.last_call

    def next_call(self) -> CallId:
        """Return what the next call's number will be."""
        return CallId(self.last_call + 1)

    def open(
        self,
        session: str,
        job: str,
        *processes: tuple[str, int],
        ttl_s: float = 0.0,
        claims: tuple[tuple[GroupId, Token], ...] = (),
    ) -> CallId:
        stream = self.call()
        refs = tuple(ProcessRef(NodeId(node), pid) for node, pid in processes)
        self.handle(
            ev.SessionRenewed(
                stream=stream, session=SessionId(session), job=JobId(job), ttl_s=ttl_s, processes=refs, claims=claims
            )
        )
        self.settle()
        return stream

    def ask(
        self,
        job: str,
        group: str = "g",
        request: str | None = None,
        session: str | None = None,
        wait_s: float | None = None,
    ) -> CallId:
        """Send an Acquire, and let everything happen that follows at once."""
        call = self.send_ask(job, group, request, session, wait_s)
        self.settle()
        return call

    def send_ask(
        self,
        job: str,
        group: str = "g",
        request: str | None = None,
        session: str | None = None,
        wait_s: float | None = None,
    ) -> CallId:
        call = self.call()
        self.open_calls.add(call)
        self.handle(
            ev.AcquireRequested(
                call=call,
                group=GroupId(group),
                job=JobId(job),
                request=RequestId(request) if request is not None else None,
                session=SessionId(session) if session is not None else None,
                wait_s=wait_s,
            )
        )
        return call

    def give(self, job: str, group: str = "g", token: int = 0, session: str | None = None) -> Answer:
        """Send a Yield, and let everything happen that follows at once; return its answer."""
        call = self.send_give(job, group, token, session)
        self.settle()
        return self.answers[call]

    def send_give(self, job: str, group: str = "g", token: int = 0, session: str | None = None) -> CallId:
        call = self.call()
        self.handle(
            ev.YieldRequested(
                call=call,
                group=GroupId(group),
                job=JobId(job),
                token=Token(token),
                session=SessionId(session) if session is not None else None,
            )
        )
        return call

    def cancel(self, call: CallId) -> None:
        self.cancelled.add(call)
        self.open_calls.discard(call)
        self.handle(ev.CallCancelled(call))
        self.settle()

    def evict(self, action: EvictAction, group: str = "g", job: str | None = None, **more: str) -> Answer:
        call = self.call()
        self.handle(
            ev.EvictRequested(
                call=call,
                group=GroupId(group),
                action=action,
                job=JobId(job) if job is not None else None,
                reason=more.get("reason", ""),
                request=RequestId(more["request"]) if "request" in more else None,
                node=NodeId(more["node"]) if "node" in more else None,
            )
        )
        self.settle()
        return self.answers[call]

    def lease(self, call: CallId) -> Lease | None:
        """Return the lease that a call was answered with; None: it was not, or not yet."""
        answer = self.answers.get(call)
        return answer.lease if answer is not None else None

    def refusal(self, call: CallId) -> Refusal:
        answer = self.answers[call]
        assert answer.refusal is not None, answer
        return answer.refusal

    # ---- nodes

    def agent(self, node: str = "n1") -> Agent:
        return self.agents[NodeId(node)]

    def appear(
        self,
        job: str,
        group: str = "g",
        nodes: Iterable[str] | None = None,
        pid: int = 0,
        size: int = CONTEXT_BYTES,
        *,
        is_unsampled: bool = False,
    ) -> None:
        """A job's processes start to use the device on all nodes."""
        for node in nodes or self.node_ids:
            self.agent(node).appear(
                JobId(job), GroupId(group), [pid] if pid else [], size, is_unsampled=is_unsampled
            )
        self.settle()

    def disappear(self, job: str, group: str = "g", nodes: Iterable[str] | None = None) -> None:
        for node in nodes or self.node_ids:
            self.agent(node).disappear(JobId(job), GroupId(group))
        self.settle()

    def context(self, job: str, group: str = "g", node: str = "n1") -> Context | None:
        return self.agent(node).contexts.get((JobId(job), GroupId(group)))

    def state(self, job: str, group: str = "g", node: str = "n1") -> str:
        """Say in one word how a context stands in truth."""
        context = self.context(job, group, node)
        if context is None:
            return "absent"
        if context.state is ContextState.RUNNING:
            return "locked" if context.locked else "running"
        return context.state.value

    def states(self, job: str, group: str = "g") -> list[str]:
        return [self.state(job, group, node) for node in self.node_ids]

    def disconnect(self, node: str = "n1", *, working: bool = True) -> None:
        agent = self.agent(node)
        agent.is_connected = False
        self.channels.pop(("stream", agent.node), None)
        self.handle(ev.NodeDisconnected(agent.node, "connection lost"))
        self.settle(working=working)

    def reconnect(self, node: str = "n1") -> None:
        agent = self.agent(node)
        if not agent.is_up:
            agent.restart()
        agent.connect()
        self.settle()

    # ---- status

    def view(self, group: str = "g") -> GroupView:
        view = self.core.view(GroupId(group), self.now)
        assert view is not None
        return view

    def conditions(self, group: str = "g") -> set[str]:
        return {condition.kind.value for condition in self.view(group).conditions}

    def kinds(self) -> list[str]:
        """Return what was published so far, in words."""
        return [event.kind for event in self.published]


def with_settings(**more: float) -> CoreSettings:
    return replace(SETTINGS, **more)  # type: ignore[arg-type]
