"""What a request must look like, as one table: which field, which rule. Nothing else looks at the form of input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

MAX_ID_CHARS = 253
MAX_TEXT_CHARS = 1024
MAX_PROCESSES = 4096
MAX_HELD = 4096
SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is refused before anybody looks at what it asks for."""

    code: grpc.StatusCode
    text: str


Rule = Callable[[str, Any], Problem | None]
"""From a field's name and value to what is wrong with it."""


def _invalid(text: str) -> Problem:
    return Problem(grpc.StatusCode.INVALID_ARGUMENT, text)


def _id(name: str, value: str) -> Problem | None:
    if not value:
        return _invalid(f"{name} is empty; give 1 to {MAX_ID_CHARS} characters")
    return _optional_id(name, value)


def _optional_id(name: str, value: str) -> Problem | None:
    if len(value) > MAX_ID_CHARS:
        return _invalid(
            f"{name} has {len(value)} characters ({value[:SHOWN_CHARS]!r}...); at most {MAX_ID_CHARS} are allowed")
    return _no_control_characters(name, value)


def _text(name: str, value: str) -> Problem | None:
    if len(value) > MAX_TEXT_CHARS:
        return _invalid(f"{name} has {len(value)} characters; at most {MAX_TEXT_CHARS} are allowed")
    return _no_control_characters(name, value)


def _no_control_characters(name: str, value: str) -> Problem | None:
    if value.isprintable():
        return None
    at = next(i for i, c in enumerate(value) if not c.isprintable())
    return _invalid(
        f"{name} has the control or unprintable character {value[at]!r} at position {at}; remove it")


def _not_negative(name: str, value: int) -> Problem | None:
    return _invalid(f"{name} is {value}; give 0 or more") if value < 0 else None


def _not_built(name: str, value: Any) -> Problem | None:
    return Problem(
        grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this server yet; leave it out") if value else None


def _one_participant(name: str, value: int) -> Problem | None:
    if value < 0:
        return _not_negative(name, value)
    return _not_built(name, value > 1)


def _ids(name: str, values: Any) -> Problem | None:
    if len(values) > MAX_PROCESSES:
        return _invalid(f"{name} has {len(values)} entries; at most {MAX_PROCESSES} are allowed")
    return next((p for i, value in enumerate(values) if (p := _id(f"{name}[{i}]", value))), None)


def _processes(name: str, values: Any) -> Problem | None:
    if len(values) > MAX_PROCESSES:
        return _invalid(f"{name} has {len(values)} entries; at most {MAX_PROCESSES} are allowed")
    for i, process in enumerate(values):
        problem = _id(f"{name}[{i}].node", process.node)
        if problem is None and process.pid <= 0:
            problem = _invalid(f"{name}[{i}].pid is {process.pid}; give a process id")
        if problem is None and process.start_time < 0:
            problem = _not_negative(f"{name}[{i}].start_time", process.start_time)
        if problem is not None:
            return problem
    return None


def _held(name: str, values: Any) -> Problem | None:
    if len(values) > MAX_HELD:
        return _invalid(f"{name} has {len(values)} entries; at most {MAX_HELD} are allowed")
    for i, lease in enumerate(values):
        problem = _id(f"{name}[{i}].group_id", lease.group_id)
        if problem is None and lease.fencing_token <= 0:
            problem = _invalid(f"{name}[{i}].fencing_token is {lease.fencing_token}; give that of the lease")
        if problem is not None:
            return problem
    return None


RULES: dict[type[Any], dict[str, Rule]] = {
    pb.AcquireRequest: {
        "job_id": _id,
        "group_id": _id,
        "request_id": _optional_id,
        "session_id": _optional_id,
        "additional_group_ids": _not_built,
        "expected_hold_ms": _not_negative,
        "participants": _one_participant,
        "participant": _optional_id,
        "wait_ms": _not_negative,
        "owner": _optional_id,
    },
    pb.YieldRequest: {
        "job_id": _id,
        "group_id": _id,
        "fencing_token": _not_negative,
        "session_id": _optional_id,
        "expected_idle_ms": _not_negative,
        "participant": _optional_id,
        "accelerators": _not_built,
    },
    pb.ListGroupsRequest: {},
    pb.GetGroupStatusRequest: {"group_id": _id},
    pb.SessionRequest: {
        "session_id": _id,
        "job_id": _id,
        "ttl_ms": _not_negative,
        "processes": _processes,
        "held": _held,
    },
    pb.WatchGroupsRequest: {"group_ids": _ids, "after_sequence": _not_negative},
    pb.EvictRequest: {
        "group_id": _id,
        "job_id": _optional_id,
        "reason": _text,
        "request_id": _optional_id,
        "node": _optional_id,
    },
}
"""Every request of the contract; fields that are not named take any value of their type."""


def problem_of(request: Any) -> Problem | None:
    """What is wrong with the form of this request, or None."""
    for name, rule in RULES[type(request)].items():
        problem = rule(name, getattr(request, name))
        if problem is not None:
            return problem
    return None
