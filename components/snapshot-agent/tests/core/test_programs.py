"""Calls that a worker begins by itself, and what happens when they are not wanted any more."""

from __future__ import annotations

import math

import pytest

from snapshot_agent_server.core.effects import Ahead, CallDriver
from snapshot_agent_server.core.events import ProcessEnded, Registered, Requested
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, OperationId
from snapshot_agent_server.core.operations import Kind, Status
from snapshot_agent_server.core.outcomes import Code, DriverState, Gone, Refused, Verb
from snapshot_agent_server.core.plan import Steps, plan
from snapshot_agent_server.core.turn import Turn
from world import MIB, Target, World

G = GroupId("g")
SNAPSHOT, RESTORE = OperationId("s"), OperationId("r")


@pytest.fixture
def world() -> World:
    return World()


def register(world: World, job: str, *targets: Target) -> None:
    observed = tuple(world.observed(target) for target in targets)
    world.post(Registered(world.number(), ContextKey(JobId(job), G), observed))


def two_contexts(world: World, coming: int = 1) -> tuple[Target, list[Target]]:
    """One that runs, of job a, and one of job b that is saved."""
    a = world.start()
    register(world, "a", a)
    bs = [world.start() for _ in range(coming)]
    register(world, "b", *bs)
    snapshot(world, "b", "earlier")
    while world.calls:
        world.answer(world.calls[0])
    assert all(b.state is DriverState.CHECKPOINTED for b in bs)
    return a, bs


def snapshot(world: World, job: str, operation: str, token: int = 1) -> None:
    world.post(Requested(world.number(), Kind.SNAPSHOT, JobId(job), G, OperationId(operation), token, 1))


def hand_over(
    world: World, *, leave_locked: bool = True, timeouts_s: tuple[float, float] = (0.0, 0.0), token: int = 2
) -> CallDriver:
    """From a to b; the only call that comes of it."""
    timeout_s, then_timeout_s = timeouts_s
    then = Requested(
        world.number(), Kind.RESTORE, JobId("b"), G, RESTORE, token, 1, then_timeout_s, leave_locked, after=SNAPSHOT
    )
    world.post(Requested(world.number(), Kind.SNAPSHOT, JobId("a"), G, SNAPSHOT, token, 1, timeout_s, then=then))
    [call] = world.calls
    return call


def program(call: CallDriver) -> list[tuple[Verb, int]]:
    return [(one.verb, one.process.pid) for one in (call, *call.then)]


def status(world: World, operation: OperationId) -> list[Status]:
    return [result.status for result in world.results.get(operation, [])]


def test_a_handoff_is_one_program(world: World) -> None:
    a, (b1, b2) = two_contexts(world, coming=2)
    call = hand_over(world)
    assert program(call) == [
        (Verb.LOCK, a.id.pid),
        (Verb.CHECKPOINT, a.id.pid),
        (Verb.RESTORE, b1.id.pid),
        (Verb.RESTORE, b2.id.pid),
    ]
    needs = [sum(one.need.values()) for one in call.then if one.need]
    assert needs == [16 * MIB, 8 * MIB], "room for all that remain"
    world.answer(world.calls[0])
    assert not status(world, SNAPSHOT)
    world.answer(world.calls[0])
    assert status(world, SNAPSHOT) == [Status.COMPLETE], "told before the restore has ended"
    assert not status(world, RESTORE)
    world.answer(world.calls[0])
    world.answer(world.calls[0])
    assert status(world, RESTORE) == [Status.COMPLETE]
    assert not world.calls
    assert {b1.state, b2.state} == {DriverState.LOCKED}


def test_several_processes_are_locked_side_by_side_and_then_saved_in_one_program(world: World) -> None:
    first, second = world.start(), world.start()
    register(world, "a", first, second)
    snapshot(world, "a", "s")
    assert [program(call) for call in world.calls] == [[(Verb.LOCK, first.id.pid)], [(Verb.LOCK, second.id.pid)]]
    world.answer(world.calls[0])
    world.answer(world.calls[0])
    [call] = world.calls
    assert program(call) == [(Verb.CHECKPOINT, first.id.pid), (Verb.CHECKPOINT, second.id.pid)]


def test_a_handoff_may_end_with_an_unlock(world: World) -> None:
    a, [b] = two_contexts(world)
    call = hand_over(world, leave_locked=False)
    assert program(call) == [
        (Verb.LOCK, a.id.pid),
        (Verb.CHECKPOINT, a.id.pid),
        (Verb.RESTORE, b.id.pid),
        (Verb.UNLOCK, b.id.pid),
    ]
    for _ in range(3):
        world.answer(world.calls[0])
        assert not status(world, RESTORE)
    assert world.disk.turns[G].job == "b", "on record while the worker unlocks"
    world.answer(world.calls[0])
    assert status(world, RESTORE) == [Status.COMPLETE]
    assert b.state is DriverState.RUNNING
    assert not world.published[ContextKey(JobId("b"), G)].view.locked


