"""Our own types to rows and back."""

from __future__ import annotations

import json
from typing import Any, assert_never

from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.effects import (
    ForgetOperation,
    ForgetProcess,
    ForgetTrees,
    ForgetWorkload,
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
)
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import (
    AcceleratorId,
    CommandId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    PodUid,
    ProcessId,
)
from snapshot_agent_server.core.memory import Memory
from snapshot_agent_server.core.modes import Backend, Mode, Wish
from snapshot_agent_server.core.operations import Kind, Operation, Phase, Result, Status, Work
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.turn import Turn
from snapshot_agent_server.core.workloads import Command, Workload, WorkloadState
from snapshot_agent_server.store.sqlite import Statement, Store


def to_statement(record: Record) -> Statement:
    match record:
        case RecordFence(group, token):
            return "insert or replace into fences values (?, ?)", (group, token)
        case RecordEpoch(epoch):
            return "insert or replace into facts values ('epoch', ?)", (str(epoch),)
        case RecordTurn(group, turn):
            return "insert or replace into turns values (?, ?)", (group, json.dumps(_turn_to_list(turn)))
        case RecordProcess(process, key, usage, saved):
            values = (process.pid, process.start_time, key.job, key.group, json.dumps(usage), json.dumps(saved))
            return "insert or replace into processes values (?, ?, ?, ?, ?, ?)", values
        case ForgetProcess(process):
            return "delete from processes where pid = ? and start_time = ?", (process.pid, process.start_time)
        case RecordTree(key, tree):
            tree_values = (key.job, key.group, tree.root.pid, tree.root.start_time, json.dumps(_tree_to_dict(tree)))
            return "insert or replace into trees values (?, ?, ?, ?, ?)", tree_values
        case ForgetTrees(key):
            return "delete from trees where job = ? and group_id = ?", (key.job, key.group)
        case RecordWorkload(workload):
            key, record_ = workload.key, json.dumps(workload_to_dict(workload))
            return "insert or replace into workloads values (?, ?, ?)", (key.job, key.group, record_)
        case ForgetWorkload(key):
            return "delete from workloads where job = ? and group_id = ?", (key.job, key.group)
        case RecordOperation(operation):
            sql = (
                "insert into operations values (?, (select coalesce(max(sequence), 0) + 1 from operations), ?)"
                " on conflict (id) do update set record = excluded.record"
            )
            return sql, (operation.id, json.dumps(operation_to_dict(operation)))
        case ForgetOperation(operation_id):
            return "delete from operations where id = ?", (operation_id,)
        case RecordPods(pods):
            return "insert or replace into facts values ('pods', ?)", (json.dumps([_pod_to_list(p) for p in pods]),)
        case RecordGroups(claims):
            values_ = json.dumps([[c.group, c.accelerators, c.unknown] for c in claims])
            return "insert or replace into facts values ('groups', ?)", (values_,)
        case _:
            assert_never(record)


