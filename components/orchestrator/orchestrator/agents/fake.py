"""A snapshot agent without devices: a real grpc.aio server with the agent's states; it fails, hangs or lags on demand.

It keeps the promises that the orchestrator builds on (tokens, epochs, lock, after_operation_id, pushed ends) and
reports in `violations` when somebody makes it break the second invariant: two jobs of one group unlocked at once.
With `old_contract=True` it knows nothing of the extensions: no Watch, no Lock, no field numbered 100 or above.
"""

import asyncio
import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc

AFTER_WAIT_S = 1.0
"""How long a Restore waits for the operation that it follows to arrive."""

WAIT_S = 0.005
"""How long an event waits for company that can wait."""

PLENTY_BYTES = 1 << 40

Key = tuple[str, str]
"""(job, group): a context on this node."""


class Outcome(StrEnum):
    """How an operation ends."""

    COMPLETE = "complete"
    ROLLED_BACK = "rolled_back"
    """FAILED; the job is as it was before."""
    FAILED = "failed"
    """FAILED; the job is faulted."""
    INDETERMINATE = "indeterminate"
    """The driver does not say: the context stays TRANSITIONING."""
    GONE = "gone"
    """The processes ended in the middle of it; no fault."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the next calls of one method do instead of succeeding at once."""

    delay_s: float = 0.0
    """Before an operation ends; for Lock, Unlock and Status, before the answer."""
    hang: bool = False
    """The call is accepted and never answered."""
    code: grpc.StatusCode | None = None
    """The call is refused with this status."""
    outcome: Outcome = Outcome.COMPLETE
    gate: asyncio.Event | None = None
    """The operation (or answer) waits until the test sets it."""
    lose_reply: bool = False
    """The call takes effect, but its answer is UNAVAILABLE."""


@dataclass(slots=True)
class FakeContext:
    job: str
    group: str
    state: "pb.JobState" = pb.JOB_STATE_RUNNING
    locked: bool = False
    pids: list[int] = field(default_factory=lambda: [1])
    size_bytes: int = 1 << 20
    reason: str = ""


@dataclass(slots=True)
class _Operation:
    id: str
    key: Key
    result: pb.GetOperationResponse
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.refusal = pb.OrderRefusal(code=code.value[0], details=details)


