"""Single promises of the core, in virtual time."""

from __future__ import annotations

import pytest

from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.effects import (
    CallDriver,
    EndStreamsBelow,
    KillProcesses,
    PublishContext,
    PublishOperation,
)
from snapshot_agent_server.core.events import Answered, Closing, EpochSeen, KillRequested, Registered, Requested
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, OperationId
from snapshot_agent_server.core.operations import Kind, Status
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, Gone, Refused, Stopped, Verb
from snapshot_agent_server.core.refusals import RefusalKind
from world import GPU, MIB, Target, World

G = GroupId("g")


def register(world: World, job: str, *targets: Target, group: str = "g") -> int:
    number = world.number()
    key = ContextKey(JobId(job), GroupId(group))
    world.post(Registered(number, key, tuple(world.observed(target) for target in targets)))
    return number


def ask(world: World, kind: Kind, job: str, **fields: object) -> int:
    number = world.number()
    fields.setdefault("operation", f"{kind}-{job}")
    fields.setdefault("group", G)
    world.post(Requested(number, kind, JobId(job), **fields))  # type: ignore[arg-type]
    return number


def drain(world: World) -> None:
    """Answer calls by the rules until none is left."""
    while world.calls:
        world.answer(world.calls[0])


def verbs(world: World) -> list[tuple[Verb, int]]:
    return [(call.verb, call.process.pid) for call in world.calls]


@pytest.fixture
def world() -> World:
    return World()


def test_all_are_locked_before_the_first_is_saved_and_one_is_saved_at_a_time(world: World) -> None:
    first, second = world.start(), world.start()
    register(world, "a", first, second)
    ask(world, Kind.SNAPSHOT, "a")
    assert verbs(world) == [(Verb.LOCK, first.id.pid), (Verb.LOCK, second.id.pid)]
    world.answer(world.calls[1])
    assert verbs(world) == [(Verb.LOCK, first.id.pid)], "nobody is saved while one still runs"
    world.answer(world.calls[0])
    assert verbs(world) == [(Verb.CHECKPOINT, first.id.pid)]
    world.answer(world.calls[0])
    assert verbs(world) == [(Verb.CHECKPOINT, second.id.pid)]
    drain(world)
    assert world.results[OperationId("snapshot-a")][0].device_bytes == 16 * MIB


def test_a_restore_follows_the_snapshot_that_it_names_whichever_comes_first(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.RESTORE, "b", after=OperationId("snapshot-a"), leave_locked=True)
    assert not world.calls
    ask(world, Kind.SNAPSHOT, "a")
    drain(world)
    assert (a.state, b.state) == (DriverState.CHECKPOINTED, DriverState.LOCKED)


def test_a_restore_whose_predecessor_never_comes_fails_soon(world: World) -> None:
    register(world, "b", world.start(state=DriverState.CHECKPOINTED))
    ask(world, Kind.RESTORE, "b", after=OperationId("nothing"))
    world.pass_time(1.9)
    assert not world.results
    world.pass_time(0.2)
    result = world.results[OperationId("restore-b")][0]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, True)
    assert "'nothing'" in result.error


def test_a_restore_fails_with_the_snapshot_that_it_follows(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.SNAPSHOT, "a")
    ask(world, Kind.RESTORE, "b", after=OperationId("snapshot-a"))
    world.answer(world.calls[0], Stopped("stopped by a signal"))
    drain(world)
    assert world.results[OperationId("snapshot-a")][0].is_rolled_back
    assert "snapshot-a" in world.results[OperationId("restore-b")][0].error
    assert b.state is DriverState.CHECKPOINTED


def test_a_failed_snapshot_leaves_a_locked_context_locked(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a")
    drain(world)
    ask(world, Kind.SNAPSHOT, "a")
    for _ in range(4):
        [call] = world.calls
        assert call.verb is Verb.CHECKPOINT
        world.answer(call, Refused(999, "CUDA_ERROR_UNKNOWN"))
        world.pass_time(1.0)
        world.answer(world.calls[0])  # the state is asked after each failure
    drain(world)
    result = world.results[OperationId("snapshot-a")][0]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, True)
    assert a.state is DriverState.LOCKED