def read_memory(store: Store, boot_id: str) -> Memory:
    """What is on record. Processes and unfinished operations of an earlier boot are left out: none of them lives."""
    facts = {str(name): str(value) for name, value in store.read("select name, value from facts")}
    is_same_boot = facts.get("boot_id", boot_id) == boot_id
    processes = []
    trees: list[tuple[ContextKey, Tree]] = []
    if is_same_boot:
        trees = [
            (ContextKey(JobId(str(job)), GroupId(str(group))), _tree_from_dict(json.loads(str(tree))))
            for job, group, tree in store.read("select job, group_id, record from trees order by rowid")
        ]
        rows = store.read("select pid, start_time, job, group_id, usage, saved from processes order by rowid")
        for pid, start_time, job, group, usage, saved in rows:
            record = ProcessRecord(ProcessId(int(str(pid)), int(str(start_time))))
            record.usage = {AcceleratorId(a): int(size) for a, size in json.loads(str(usage)).items()}
            record.saved = {AcceleratorId(a): int(size) for a, size in json.loads(str(saved)).items()}
            record.seen_on = frozenset(record.usage)
            processes.append((ContextKey(JobId(str(job)), GroupId(str(group))), record))
    rows = store.read("select job, group_id, record from workloads order by rowid") if is_same_boot else []
    workloads = [
        workload_from_dict(ContextKey(JobId(str(job)), GroupId(str(group))), json.loads(str(record)))
        for job, group, record in rows
    ]
    operations = [
        operation_from_dict(json.loads(str(record)))
        for (record,) in store.read("select record from operations order by sequence")
    ]
    return Memory(
        epoch=int(facts.get("epoch", "0")),
        tokens={GroupId(str(g)): int(str(t)) for g, t in store.read("select group_id, token from fences")},
        turns={
            GroupId(str(group)): _turn_from_list(json.loads(str(turn)))
            for group, turn in store.read("select group_id, turn from turns")
        },
        processes=processes,
        workloads=workloads,
        operations=operations if is_same_boot else [_of_earlier_boot(operation) for operation in operations],
        trees=trees,
        pods=[_pod_from_list(pod) for pod in json.loads(facts.get("pods", "[]"))],
        groups=_claims_from_list(json.loads(facts["groups"])) if "groups" in facts else None,
    )


def boot_statements(boot_id: str) -> list[Statement]:
    return [("insert or replace into facts values ('boot_id', ?)", (boot_id,))]


def operation_to_dict(operation: Operation) -> dict[str, Any]:
    result = operation.result
    return {
        "id": operation.id,
        "kind": operation.kind,
        "keys": [[key.job, key.group] for key in operation.keys],
        "accepted_at": operation.accepted_at,
        "deadline": operation.deadline,
        "token": operation.token,
        "epoch": operation.epoch,
        "left_locked": operation.is_left_locked,
        "after": operation.after,
        "wish": None if operation.wish is None else _wish_to_list(operation.wish),
        "backend": operation.backend,
        "has_moved": operation.has_moved,
        "phase": operation.phase,
        "work": [[process.pid, process.start_time, work.before] for process, work in operation.work.items()],
        "error": operation.error,
        "is_timeout": operation.is_timeout,
        "turns_before": {group: _turn_to_list(turn) for group, turn in operation.turns_before.items()},
        "started_at": operation.started_at,
        "ended_at": operation.ended_at,
        "result": None
        if result is None
        else {
            "status": result.status,
            "device_bytes": result.device_bytes,
            "elapsed_ms": result.elapsed_ms,
            "error": result.error,
            "rolled_back": result.is_rolled_back,
            "indeterminate": result.is_indeterminate,
            "gone": result.is_gone,
            "step_us": dict(result.step_us),
            "discarded": result.discarded,
        },
    }


def operation_from_dict(data: dict[str, Any]) -> Operation:
    result = data["result"]
    return Operation(
        id=OperationId(data["id"]),
        kind=Kind(data["kind"]),
        keys=tuple(ContextKey(JobId(job), GroupId(group)) for job, group in data["keys"]),
        accepted_at=data["accepted_at"],
        deadline=data["deadline"],
        token=data["token"],
        epoch=data["epoch"],
        is_left_locked=data["left_locked"],
        after=None if data["after"] is None else OperationId(data["after"]),
        wish=_wish_from_list(data["wish"]) if data.get("wish") else None,
        backend=Backend(data.get("backend", Backend.CUDA)),
        has_moved=data.get("has_moved", False),
        phase=Phase(data["phase"]),
        work={ProcessId(pid, start): Work(DriverState(before)) for pid, start, before in data["work"]},
        error=data["error"],
        is_timeout=data["is_timeout"],
        turns_before={GroupId(group): _turn_from_list(turn) for group, turn in data["turns_before"].items()},
        started_at=data["started_at"],
        ended_at=data["ended_at"],
        result=None
        if result is None
        else Result(
            status=Status(result["status"]),
            device_bytes=result["device_bytes"],
            elapsed_ms=result["elapsed_ms"],
            error=result["error"],
            is_rolled_back=result["rolled_back"],
            is_indeterminate=result["indeterminate"],
            is_gone=result["gone"],
            step_us=result["step_us"],
            discarded=tuple(result.get("discarded", ())),
        ),
    )


