"""Messages that come in, checked field by field, to our own types."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.api.errors import BadRequest, NotBuilt
from snapshot_agent_server.core.ids import (
    CommandId,
    ConnectionId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    ProcessId,
)
from snapshot_agent_server.core.modes import Backend, Mode, Wish
from snapshot_agent_server.core.operations import Kind
from snapshot_agent_server.core.trees import TreeClaim
from snapshot_agent_server.core.workloads import CommandResult, Offer

MAX_ID = 253
MAX_PIDS = 4096
MIN_MARKER = 16
MAX_REASON = 500
MAX_ERROR = 2000
MAX_TAGS = 64
MAX_RESULTS = 16
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000
MODES: dict[int, Mode] = {pb.SUSPEND_MODE_OFFLOAD: Mode.OFFLOAD, pb.SUSPEND_MODE_DISCARD: Mode.DISCARD}


@dataclass(frozen=True, slots=True)
class Call:
    """A Snapshot, Restore, Lock or Unlock."""

    kind: Kind
    job: JobId
    group: GroupId | None
    operation: OperationId
    token: int
    epoch: int
    timeout_s: float = 0.0
    leave_locked: bool = False
    after: OperationId | None = None
    pids: tuple[int, ...] = ()
    wish: Wish | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """What a workload says of itself on its channel."""

    key: ContextKey
    pids: tuple[int, ...]
    tree: TreeClaim | None = None
    offer: Offer | None = None
    """None: it has no callbacks, and the driver saves it. Its server is for the shell to fill in:"""
    server: ProcessId | None = None
    """The process that it says it is; not checked."""


@dataclass(frozen=True, slots=True)
class KillCall:
    job: JobId
    group: GroupId | None
    token: int
    epoch: int
    reason: str


def snapshot_call(request: pb.SnapshotRequest) -> Call:
    return Call(
        kind=Kind.SNAPSHOT,
        job=JobId(_id("job_id", request.job_id)),
        group=_group(request.group),
        operation=_operation(request.operation_id),
        token=_not_negative("fencing_token", request.fencing_token),
        epoch=_not_negative("leader_epoch", request.leader_epoch),
        timeout_s=_timeout(request.timeout_ms),
        pids=_targets(request.backend_config),
        wish=_wish(request.backend_config),
    )


def restore_call(request: pb.RestoreRequest) -> Call:
    operation = _operation(request.operation_id)
    after = _id("after_operation_id", request.after_operation_id) if request.after_operation_id else None
    if after == operation:
        raise BadRequest("after_operation_id", "names the operation itself")
    return Call(
        kind=Kind.RESTORE,
        job=JobId(_id("job_id", request.job_id)),
        group=_group(request.group),
        operation=operation,
        token=_not_negative("fencing_token", request.fencing_token),
        epoch=_not_negative("leader_epoch", request.leader_epoch),
        timeout_s=_timeout(request.timeout_ms),
        leave_locked=request.leave_locked,
        after=None if after is None else OperationId(after),
        pids=_targets(request.backend_config),
        wish=_wish(request.backend_config),
    )


def lock_call(request: pb.LockRequest) -> Call:
    if request.timeout_ms <= 0:
        raise BadRequest("timeout_ms", "must be above 0: the driver takes 0 as 'wait for ever'")
    return Call(
        kind=Kind.LOCK,
        job=JobId(_id("context.job_id", request.context.job_id)),
        group=_group(request.context.group, "context.group"),
        operation=_own_operation("lock"),
        token=_not_negative("fencing_token", request.fencing_token),
        epoch=_not_negative("leader_epoch", request.leader_epoch),
        timeout_s=_timeout(request.timeout_ms),
    )


def unlock_call(request: pb.UnlockRequest) -> Call:
    return Call(
        kind=Kind.UNLOCK,
        job=JobId(_id("context.job_id", request.context.job_id)),
        group=_group(request.context.group, "context.group"),
        operation=_own_operation("unlock"),
        token=_not_negative("fencing_token", request.fencing_token),
        epoch=_not_negative("leader_epoch", request.leader_epoch),
    )


def kill_call(request: pb.KillRequest) -> KillCall:
    return KillCall(
        job=JobId(_id("context.job_id", request.context.job_id)),
        group=_group(request.context.group, "context.group"),
        token=_not_negative("fencing_token", request.fencing_token),
        epoch=_not_negative("leader_epoch", request.leader_epoch),
        reason=request.reason[:MAX_REASON],
    )


def registration(request: pb.RegisterWorkload, connection: ConnectionId, groups: Collection[GroupId]) -> Registration:
    """`groups`: of this node; if there is one only, a workload need not name it.

    Raises: BadRequest; NotBuilt for backends that this agent does not have.
    """
    group = request.group or (next(iter(groups)) if len(groups) == 1 else "")
    key = ContextKey(JobId(_id("job_id", request.job_id)), GroupId(_id("group", group)))
    targets = _targets(request.backend_config)
    tree = _tree(request.tree) if request.HasField("tree") else None
    pids = _pids("pids", [*request.pids, *targets, *([tree.root_pid] if tree is not None else [])])
    backend = request.backend_config.WhichOneof("backend")
    if backend == "app_channel" or (backend is None and request.HasField("capabilities")):
        instance = request.instance
        server = ProcessId(instance.pid, instance.start_time) if instance.pid > 0 else None
        return Registration(key, pids, tree, _offer(request, connection), server)
    if not pids:
        raise BadRequest(
            "pids",
            "name the processes that use the accelerators, or say in capabilities how the workload saves itself",
        )
    return Registration(key, pids, tree)


def command_result(message: pb.CommandResult) -> CommandResult:
    command = CommandId(_id("result.command_id", message.command_id))
    return CommandResult(command, None if message.ok else message.error[:MAX_ERROR] or "it did not say why")


def operation_id(request: pb.GetOperationRequest) -> OperationId:
    return OperationId(_id("operation_id", request.operation_id))


def epoch(request: pb.WatchRequest) -> int:
    return _not_negative("leader_epoch", request.leader_epoch)


def _offer(request: pb.RegisterWorkload, connection: ConnectionId) -> Offer:
    """Raises: BadRequest."""
    capabilities, config, instance = request.capabilities, request.backend_config.app_channel, request.instance
    modes = tuple(dict.fromkeys(_mode("capabilities.supported_modes", m) for m in capabilities.supported_modes))
    wanted = config.mode or capabilities.default_mode
    default = _mode("capabilities.default_mode", wanted) if wanted else None
    modes = modes or (default or Mode.OFFLOAD,)
    if default is None:
        default = Mode.OFFLOAD if Mode.OFFLOAD in modes else modes[0]
    if default not in modes:
        raise BadRequest("capabilities.default_mode", f"{default} is not among the modes that are supported")
    if len(instance.results) > MAX_RESULTS:
        raise BadRequest("instance.results", f"{len(instance.results)} results; at most {MAX_RESULTS} are taken")
    running = instance.running_command_id
    return Offer(
        connection=connection,
        instance=_id("instance.id", instance.id) if request.HasField("instance") else "",
        modes=modes,
        default_mode=default,
        tags=_tags("capabilities.tags", config.tags or capabilities.tags),
        results=tuple(map(command_result, instance.results)),
        running=CommandId(_id("instance.running_command_id", running)) if running else None,
        is_returning=instance.returns,
        is_saved=instance.saved,
    )


def _wish(config: pb.BackendConfig) -> Wish | None:
    match config.WhichOneof("backend"):
        case "cuda":
            return Wish(Backend.CUDA)
        case "app_channel":
            wanted = config.app_channel
            mode = _mode("backend_config.app_channel.mode", wanted.mode) if wanted.mode else None
            return Wish(Backend.APP_CHANNEL, mode, _tags("backend_config.app_channel.tags", wanted.tags))
        case _:
            return None


def _mode(field: str, number: int) -> Mode:
    if number not in MODES:
        raise BadRequest(field, f"{number} is no mode; known are {', '.join(MODES.values())}")
    return MODES[number]


def _tags(field: str, tags: Sequence[str]) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise BadRequest(field, f"{len(tags)} tags; at most {MAX_TAGS} are taken")
    return tuple(dict.fromkeys(_id(field, tag) for tag in tags))


def _targets(config: pb.BackendConfig) -> tuple[int, ...]:
    """The processes that a request names. Raises: NotBuilt for backends that this agent does not have."""
    backend = config.WhichOneof("backend")
    if backend in (None, "app_channel"):
        return ()
    if backend != "cuda":
        raise NotBuilt(
            f"backend_config.{backend} is not built yet; leave backend_config out, or set cuda or app_channel in it"
        )
    return _pids("backend_config.cuda.explicit_target.pids", config.cuda.explicit_target.pids)


def _tree(tree: pb.ProcessTree) -> TreeClaim:
    _pids("tree.root_pid", [tree.root_pid])
    if tree.keeper_pid < 0:
        raise BadRequest("tree.keeper_pid", f"{tree.keeper_pid} is no process id")
    controllers = tree.cgroup_controllers if tree.HasField("cgroup_controllers") else None
    if controllers is not None and not re.fullmatch(r"[a-z0-9_,=]{0,253}", controllers):
        raise BadRequest("tree.cgroup_controllers", "must be as in /proc/PID/cgroup: empty, or names of controllers")
    if tree.marker and (len(_id("tree.marker", tree.marker)) < MIN_MARKER or not tree.marker.isascii()):
        raise BadRequest("tree.marker", f"must be ASCII and have at least {MIN_MARKER} characters, not to be guessed")
    return TreeClaim(tree.root_pid, tree.keeper_pid or None, controllers, tree.marker)


def _pids(field: str, pids: Sequence[int]) -> tuple[int, ...]:
    if len(pids) > MAX_PIDS:
        raise BadRequest(field, f"{len(pids)} processes; at most {MAX_PIDS} are taken")
    for pid in pids:
        if pid <= 0:
            raise BadRequest(field, f"{pid} is no process id")
    return tuple(dict.fromkeys(pids))


def _id(field: str, value: str) -> str:
    if not value:
        raise BadRequest(field, "must not be empty")
    if len(value) > MAX_ID:
        raise BadRequest(field, f"has {len(value)} characters; at most {MAX_ID} are allowed")
    if not value.isprintable():
        raise BadRequest(field, "must not contain control characters")
    return value


def _group(value: str, field: str = "group") -> GroupId | None:
    """None: all contexts of the job, as peers without groups mean it."""
    return GroupId(_id(field, value)) if value else None


def _operation(value: str) -> OperationId:
    return OperationId(_id("operation_id", value) if value else f"op-{uuid.uuid4()}")


def _own_operation(kind: str) -> OperationId:
    return OperationId(f"{kind}-{uuid.uuid4()}")


def _not_negative(field: str, value: int) -> int:
    if value < 0:
        raise BadRequest(field, f"{value} is below 0")
    return value


def _timeout(value: int) -> float:
    if not 0 <= value <= MAX_TIMEOUT_MS:
        raise BadRequest("timeout_ms", f"{value} is not between 0 and {MAX_TIMEOUT_MS}")
    return value / 1000