def test_what_must_be_on_record_first_is_not_begun_by_a_worker(world: World) -> None:
    a, [b] = two_contexts(world)
    world.node.admission.turns[G] = Turn(JobId("c"))
    call = hand_over(world, leave_locked=False)
    assert program(call) == [(Verb.LOCK, a.id.pid), (Verb.CHECKPOINT, a.id.pid), (Verb.RESTORE, b.id.pid)]
    for _ in range(3):
        world.answer(world.calls[0])
    [unlock] = world.calls
    assert (unlock.verb, unlock.ahead_of) == (Verb.UNLOCK, Ahead.NOTHING), "until then it is the turn of c"
    assert world.disk.turns[G].job == "b"


def restored_and_not_unlocked(world: World) -> Target:
    """The way of a handoff that ends with an unlock, up to the restore; the target of b."""
    _, [b] = two_contexts(world)
    hand_over(world, leave_locked=False)
    world.answer(world.calls[0])
    world.answer(world.calls[0])
    [call] = world.calls
    assert program(call) == [(Verb.RESTORE, b.id.pid), (Verb.UNLOCK, b.id.pid)]
    return b


def is_told_as_locked(world: World) -> bool:
    return world.published[ContextKey(JobId("b"), G)].view.locked


def finish(world: World) -> None:
    while world.calls:
        world.answer(world.calls[0])


@pytest.mark.parametrize(("token", "epoch"), [(3, 1), (2, 2)])
def test_a_restore_of_an_older_token_or_epoch_does_not_unlock(world: World, token: int, epoch: int) -> None:
    b = restored_and_not_unlocked(world)
    world.post(Requested(world.number(), Kind.LOCK, JobId("a"), G, OperationId(""), token, epoch))
    finish(world)
    assert status(world, RESTORE) == [Status.COMPLETE]
    assert b.state is DriverState.LOCKED
    assert is_told_as_locked(world)
    world.settle()
    assert b.state is DriverState.LOCKED, "nor does the agent take it for one whose turn it is"


@pytest.mark.parametrize("kind", [Kind.LOCK, Kind.SNAPSHOT])
def test_a_restore_does_not_unlock_what_is_to_be_stopped_next(world: World, kind: Kind) -> None:
    b = restored_and_not_unlocked(world)
    world.post(Requested(world.number(), kind, JobId("b"), G, OperationId("next"), 2, 1))
    world.answer(world.calls[0])
    assert b.state is DriverState.LOCKED
    assert status(world, RESTORE) == [Status.COMPLETE]
    finish(world)
    assert b.state is (DriverState.LOCKED if kind is Kind.LOCK else DriverState.CHECKPOINTED)


def test_an_unlock_that_a_worker_has_begun_already_is_undone(world: World) -> None:
    b = restored_and_not_unlocked(world)
    world.go_on(world.calls[0])
    world.post(Requested(world.number(), Kind.LOCK, JobId("a"), G, OperationId(""), 3, 1))
    finish(world)
    assert status(world, RESTORE) == [Status.COMPLETE]
    assert b.state is DriverState.LOCKED
    assert is_told_as_locked(world)


def test_an_unlock_that_fails_takes_the_restore_back(world: World) -> None:
    b = restored_and_not_unlocked(world)
    turn = world.node.admission.turns[G]
    world.answer(world.calls[0])
    while world.calls and world.calls[0].verb in (Verb.UNLOCK, Verb.STATE):
        call = world.calls[0]
        world.answer(call, Refused(Code.NOT_SUPPORTED, "NOT_SUPPORTED") if call.verb is Verb.UNLOCK else None)
    finish(world)
    [result] = world.results[RESTORE]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, True)
    assert b.state is DriverState.CHECKPOINTED
    assert world.node.admission.turns[G] == turn


@pytest.mark.parametrize("fate", ["lost", "done", "late"])
@pytest.mark.parametrize("is_lazy_lost", [True, False])
@pytest.mark.parametrize("is_heard", [True, False])
def test_an_agent_that_is_killed_between_restore_and_unlock_goes_on(
    world: World, fate: str, is_lazy_lost: bool, is_heard: bool
) -> None:
    b = restored_and_not_unlocked(world)
    (world.answer if is_heard else world.go_on)(world.calls[0])
    world.crash(is_lazy_lost, [fate])
    world.settle()
    assert status(world, RESTORE)[-1] is Status.COMPLETE
    assert b.state is DriverState.RUNNING
    assert world.node.admission.turns[G].job == "b"


def test_an_agent_that_is_killed_before_the_unlock_does_not_unlock_for_an_older_token(world: World) -> None:
    b = restored_and_not_unlocked(world)
    world.post(Requested(world.number(), Kind.LOCK, JobId("a"), G, OperationId(""), 3, 1))
    world.crash(is_lazy_lost=True, fates=["done"])
    world.settle()
    assert b.state is DriverState.LOCKED
    assert is_told_as_locked(world)