def test_retries_come_with_a_growing_delay(world: World) -> None:
    register(world, "a", world.start())
    ask(world, Kind.SNAPSHOT, "a")
    delays = []
    for _ in range(3):
        start = world.now
        world.answer(world.calls[0], Refused(Code.NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"))
        assert not world.calls
        while not world.calls:
            world.pass_time(0.01)
        delays.append(world.now - start)
        [call] = world.calls
        assert call.verb is Verb.STATE
        world.answer(call)
    assert delays == pytest.approx([0.05, 0.1, 0.2], abs=0.011)
    drain(world)
    assert world.results[OperationId("snapshot-a")][0].status is Status.COMPLETE


def test_past_its_deadline_it_is_indeterminate_until_the_driver_says(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    register(world, "b", world.start(state=DriverState.CHECKPOINTED))
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.answer(world.calls[0])
    [checkpoint] = world.calls
    assert checkpoint.timeout_s == pytest.approx(5.0)
    world.pass_time(5.0)
    world.answer(checkpoint, Abandoned("no answer"))
    world.answer(world.calls[0], Abandoned("no answer"))  # the state query hangs too
    world.pass_time(4.0)
    [first] = world.results[OperationId("snapshot-a")]
    assert (first.is_indeterminate, first.is_rolled_back) == (True, False)
    assert world.node.views()[0].state is ContextState.TRANSITIONING
    ask(world, Kind.RESTORE, "b", timeout_s=60.0)
    assert {call.verb for call in world.calls} <= {Verb.STATE}, "its accelerators are closed"
    a.state = DriverState.CHECKPOINTED
    while world.calls:
        world.answer(world.calls[0])
    world.pass_time(6.0)
    drain(world)
    assert world.results[OperationId("snapshot-a")][-1].status is Status.COMPLETE
    assert world.node.views()[0].state is ContextState.SAVED


def test_a_locked_context_is_not_called_rolled_back_while_its_checkpoint_may_be_under_way(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a")
    drain(world)
    ask(world, Kind.SNAPSHOT, "a", timeout_s=3.0)
    world.pass_time(3.0)
    world.answer(world.calls[0], Abandoned("no answer"))
    world.answer(world.calls[0])  # the driver says LOCKED, as if nothing were under way
    world.pass_time(2.0)
    assert [result.is_indeterminate for result in world.results[OperationId("snapshot-a")]] == [True]
    a.state = DriverState.CHECKPOINTED  # the abandoned call takes effect
    for _ in range(4):
        world.pass_time(1.0)
        drain(world)
    last = world.results[OperationId("snapshot-a")][-1]
    assert (last.status, last.is_indeterminate) == (Status.COMPLETE, False)


def test_a_queued_call_gives_up_at_its_own_deadline(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.SNAPSHOT, "a")
    lock = ask(world, Kind.LOCK, "a", timeout_s=1.0)
    world.pass_time(1.1)
    assert world.refused[lock].refusal.kind is RefusalKind.NOT_DONE
    assert "snapshot of the same context" in world.refused[lock].refusal.text


def test_a_higher_token_makes_a_waiting_operation_stale(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.SNAPSHOT, "a", token=1, epoch=1)
    ask(world, Kind.RESTORE, "b", token=1, epoch=1, after=OperationId("snapshot-a"))
    ask(world, Kind.LOCK, "a", token=2, epoch=1, operation=OperationId("l"))
    drain(world)
    assert "fencing token 1" in world.results[OperationId("restore-b")][0].error
    assert b.state is DriverState.CHECKPOINTED


@pytest.mark.parametrize(("token", "epoch"), [(4, 3), (5, 2), (0, 3), (5, 0)])
def test_a_stale_or_missing_token_or_epoch_changes_nothing(world: World, token: int, epoch: int) -> None:
    register(world, "a", world.start())
    ask(world, Kind.UNLOCK, "a", token=5, epoch=3, operation=OperationId("u"))
    number = ask(world, Kind.SNAPSHOT, "a", token=token, epoch=epoch)
    assert world.refused[number].refusal.kind is RefusalKind.STALE
    assert not world.calls
    assert world.node.fences.tokens == {G: 5}


def test_without_fences_calls_go_on_where_that_is_allowed() -> None:
    world = World(allow_unfenced=True)
    register(world, "a", world.start())
    ask(world, Kind.UNLOCK, "a", token=5, epoch=3, operation=OperationId("u"))
    ask(world, Kind.SNAPSHOT, "a")
    drain(world)
    assert world.results[OperationId("snapshot-a")][0].status is Status.COMPLETE


def test_a_higher_epoch_ends_the_streams_of_lower_ones(world: World) -> None:
    first, second = world.number(), world.number()
    effects = world.post(EpochSeen(first, 7))
    assert EndStreamsBelow(7) in effects
    assert first in world.accepted
    world.post(EpochSeen(second, 6))
    assert world.refused[second].refusal.kind is RefusalKind.STALE
    world.crash(is_lazy_lost=True)
    assert world.node.fences.epoch == 7


def test_a_process_in_another_context_is_refused_and_nothing_joins(world: World) -> None:
    a, fresh = world.start(), world.start()
    register(world, "a", a)
    number = register(world, "b", fresh, a)
    assert world.refused[number].refusal.kind is RefusalKind.PROCESS_TAKEN
    assert world.node.registry.key_of(fresh.id.pid) is None


def test_a_pid_that_is_used_again_takes_the_place_of_the_process_that_ended(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    again = Target(type(a.id)(a.id.pid, a.id.start_time + 1), G, DriverState.RUNNING)
    world.targets[a.id.pid] = again
    number = register(world, "b", again)
    assert number in world.accepted
    assert world.node.registry.key_of(again.id.pid) == ContextKey(JobId("b"), G)


def test_the_end_of_the_last_process_in_the_middle_is_gone_and_no_fault(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.SNAPSHOT, "a")
    [call] = world.calls
    del world.targets[a.id.pid]
    world.answer(call, Gone())
    result = world.results[OperationId("snapshot-a")][0]
    assert (result.status, result.is_gone, result.is_rolled_back) == (Status.FAILED, True, False)
    assert result.error.startswith("gone: ")
    assert world.gone == [ContextKey(JobId("a"), G)]


def test_a_saved_context_is_not_unlocked(world: World) -> None:
    register(world, "a", world.start(state=DriverState.CHECKPOINTED))
    number = ask(world, Kind.UNLOCK, "a", token=1, epoch=1)
    assert "restore it first" in world.refused[number].refusal.text
    assert G not in world.node.admission.turns


def test_an_intruder_is_locked_when_it_is_seen(world: World) -> None:
    holder, intruder = world.start(), world.start(state=DriverState.NONE)
    register(world, "a", holder)
    register(world, "b", intruder)
    ask(world, Kind.UNLOCK, "a", token=1, epoch=1)
    intruder.state = DriverState.RUNNING
    world.now += 0.25
    world.sample()
    assert verbs(world) == [(Verb.LOCK, intruder.id.pid)]
    drain(world)
    view = next(view for view in world.node.views() if view.key.job == "b")
    assert view.locked
    assert "without the lease" in view.reason
    assert holder.state is DriverState.RUNNING


def test_without_tokens_nobody_is_taken_for_an_intruder(world: World) -> None:
    register(world, "a", world.start())
    register(world, "b", world.start())
    ask(world, Kind.UNLOCK, "a")
    world.now += 0.25
    world.sample()
    assert not world.calls


def test_a_lock_cut_off_by_a_crash_is_finished(world: World) -> None:
    first, second = world.start(), world.start()
    register(world, "a", first, second)
    ask(world, Kind.UNLOCK, "a", token=1, epoch=1, operation=OperationId("u"))
    ask(world, Kind.LOCK, "a", token=2, epoch=1)
    world.crash(is_lazy_lost=True, fates=["done", "lost"])
    world.settle()
    assert (first.state, second.state) == (DriverState.LOCKED, DriverState.LOCKED)


def test_a_lock_without_tokens_cut_off_by_a_crash_is_undone(world: World) -> None:
    first, second = world.start(), world.start()
    register(world, "a", first, second)
    ask(world, Kind.LOCK, "a")
    world.crash(is_lazy_lost=True, fates=["done", "lost"])
    world.settle()
    assert (first.state, second.state) == (DriverState.RUNNING, DriverState.RUNNING)


def test_an_operation_id_names_one_operation(world: World) -> None:
    register(world, "a", world.start())
    ask(world, Kind.SNAPSHOT, "a", operation=OperationId("x"))
    other = ask(world, Kind.RESTORE, "a", operation=OperationId("x"))
    assert world.refused[other].refusal.kind is RefusalKind.OTHER_OPERATION


def test_a_request_without_a_group_means_all_contexts_of_the_job(world: World) -> None:
    here, there = world.start("g"), world.start("h")
    register(world, "a", here)
    register(world, "a", there, group="h")
    ask(world, Kind.SNAPSHOT, "a", group=None)
    drain(world)
    assert (here.state, there.state) == (DriverState.CHECKPOINTED, DriverState.CHECKPOINTED)


def test_after_closing_nothing_new_starts(world: World) -> None:
    register(world, "a", world.start())
    ask(world, Kind.SNAPSHOT, "a")
    world.post(Closing())
    late = ask(world, Kind.LOCK, "a")
    assert world.refused[late].refusal.kind is RefusalKind.CLOSING
    drain(world)
    assert world.results[OperationId("snapshot-a")][0].status is Status.COMPLETE
    assert world.node.is_idle()


def test_old_operations_are_forgotten_after_an_hour(world: World) -> None:
    register(world, "a", world.start())
    ask(world, Kind.SNAPSHOT, "a", operation=OperationId("old"))
    drain(world)
    world.now += 3601.0
    ask(world, Kind.RESTORE, "a", operation=OperationId("new"))
    assert world.node.operation(OperationId("old")) is None
    assert world.node.operation(OperationId("new")) is not None


def test_room_is_asked_for_all_restores_that_remain(world: World) -> None:
    first = world.start(state=DriverState.RUNNING, size=4 * MIB)
    second = world.start(state=DriverState.RUNNING, size=6 * MIB)
    register(world, "a", first, second)
    ask(world, Kind.SNAPSHOT, "a")
    drain(world)
    ask(world, Kind.RESTORE, "a")
    [call] = world.calls
    assert call.need == {GPU[G]: 10 * MIB}
    assert isinstance(call, CallDriver)
    world.answer(call)
    assert world.calls[0].need == {GPU[G]: 6 * MIB}


def test_an_answer_that_comes_twice_changes_nothing(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.SNAPSHOT, "a")
    [lock] = world.calls
    world.answer(lock)
    before = list(world.calls)
    world.post(Answered(lock.operation, lock.process, Verb.LOCK, Refused(999, "late")))
    assert world.calls == before


def test_an_unlock_waits_for_the_restore_before_it(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.SNAPSHOT, "a")
    ask(world, Kind.RESTORE, "b", after=OperationId("snapshot-a"), leave_locked=True)
    unlock = ask(world, Kind.UNLOCK, "b", timeout_s=60.0)
    assert unlock not in world.refused
    drain(world)
    assert unlock in world.accepted
    assert b.state is DriverState.RUNNING


def test_a_process_that_started_cuda_unseen_is_saved_with_the_others(world: World) -> None:
    seen, unseen = world.start(), world.start(state=DriverState.NONE)
    register(world, "a", seen, unseen)
    unseen.state = DriverState.RUNNING
    ask(world, Kind.SNAPSHOT, "a")
    drain(world)
    assert (seen.state, unseen.state) == (DriverState.CHECKPOINTED, DriverState.CHECKPOINTED)


def test_a_failed_snapshot_leaves_the_holder_admitted(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.UNLOCK, "a", token=1, epoch=1, operation=OperationId("u"))
    ask(world, Kind.SNAPSHOT, "a", token=2, epoch=1)
    world.answer(world.calls[0], Stopped("stopped by a signal"))
    assert world.results[OperationId("snapshot-a")][0].is_rolled_back
    world.settle()
    assert a.state is DriverState.RUNNING
    assert world.node.admission.turns[G].job == "a"


def test_a_lock_that_comes_late_is_undone(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    lock = ask(world, Kind.LOCK, "a", timeout_s=1.0)
    world.pass_time(2.0)
    world.answer(world.calls[0], Abandoned("no answer"))
    drain(world)
    assert world.refused[lock].refusal.kind is RefusalKind.TIMED_OUT
    a.state = DriverState.LOCKED
    world.now += 0.25
    world.sample()
    drain(world)
    assert a.state is DriverState.RUNNING


def test_out_of_memory_in_a_restore_is_a_fault_and_not_rolled_back(world: World) -> None:
    a = world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    ask(world, Kind.RESTORE, "a")
    world.answer(world.calls[0], Refused(Code.OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"))
    result = world.results[OperationId("restore-a")][0]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, False)
    assert world.node.views()[0].state is ContextState.FAULTED


def test_after_a_restart_past_the_deadline_nothing_is_called_rolled_back_that_may_move_yet(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a")
    drain(world)
    ask(world, Kind.SNAPSHOT, "a", timeout_s=1.0)
    world.crash(is_lazy_lost=True, fates=["late"], down_s=2.0)
    assert not world.results
    for _ in range(4):
        world.pass_time(1.0)
        drain(world)
    assert world.results[OperationId("snapshot-a")][-1].status is Status.COMPLETE
    assert a.state is DriverState.CHECKPOINTED


def test_after_a_restart_a_restore_waits_anew_for_the_snapshot_that_was_lost(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.CHECKPOINTED)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.RESTORE, "b", after=OperationId("snapshot-a"))
    world.crash(is_lazy_lost=True, down_s=10.0)
    ask(world, Kind.SNAPSHOT, "a")
    drain(world)
    assert world.results[OperationId("restore-b")][0].status is Status.COMPLETE


def test_between_two_turns_only_those_whose_turn_has_ended_are_locked(world: World) -> None:
    a, a2 = world.start(), world.start(state=DriverState.NONE)
    b = world.start(state=DriverState.NONE)
    register(world, "a", a, a2)
    register(world, "b", b)
    ask(world, Kind.UNLOCK, "a", token=1, epoch=1, operation=OperationId("u"))
    ask(world, Kind.SNAPSHOT, "a", token=2, epoch=1)
    drain(world)
    # Now b holds; it had no context, so nobody was unlocked for it.
    b.state = a2.state = DriverState.RUNNING
    world.now += 0.25
    world.sample()
    drain(world)
    assert (a2.state, b.state) == (DriverState.LOCKED, DriverState.RUNNING)


def test_a_holder_whose_processes_ended_stands_in_nobodys_way(world: World) -> None:
    a, b = world.start(), world.start(state=DriverState.NONE)
    register(world, "a", a)
    register(world, "b", b)
    ask(world, Kind.UNLOCK, "a", token=1, epoch=1)
    world.kill(a.id.pid)
    b.state = DriverState.RUNNING  # it was granted: there was nothing to save, and nothing to unlock
    world.now += 0.25
    world.sample()
    assert not world.calls


def test_a_context_in_transition_is_told_only_if_it_lasts(world: World) -> None:
    register(world, "a", world.start())
    key = ContextKey(JobId("a"), G)
    ask(world, Kind.SNAPSHOT, "a")
    assert world.node.views()[0].state is ContextState.TRANSITIONING
    assert world.published[key].view.state is ContextState.RUNNING
    world.pass_time(0.02)
    assert world.published[key].view.state is ContextState.TRANSITIONING
    drain(world)
    assert world.published[key].view.state is ContextState.SAVED


def test_the_new_state_is_told_before_the_end_that_brought_it(world: World) -> None:
    """Else who hears the end of a snapshot takes the context for saved, also one that had nothing to save."""
    register(world, "a", world.start(state=DriverState.NONE))
    ask(world, Kind.SNAPSHOT, "a")
    world.pass_time(0.02)
    effects = world.post(Answered(world.calls[0].operation, world.calls[0].process, Verb.STATE, Done(DriverState.NONE)))
    told = [effect for effect in effects if isinstance(effect, PublishContext | PublishOperation)]
    assert [type(effect) for effect in told] == [PublishContext, PublishOperation]
    assert world.published[ContextKey(JobId("a"), G)].view.state is ContextState.IDLE


def test_a_kill_is_no_operation_and_waits_for_none(world: World) -> None:
    first, second, other = world.start(), world.start(), world.start()
    register(world, "a", first, second)
    register(world, "b", other)
    ask(world, Kind.SNAPSHOT, "a", timeout_s=60.0)
    effects = world.post(KillRequested(99, JobId("a"), G))
    assert [e.processes for e in effects if isinstance(e, KillProcesses)] == [(first.id, second.id)]
    assert OperationId("snapshot-a") not in world.results, "it ends when they have ended"
    world.kill(first.id.pid)
    world.kill(second.id.pid)
    assert [result.is_gone for result in world.results[OperationId("snapshot-a")]] == [True]
    world.post(KillRequested(100, JobId("a"), G))
    assert world.refused[100].refusal.kind is RefusalKind.UNKNOWN_CONTEXT


def test_after_closing_nobody_is_killed(world: World) -> None:
    register(world, "a", world.start())
    world.post(Closing())
    assert not any(isinstance(e, KillProcesses) for e in world.post(KillRequested(9, JobId("a"), G)))
    assert world.refused[9].refusal.kind is RefusalKind.CLOSING


def test_an_unlock_goes_ahead_of_its_turn_and_is_answered_behind_it(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a", token=1)
    drain(world)
    world.is_disk_slow = True
    number = ask(world, Kind.UNLOCK, "a", token=1)
    drain(world)
    assert a.state is DriverState.RUNNING
    assert number not in world.accepted
    world.write()
    assert number in world.accepted


def test_an_unlock_waits_for_its_token_and_for_the_end_of_anothers_turn(world: World) -> None:
    a, b = world.start(), world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a", token=1)
    drain(world)
    world.is_disk_slow = True
    ask(world, Kind.UNLOCK, "a", token=2)
    assert not world.node.is_idle()
    assert world.disk.tokens[G] == 2, "the token was not on record when the driver was called"
    drain(world)
    register(world, "b", b)
    drain(world)
    assert b.state is DriverState.LOCKED, "an intruder"
    ask(world, Kind.UNLOCK, "b", token=2)
    assert world.disk.turns[G].job == "b", "a crash would have left the turn with a"


def test_an_unlock_whose_turn_was_lost_is_repeated(world: World) -> None:
    a = world.start()
    register(world, "a", a)
    ask(world, Kind.LOCK, "a", token=1)
    drain(world)
    world.is_disk_slow = True
    ask(world, Kind.UNLOCK, "a", token=1)
    world.crash(is_lazy_lost=True, fates=["done"])
    world.settle()
    assert a.state is DriverState.LOCKED, "whoever's turn has ended does not run, as far as the record says"
    number = ask(world, Kind.UNLOCK, "a", token=1)
    drain(world)
    assert number in world.accepted
    assert a.state is DriverState.RUNNING
