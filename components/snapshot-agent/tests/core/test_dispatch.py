"""What goes ahead of which record, and what waits."""

from __future__ import annotations

import pytest

from snapshot_agent_server.core.dispatch import LAZY, OnDisk, dispatch
from snapshot_agent_server.core.effects import (
    Accept,
    Ahead,
    CallDriver,
    Effect,
    ForgetProcess,
    PublishGone,
    RecordEpoch,
    RecordFence,
    RecordOperation,
    RecordProcess,
    RecordTurn,
    StopProgram,
)
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, OperationId, ProcessId
from snapshot_agent_server.core.operations import Kind, Operation
from snapshot_agent_server.core.outcomes import Verb
from snapshot_agent_server.core.turn import Turn

GROUP, PROCESS = GroupId("g"), ProcessId(7, 70)
KEY = ContextKey(JobId("a"), GROUP)
FENCE, TURN, EPOCH = RecordFence(GROUP, 2), RecordTurn(GROUP, Turn()), RecordEpoch(3)
FORGET, TOLD, ANSWER, STOP = ForgetProcess(PROCESS), PublishGone(KEY, "ended"), Accept(1), StopProgram(PROCESS)


def call(verb: Verb, ahead_of: Ahead = Ahead.NOTHING) -> CallDriver:
    return CallDriver(OperationId("o"), PROCESS, verb, 1.0, ahead_of=ahead_of)


LOCK, UNLOCK, RESTORE = call(Verb.LOCK, Ahead.ORDER), call(Verb.UNLOCK, Ahead.TURN), call(Verb.RESTORE)


def recorded(*, is_lazy: bool) -> RecordOperation:
    return RecordOperation(Operation(OperationId("o"), Kind.SNAPSHOT, (KEY,), 2, 3, 0.0, 1.0), is_lazy)


def test_without_a_record_all_goes_at_once_and_answers_come_last() -> None:
    todo = dispatch([ANSWER, RESTORE, TOLD], holding=LAZY)
    assert (todo.at_once, todo.public, todo.behind) == ([RESTORE], [TOLD], [ANSWER])
    assert not todo.must_wait


@pytest.mark.parametrize("lazy", [FORGET, recorded(is_lazy=True), RecordProcess(PROCESS, KEY, {}, {}, is_lazy=True)])
def test_nobody_waits_for_a_lazy_record(lazy: Effect) -> None:
    todo = dispatch([lazy, RESTORE, ANSWER], holding=LAZY)
    assert (todo.records, todo.at_once, todo.level, todo.must_wait) == ([lazy], [RESTORE], LAZY, False)


@pytest.mark.parametrize(
    ("records", "ahead"),
    [
        ([TURN], [LOCK, UNLOCK]),
        ([FENCE], [LOCK]),
        ([FENCE, TURN, recorded(is_lazy=False)], [LOCK]),
        ([EPOCH], []),
        ([FENCE, RecordProcess(PROCESS, KEY, {}, {})], []),
    ],
)
def test_a_call_goes_ahead_of_no_more_than_it_may(records: list[Effect], ahead: list[CallDriver]) -> None:
    todo = dispatch([*records, LOCK, UNLOCK, RESTORE, STOP, ANSWER], holding=LAZY)
    assert todo.at_once == ahead
    others = [one for one in (LOCK, UNLOCK, RESTORE, STOP, ANSWER) if one not in ahead]
    assert [one for one in todo.behind if not isinstance(one, OnDisk)] == others
    assert todo.must_wait
    assert todo.is_withheld is (LOCK in ahead)
    assert isinstance(todo.behind[0], OnDisk) is todo.is_withheld, "answers come when what they tell may be heard"


def test_nothing_goes_ahead_of_an_earlier_record() -> None:
    todo = dispatch([TURN, LOCK, UNLOCK, TOLD], holding=Ahead.ORDER)
    assert (todo.at_once, todo.behind, todo.public, todo.is_withheld) == ([], [LOCK, UNLOCK], [TOLD], False)
    assert dispatch([RESTORE], holding=Ahead.TURN).behind == [RESTORE]


@pytest.mark.parametrize("records", [[], [TURN], [FENCE]])
def test_but_an_order_to_stop_goes_ahead_of_an_earlier_turn(records: list[Effect]) -> None:
    todo = dispatch([*records, LOCK, UNLOCK, ANSWER], holding=Ahead.TURN)
    assert todo.at_once == [LOCK]
    assert todo.is_withheld
    assert todo.behind[1:] == [UNLOCK, ANSWER]


def test_an_operation_that_is_accepted_and_started_at_once_is_recorded_once() -> None:
    operation = recorded(is_lazy=False).operation
    accepted, started = RecordOperation(operation), RecordOperation(operation, is_lazy=True)
    other = recorded(is_lazy=False)
    todo = dispatch([accepted, other, started], holding=LAZY)
    assert todo.records == [other, started]
    assert todo.level == Ahead.ORDER, "that it was accepted somebody waits for"