class _OrderContext:
    """What a method needs of the context of its call, for an order of a stream."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _Aborted(code, details)


class FakeAgent(pb_grpc.SnapshotAgentServiceServicer):
    """One node's agent. `accelerators` maps an accelerator's id to the groups that it belongs to."""

    takes_orders = True
    """Whether it has the stream for orders."""

    def __init__(
        self,
        accelerators: dict[str, Sequence[str]],
        *,
        old_contract: bool = False,
        total_bytes: int = PLENTY_BYTES,
        keeps_calls: bool = True,
    ) -> None:
        """`keeps_calls`: False where so many come that they would fill the memory; `calls` stays empty then."""
        self.accelerators = {name: list(groups) for name, groups in accelerators.items()}
        self._ids_of: dict[str, list[str]] = defaultdict(list)
        for name, groups in self.accelerators.items():
            for group in groups:
                self._ids_of[group].append(name)
        self.old_contract = old_contract
        self.total_bytes = total_bytes
        self.takes_restores_along = True
        """Whether it knows SnapshotRequest.then_restore."""
        self.incarnation = uuid.uuid4().hex
        self.contexts: dict[Key, FakeContext] = {}
        self._by_group: dict[str, dict[str, FakeContext]] = defaultdict(dict)
        self.tokens: dict[str, int] = defaultdict(int)
        self.epoch = 0
        self.operations: dict[str, _Operation] = {}
        self.calls: list[tuple[str, Any]] = []
        """Every request received, with its method's name, in order."""
        self.calls_total = 0
        self.messages_total = 0
        """Messages pushed, over all Watch streams."""
        self._keeps_calls = keeps_calls
        self.violations: list[str] = []
        self._scripts: dict[str, deque[Behaviour]] = defaultdict(deque)
        self._always: dict[str, Behaviour] = {}
        self._watchers: dict[asyncio.Queue[pb.AgentEvent | None], int] = {}
        self._waiting: list[pb.AgentEvent] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sequence = itertools.count(1)
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    # What a test does to it.

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """Serve on `address`: "unix:PATH" or "HOST:PORT" (port 0: see `self.port`); plain without `credentials`."""
        self._server = grpc.aio.server(options=[
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ])
        if self.old_contract:
            self._server.add_generic_rpc_handlers((_old_handlers(self),))
        else:
            pb_grpc.add_SnapshotAgentServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once, as a killed process would; states stay, for a later start()."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._watchers.clear()

    def restarted(self) -> None:
        """Forget what an agent process keeps in memory only: operations and streams."""
        self.incarnation = uuid.uuid4().hex
        self.operations.clear()
        self._sequence = itertools.count(1)

    def next(self, method: str, *behaviours: Behaviour) -> None:
        """The next calls of `method` behave so, one each; then normally again."""
        self._scripts[method].extend(behaviours)

    def always(self, method: str, behaviour: Behaviour | None) -> None:
        """Every call of `method` behaves so, until told otherwise (None: normally)."""
        if behaviour is None:
            self._always.pop(method, None)
        else:
            self._always[method] = behaviour

    def put(self, job: str, group: str, **fields: Any) -> FakeContext:
        """A context appears (its process touched the device), or changes; watchers are told."""
        context = self.contexts.setdefault((job, group), FakeContext(job, group))
        self._by_group[group][job] = context
        for name, value in fields.items():
            setattr(context, name, value)
        self._push_job(context)
        return context

    def remove(self, job: str, group: str) -> None:
        """A context's processes end."""
        if self.contexts.pop((job, group), None) is not None:
            del self._by_group[group][job]
            self._push(pb.AgentEvent(gone=pb.ContextRef(job_id=job, group=group)))

    def break_streams(self) -> None:
        """End every Watch stream, as a proxy or a restart does."""
        for queue in list(self._watchers):
            queue.put_nowait(None)

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    async def called(self, method: str, times: int = 1) -> None:
        """Wait until `method` was called at least so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests(method)) >= times)

    async def settled(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition over this agent's state holds; looked at after every change."""
        async with self._changed:
            await self._changed.wait_for(condition)

    # The contract.

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        await self._enter("Status", request, context)
        return self._status(per_context=request.per_context)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotResponse:
        behaviour = await self._enter("Snapshot", request, context)
        await self._fence(request.group, request.fencing_token, request.leader_epoch, context)
        operation = self._begin(request.operation_id, (request.job_id, request.group), behaviour, "", self._save)
        then = None
        if request.HasField("then_restore") and self._takes_restore_along():
            along = await self._enter("Restore", request.then_restore, context)
            then = self._begin_restore(request.then_restore, along)
        await self._leave(behaviour, context)
        return pb.SnapshotResponse(operation_id=operation.id, then_operation_id=then.id if then is not None else "")

    async def Restore(self, request: pb.RestoreRequest, context: Any) -> pb.RestoreResponse:
        behaviour = await self._enter("Restore", request, context)
        await self._fence(request.group, request.fencing_token, request.leader_epoch, context)
        operation = self._begin_restore(request, behaviour)
        await self._leave(behaviour, context)
        return pb.RestoreResponse(operation_id=operation.id)

    async def GetOperation(self, request: pb.GetOperationRequest, context: Any) -> pb.GetOperationResponse:
        await self._enter("GetOperation", request, context)
        operation = self.operations.get(request.operation_id)
        if operation is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"operation {request.operation_id!r} is not known here")
            raise AssertionError
        return operation.result if not self.old_contract else _without_extensions(operation.result)

    async def Lock(self, request: pb.LockRequest, context: Any) -> pb.LockResponse:
        behaviour = await self._enter("Lock", request, context)
        ref = request.context
        await self._fence(ref.group, request.fencing_token, request.leader_epoch, context)
        if behaviour.outcome is not Outcome.COMPLETE:
            await context.abort(grpc.StatusCode.ABORTED, f"cannot lock job {ref.job_id!r}; all were unlocked")
        pids: list[int] = []
        for held in self._named(ref):
            held.locked = True
            pids += held.pids
            self._push_job(held, can_wait=True)
        await self._leave(behaviour, context)
        return pb.LockResponse(locked_pids=pids)

    async def Unlock(self, request: pb.UnlockRequest, context: Any) -> pb.UnlockResponse:
        behaviour = await self._enter("Unlock", request, context)
        ref = request.context
        await self._fence(ref.group, request.fencing_token, request.leader_epoch, context)
        for held in self._named(ref):
            if held.state == pb.JOB_STATE_SAVED:
                self.violations.append(f"Unlock of saved job {held.job!r} in group {held.group!r}")
                continue
            held.locked = False
            self._push_job(held, can_wait=True)
            self._check(held.group)
        await self._leave(behaviour, context)
        return pb.UnlockResponse()

    async def Kill(self, request: pb.KillRequest, context: Any) -> pb.KillResponse:
        behaviour = await self._enter("Kill", request, context)
        ref = request.context
        await self._fence(ref.group, request.fencing_token, request.leader_epoch, context)
        killed = list(self._named(ref))
        if not killed:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"job {ref.job_id!r} has no context here")
        for held in killed:
            self.remove(held.job, held.group)
        await self._leave(behaviour, context)
        return pb.KillResponse(killed_pids=[pid for held in killed for pid in held.pids])

    async def Orders(self, orders: AsyncIterator[pb.Order], context: Any) -> None:
        if self.old_contract or not self.takes_orders:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        methods: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "snapshot": self.Snapshot, "restore": self.Restore, "lock": self.Lock, "unlock": self.Unlock
        }
        writing = asyncio.Lock()

        async def carry_out(order: pb.Order) -> None:
            kind = order.WhichOneof("call")
            assert kind is not None
            try:
                told = pb.OrderAnswer(id=order.id, **{kind: await methods[kind](getattr(order, kind), _OrderContext())})
            except _Aborted as error:
                told = pb.OrderAnswer(id=order.id, refusal=error.refusal)
            async with writing:
                await context.write(told)

        async with asyncio.TaskGroup() as tasks:
            while (order := await context.read()) is not grpc.aio.EOF:
                tasks.create_task(carry_out(order))

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.AgentEvent]:
        await self._enter("Watch", request, context)
        if request.leader_epoch < self.epoch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"leader epoch {request.leader_epoch} is over")
        self._raise_epoch(request.leader_epoch)
        self._push_waiting()  # they are in the status already
        queue: asyncio.Queue[pb.AgentEvent | None] = asyncio.Queue()
        self._watchers[queue] = request.leader_epoch
        first = pb.AgentEvent(snapshot=self._status(per_context=True))
        first.sequence, first.incarnation = next(self._sequence), self.incarnation
        try:
            yield first
            is_ended = False
            while not is_ended:
                waiting = [await queue.get()]
                while request.takes_together and not queue.empty():
                    waiting.append(queue.get_nowait())
                is_ended = None in waiting
                events = [event for event in waiting if event is not None]
                if events:
                    self.messages_total += 1
                    yield events[0] if len(events) == 1 else pb.AgentEvent(together=events)
        finally:
            self._watchers.pop(queue, None)

    # Inside.

    async def _enter(self, method: str, request: Any, context: Any) -> Behaviour:
        self.calls_total += 1
        if self._keeps_calls:
            self.calls.append((method, request))
            await self._notify()
        script = self._scripts[method]
        behaviour = script.popleft() if script else self._always.get(method, Behaviour())
        if behaviour.hang:
            await asyncio.Event().wait()
        if behaviour.code is not None:
            await context.abort(behaviour.code, f"{method} fails on demand")
        if method not in ("Snapshot", "Restore"):
            await _pause(behaviour)
        return behaviour

    async def _leave(self, behaviour: Behaviour, context: Any) -> None:
        await self._notify()
        if behaviour.lose_reply:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost on demand")

    async def _fence(self, group: str, token: int, epoch: int, context: Any) -> None:
        if self.old_contract:
            return
        if epoch < self.epoch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"leader epoch {epoch} is over: {self.epoch}")
        if token < self.tokens[group]:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"token {token} of group {group!r} is over: {self.tokens[group]}",
            )
        self._raise_epoch(epoch)
        self.tokens[group] = token

    def _raise_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            for queue, watched in list(self._watchers.items()):
                if watched < epoch:
                    queue.put_nowait(None)

    def _named(self, ref: pb.ContextRef) -> Iterable[FakeContext]:
        if ref.group:
            named = self.contexts.get((ref.job_id, ref.group))
            return [] if named is None else [named]
        return [c for (job, _), c in self.contexts.items() if job == ref.job_id]

    def _takes_restore_along(self) -> bool:
        """Not if it does not know that, nor if the next call of Restore is to fail as a call."""
        script = self._scripts["Restore"]
        behaviour = script[0] if script else self._always.get("Restore", Behaviour())
        fails = behaviour.hang or behaviour.code is not None or behaviour.lose_reply
        return self.takes_restores_along and not self.old_contract and not fails

    def _begin_restore(self, request: pb.RestoreRequest, behaviour: Behaviour) -> _Operation:
        def load(key: Key, outcome: Outcome) -> str:
            is_overtaken = request.leader_epoch < self.epoch or request.fencing_token < self.tokens[key[1]]
            leave_locked = (request.leave_locked or is_overtaken) and not self.old_contract
            return self._load(key, outcome, leave_locked)

        after = "" if self.old_contract else request.after_operation_id
        return self._begin(request.operation_id, (request.job_id, request.group), behaviour, after, load)

    def _begin(
        self, wanted_id: str, key: Key, behaviour: Behaviour, after: str, act: Callable[[Key, Outcome], str]
    ) -> _Operation:
        operation_id = wanted_id if wanted_id and not self.old_contract else uuid.uuid4().hex
        if operation_id in self.operations:
            return self.operations[operation_id]
        pending = pb.GetOperationResponse(status=pb.OPERATION_STATUS_PENDING)
        operation = self.operations[operation_id] = _Operation(operation_id, key, pending)
        task = asyncio.create_task(self._run(operation, behaviour, after, act), name=f"fake operation {operation_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return operation

    async def _run(
        self, operation: _Operation, behaviour: Behaviour, after: str, act: Callable[[Key, Outcome], str]
    ) -> None:
        error, outcome = "", behaviour.outcome
        if after:
            before = await self._arrival(after)
            if before is not None:
                await before.ended.wait()
            if before is None or before.result.status != pb.OPERATION_STATUS_COMPLETE:
                error, outcome = f"operation {after!r} before it did not complete", Outcome.ROLLED_BACK
        if not error:
            held = self.contexts.get(operation.key)
            if held is not None and (behaviour.delay_s or behaviour.gate):
                before_state = held.state
                held.state = pb.JOB_STATE_TRANSITIONING
                self._push_job(held)
                await _pause(behaviour)
                held.state = before_state
            error = act(operation.key, outcome)
        result = pb.GetOperationResponse(
            status=pb.OPERATION_STATUS_FAILED if error else pb.OPERATION_STATUS_COMPLETE,
            elapsed_ms=int(behaviour.delay_s * 1000),
            rolled_back=bool(error) and outcome is Outcome.ROLLED_BACK,
            indeterminate=outcome is Outcome.INDETERMINATE,
        )
        if error:
            result.error = error
        operation.result = result
        operation.ended.set()
        ref = pb.ContextRef(job_id=operation.key[0], group=operation.key[1])
        left = self.contexts.get(operation.key)
        if left is not None:
            self._push_job(left)
        self._push(pb.AgentEvent(
            operation=pb.OperationEnded(operation_id=operation.id, context=ref, result=result)))
        self._check(operation.key[1])
        await self._notify()

    async def _arrival(self, operation_id: str) -> _Operation | None:
        """An operation, waiting a moment for it: calls of one connection may overtake each other."""
        if operation_id in self.operations:
            return self.operations[operation_id]
        try:
            async with asyncio.timeout(AFTER_WAIT_S), self._changed:
                await self._changed.wait_for(lambda: operation_id in self.operations)
        except TimeoutError:
            return None
        return self.operations[operation_id]

    def _save(self, key: Key, outcome: Outcome) -> str:
        held = self.contexts.get(key)
        if held is None or outcome is Outcome.GONE:
            self.remove(*key)
            return "" if held is None else f"gone: the processes of job {key[0]!r} ended"
        match outcome:
            case Outcome.COMPLETE:
                held.state, held.locked = pb.JOB_STATE_SAVED, False
            case Outcome.FAILED:
                held.state, held.reason = pb.JOB_STATE_FAULTED, "the driver reports FAILED"
            case Outcome.INDETERMINATE:
                held.state, held.locked = pb.JOB_STATE_TRANSITIONING, True
            case _:
                held.locked = False
        return "" if outcome is Outcome.COMPLETE else f"snapshot of job {key[0]!r} failed on demand"

    def _load(self, key: Key, outcome: Outcome, leave_locked: bool) -> str:
        held = self.contexts.get(key)
        if held is None or outcome is Outcome.GONE:
            self.remove(*key)
            return "" if held is None else f"gone: the processes of job {key[0]!r} ended"
        match outcome:
            case Outcome.COMPLETE:
                if held.state == pb.JOB_STATE_SAVED:
                    if self.total_bytes < PLENTY_BYTES and self._used_bytes() + held.size_bytes > self.total_bytes:
                        return f"not enough device memory for job {key[0]!r}"
                    held.state, held.locked = pb.JOB_STATE_RUNNING, leave_locked
            case Outcome.FAILED:
                held.state, held.reason = pb.JOB_STATE_FAULTED, "the driver reports FAILED"
            case Outcome.INDETERMINATE:
                held.state = pb.JOB_STATE_TRANSITIONING
            case _:
                pass
        return "" if outcome is Outcome.COMPLETE else f"restore of job {key[0]!r} failed on demand"

    def _used_bytes(self) -> int:
        return sum(held.size_bytes for held in self.contexts.values() if held.state == pb.JOB_STATE_RUNNING)

    def _check(self, group: str) -> None:
        jobs = [
            held.job
            for held in self._by_group[group].values()
            if held.state == pb.JOB_STATE_RUNNING and not held.locked
        ]
        if len(jobs) > 1:
            self.violations.append(f"group {group!r}: {jobs} unlocked at once")

    def _status(self, per_context: bool) -> pb.StatusResponse:
        answer = pb.StatusResponse(
            job_statuses=[self._job_status(held) for held in self.contexts.values()],
            accelerator_statuses=[
                pb.AcceleratorStatus(id=name, memory_total_bytes=self.total_bytes, groups=groups)
                for name, groups in self.accelerators.items()],
            fences=[pb.Fence(group=group, fencing_token=token, leader_epoch=self.epoch)
                    for group, token in self.tokens.items()] or [pb.Fence(leader_epoch=self.epoch)],
        )
        if self.old_contract:
            answer = pb.StatusResponse(
                job_statuses=[pb.JobStatus(job_id=s.job_id, state=s.state) for s in answer.job_statuses],
                accelerator_statuses=[
                    pb.AcceleratorStatus(id=a.id, memory_total_bytes=a.memory_total_bytes)
                    for a in answer.accelerator_statuses])
        return answer

    def _job_status(self, held: FakeContext) -> pb.JobStatus:
        ids = self._ids_of[held.group]
        on_device = held.size_bytes if held.state in (pb.JOB_STATE_RUNNING, pb.JOB_STATE_TRANSITIONING) else 0
        saved = held.size_bytes if held.state == pb.JOB_STATE_SAVED else 0
        return pb.JobStatus(
            job_id=held.job, group=held.group, state=held.state, locked=held.locked, pids=held.pids,
            device_bytes=on_device, host_bytes=saved, accelerator_ids=ids, reason=held.reason, backend="cuda",
            usage=[pb.DeviceUsage(accelerator_id=name, device_bytes=on_device, saved_bytes=saved) for name in ids])

    def _push_job(self, held: FakeContext, *, can_wait: bool = False) -> None:
        self._push(pb.AgentEvent(job=self._job_status(held)), can_wait=can_wait)

    def _push(self, event: pb.AgentEvent, *, can_wait: bool = False) -> None:
        """`can_wait`: an answer tells it, too; it goes with the next event, or soon."""
        event.sequence, event.incarnation = next(self._sequence), self.incarnation
        if can_wait:
            self._waiting.append(event)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._push_waiting)
            return
        self._push_waiting()
        for queue in self._watchers:
            queue.put_nowait(event)

    def _push_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for queue in self._watchers:
            for event in waiting:
                queue.put_nowait(event)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _pause(behaviour: Behaviour) -> None:
    if behaviour.delay_s:
        await asyncio.sleep(behaviour.delay_s)
    if behaviour.gate is not None:
        await behaviour.gate.wait()


def _without_extensions(result: pb.GetOperationResponse) -> pb.GetOperationResponse:
    old = pb.GetOperationResponse()
    old.CopyFrom(result)
    old.ClearField("rolled_back")
    old.ClearField("step_us")
    old.ClearField("indeterminate")
    return old


def _old_handlers(agent: FakeAgent) -> grpc.GenericRpcHandler:
    methods: dict[str, tuple[Any, Any]] = {
        "Snapshot": (agent.Snapshot, pb.SnapshotRequest),
        "Restore": (agent.Restore, pb.RestoreRequest),
        "GetOperation": (agent.GetOperation, pb.GetOperationRequest),
        "Status": (agent.Status, pb.StatusRequest),
    }
    return grpc.method_handlers_generic_handler("snapshot_agent.v1alpha1.SnapshotAgentService", {
        name: grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=lambda m: m.SerializeToString())
        for name, (method, request) in methods.items()
    })