def _pod_to_list(pod: Pod) -> list[Any]:
    return [pod.uid, pod.name, pod.job, pod.group, sorted(pod.containers)]


def _pod_from_list(data: list[Any]) -> Pod:
    uid, name, job, group, containers = data
    return Pod(PodUid(uid), name, JobId(job), None if group is None else GroupId(group), frozenset(containers))


def _claims_from_list(data: list[Any]) -> list[GroupClaim]:
    return [
        GroupClaim(GroupId(group), tuple(map(AcceleratorId, accelerators)), tuple(unknown))
        for group, accelerators, unknown in data
    ]


def _tree_to_dict(tree: Tree) -> dict[str, Any]:
    return {
        "root": [tree.root.pid, tree.root.start_time],
        "uid": tree.uid,
        "keeper": None if tree.keeper is None else [tree.keeper.pid, tree.keeper.start_time],
        "cgroup": tree.cgroup,
        "marker": tree.marker,
    }


def _tree_from_dict(data: dict[str, Any]) -> Tree:
    keeper = data["keeper"]
    return Tree(
        root=ProcessId(*data["root"]),
        uid=data["uid"],
        keeper=None if keeper is None else ProcessId(*keeper),
        cgroup=data["cgroup"],
        marker=data["marker"],
    )


def workload_to_dict(workload: Workload) -> dict[str, Any]:
    """Without its connection, which ends with the agent."""
    server, command = workload.server, workload.command
    return {
        "instance": workload.instance,
        "server": None if server is None else [server.pid, server.start_time],
        "modes": workload.modes,
        "default_mode": workload.default_mode,
        "tags": workload.tags,
        "state": workload.state,
        "discarded": workload.discarded,
        "command": None
        if command is None
        else {
            "id": command.id,
            "operation": command.operation,
            "kind": command.kind,
            "mode": command.mode,
            "tags": command.tags,
            "sent_at": command.sent_at,
        },
    }


def workload_from_dict(key: ContextKey, data: dict[str, Any]) -> Workload:
    server, command = data["server"], data["command"]
    return Workload(
        key=key,
        instance=data["instance"],
        server=None if server is None else ProcessId(*server),
        modes=tuple(map(Mode, data["modes"])),
        default_mode=Mode(data["default_mode"]),
        tags=tuple(data["tags"]),
        state=WorkloadState(data["state"]),
        discarded=tuple(data["discarded"]),
        command=None
        if command is None
        else Command(
            id=CommandId(command["id"]),
            operation=OperationId(command["operation"]),
            kind=Kind(command["kind"]),
            mode=Mode(command["mode"]),
            tags=tuple(command["tags"]),
            sent_at=command["sent_at"],
        ),
    )


def _wish_to_list(wish: Wish) -> list[Any]:
    return [wish.backend, wish.mode, wish.tags]


def _wish_from_list(data: list[Any]) -> Wish:
    backend, mode, tags = data
    return Wish(Backend(backend), None if mode is None else Mode(mode), tuple(tags))


def _turn_to_list(turn: Turn) -> list[Any]:
    return [turn.job, sorted(turn.barred)]


def _turn_from_list(data: list[Any]) -> Turn:
    job, barred = data
    return Turn(None if job is None else JobId(job), frozenset(JobId(one) for one in barred))


def _of_earlier_boot(operation: Operation) -> Operation:
    """The monotonic clock has begun anew: as old as it can be. What was under way is gone with its processes."""
    operation.ended_at = 0.0
    if not operation.is_ended:
        operation.phase = Phase.ENDED
        operation.result = Result(Status.FAILED, error="gone: the machine was restarted", is_gone=True)
    return operation