def test_a_restore_that_gives_up_earlier_is_not_begun_by_a_worker(world: World) -> None:
    a, _ = two_contexts(world)
    call = hand_over(world, timeouts_s=(5.0, 4.0))
    assert program(call) == [(Verb.LOCK, a.id.pid), (Verb.CHECKPOINT, a.id.pid)]


def test_no_call_of_a_program_begins_past_its_operations_deadline(world: World) -> None:
    two_contexts(world)
    call = hand_over(world, timeouts_s=(5.0, 6.0))
    assert [one.not_after for one in call.then] == [world.now + 5.0, world.now + 6.0]


def test_a_call_that_fails_ends_its_program_and_the_restore_fails_with_the_snapshot(world: World) -> None:
    a, [b] = two_contexts(world)
    hand_over(world)
    world.answer(world.calls[0])
    for _ in range(4):
        world.answer(world.calls[0], Refused(Code.NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"))
        world.pass_time(1.0)
        world.answer(world.calls[0])  # the state is asked after each failure
    while world.calls:
        world.answer(world.calls[0])
    assert status(world, SNAPSHOT) == status(world, RESTORE) == [Status.FAILED]
    assert (a.state, b.state) == (DriverState.RUNNING, DriverState.CHECKPOINTED)


def test_a_higher_token_stops_a_program_before_the_stale_restore(world: World) -> None:
    _, [b] = two_contexts(world)
    hand_over(world, token=2)
    world.answer(world.calls[0])
    snapshot(world, "b", "later", token=3)
    world.answer(world.calls[0])
    assert status(world, SNAPSHOT) == [Status.COMPLETE]
    assert status(world, RESTORE) == [Status.FAILED]
    assert "fencing token 2" in world.results[RESTORE][0].error
    assert b.state is DriverState.CHECKPOINTED


def test_a_restore_that_a_worker_began_before_a_higher_token_came_is_brought_to_its_end(world: World) -> None:
    _, [b] = two_contexts(world)
    hand_over(world, token=2)
    world.answer(world.calls[0])
    world.go_on(world.calls[0])
    snapshot(world, "b", "later", token=3)
    assert not status(world, RESTORE), "nobody knows yet whether it has begun"
    world.hear()
    world.answer(world.calls[0])
    assert status(world, RESTORE) == [Status.COMPLETE]
    while world.calls:
        world.answer(world.calls[0])
    assert status(world, OperationId("later")) == [Status.COMPLETE]
    assert b.state is DriverState.CHECKPOINTED


def test_the_end_of_a_process_does_not_bring_a_second_call_to_the_next_one(world: World) -> None:
    first, second = world.start(), world.start()
    register(world, "a", first, second)
    snapshot(world, "a", "s")
    world.answer(world.calls[0])
    world.answer(world.calls[0])
    [call] = world.calls
    del world.targets[first.id.pid]
    world.post(ProcessEnded(first.id))
    assert world.calls == [call], "its worker may be about to save the second process"
    world.answer(call, Gone())
    assert program(world.calls[0]) == [(Verb.CHECKPOINT, second.id.pid)]
    world.answer(world.calls[0])
    assert status(world, SNAPSHOT) == [Status.COMPLETE]


def test_a_restore_that_waits_for_a_program_is_decided_with_it(world: World) -> None:
    """The lock hangs beyond the deadline of both."""
    two_contexts(world)
    call = hand_over(world, timeouts_s=(0.3, 0.3))
    world.pass_time(0.5)
    assert not status(world, RESTORE)
    world.answer(call, Refused(Code.NOT_READY, "CUDA_ERROR_NOT_READY"))
    world.settle()
    assert status(world, SNAPSHOT) == status(world, RESTORE) == [Status.FAILED]


def test_what_a_program_says_is_what_the_planner_says_step_by_step(world: World) -> None:
    a, bs = two_contexts(world, coming=3)
    call = hand_over(world)
    made = []
    while world.calls:
        [call] = world.calls
        made.append((call.verb, call.process.pid))
        operation = world.node.operation(call.operation)
        assert operation is not None
        if operation.work:
            work = operation.work[call.process]
            in_flight, work.in_flight = work.in_flight, None
            step = plan(operation, world.node.registry.records(operation.keys), world.now)
            work.in_flight = in_flight
            assert isinstance(step, Steps)
            assert (step.steps[0].verb, step.steps[0].process) == (call.verb, call.process)
        world.answer(call)
    assert made == [(Verb.LOCK, a.id.pid), (Verb.CHECKPOINT, a.id.pid), *((Verb.RESTORE, b.id.pid) for b in bs)]
    assert math.isclose(
        sum(sum(r.usage.values()) for r in world.node.registry.records([ContextKey(JobId("b"), G)])), 24 * MIB
    )
