"""What a request must look like, as one table: which field, which rule. Nothing else looks at the form of input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

MAX_ID_CHARS = 253
MAX_TEXT_CHARS = 1024
MAX_ENTRIES = 4096
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


def _each(name: str, values: Any, rule: Rule) -> Problem | None:
    """The first problem of a list."""
    if len(values) > MAX_ENTRIES:
        return _invalid(f"{name} has {len(values)} entries; at most {MAX_ENTRIES} are allowed")
    return next((p for i, value in enumerate(values) if (p := rule(f"{name}[{i}]", value))), None)


def _ids(name: str, values: Any) -> Problem | None:
    return _each(name, values, _id)


def _processes(name: str, values: Any) -> Problem | None:
    return _each(name, values, _process)


def _process(name: str, process: Any) -> Problem | None:
    problem = _id(f"{name}.node", process.node)
    if problem is None and process.pid <= 0:
        problem = _invalid(f"{name}.pid is {process.pid}; give a process id")
    if problem is None and process.start_time < 0:
        problem = _not_negative(f"{name}.start_time", process.start_time)
    return problem


def _held(name: str, values: Any) -> Problem | None:
    return _each(name, values, _held_lease)


def _held_lease(name: str, lease: Any) -> Problem | None:
    problem = _id(f"{name}.group_id", lease.group_id)
    if problem is None and lease.fencing_token <= 0:
        problem = _invalid(f"{name}.fencing_token is {lease.fencing_token}; give that of the lease")
    return problem


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
