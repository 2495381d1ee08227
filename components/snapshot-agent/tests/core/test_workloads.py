"""Contexts that are saved by their own workloads: what is sent, when, and what is believed of what comes back."""

from __future__ import annotations

import pytest

from apps import App
from snapshot_agent_server.core.contexts import ContextState, ContextView
from snapshot_agent_server.core.effects import ChannelEnd, KillProcesses, SendCommand
from snapshot_agent_server.core.events import ChannelEnded, CommandAnswered, KillRequested, Registered, Requested
from snapshot_agent_server.core.ids import CommandId, ConnectionId, ContextKey, GroupId, JobId, OperationId
from snapshot_agent_server.core.modes import Backend, Mode, Wish
from snapshot_agent_server.core.operations import Kind, Result, Status
from snapshot_agent_server.core.outcomes import DriverState, Verb
from snapshot_agent_server.core.refusals import RefusalKind
from snapshot_agent_server.core.workloads import CommandResult
from world import World

G = GroupId("g")


def ask(world: World, kind: Kind, job: str, **fields: object) -> int:
    number = world.number()
    fields.setdefault("operation", f"{kind}-{job}")
    fields.setdefault("group", G)
    world.post(Requested(number, kind, JobId(job), **fields))  # type: ignore[arg-type]
    return number


def view(world: World, job: str, group: str = "g") -> ContextView:
    return next(v for v in world.node.views() if v.key == ContextKey(JobId(job), GroupId(group)))


def state(world: World, job: str) -> ContextState:
    return view(world, job).state


def result(world: World, operation: str) -> Result:
    return world.results[OperationId(operation)][-1]


@pytest.fixture
def world() -> World:
    return World()


def save(world: World, app: App) -> None:
    operation = f"save-{world.number()}"
    ask(world, Kind.SNAPSHOT, app.key.job, operation=operation)
    world.say(app)
    assert result(world, operation).status is Status.COMPLETE


# -- the plain way


def test_a_workload_is_told_to_save_itself_and_to_come_back(world: World) -> None:
    app = world.app("a", tags=("weights", "kv_cache"))
    assert state(world, "a") is ContextState.RUNNING
    assert view(world, "a").backend is Backend.APP_CHANNEL
    assert app.server is not None
    assert view(world, "a").pids == (app.server.pid,)
    ask(world, Kind.SNAPSHOT, "a")
    [command] = app.inbox
    assert (command.kind, command.mode, command.tags) == (Kind.SNAPSHOT, Mode.OFFLOAD, ("weights", "kv_cache"))
    world.pass_time(0.1)
    assert world.published[app.key].view.state is ContextState.TRANSITIONING
    assert not world.results
    world.say(app)
    done = result(world, "snapshot-a")
    assert (done.status, done.error, done.discarded) == (Status.COMPLETE, "", ())
    assert world.published[app.key].view.state is ContextState.SAVED
    ask(world, Kind.RESTORE, "a", leave_locked=True)
    [command] = app.inbox
    assert (command.kind, command.tags) == (Kind.RESTORE, ("weights", "kv_cache"))
    world.say(app)
    assert result(world, "restore-a").status is Status.COMPLETE
    assert world.published[app.key].view.state is ContextState.RUNNING
    assert not world.published[app.key].view.locked
    assert not world.calls, "the driver has nothing to do with it"


def test_what_is_done_already_is_not_asked_again(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.RESTORE, "a")
    assert not app.inbox
    assert result(world, "restore-a").status is Status.COMPLETE
    save(world, app)
    ask(world, Kind.SNAPSHOT, "a", operation="again")
    assert not app.inbox
    assert result(world, "again").status is Status.COMPLETE


def test_a_command_leaves_only_when_it_is_on_record(world: World) -> None:
    app = world.app("a")
    effects = world.post(Requested(world.number(), Kind.SNAPSHOT, app.key.job, G, OperationId("s")))
    [sent] = [effect for effect in effects if isinstance(effect, SendCommand)]
    assert world.disk.workloads[app.key].command == sent.command


def test_modes_and_tags_come_from_the_request_then_from_the_registration(world: World) -> None:
    app = world.app("a", tags=("weights",))
    ask(world, Kind.SNAPSHOT, "a", wish=Wish(Backend.APP_CHANNEL, Mode.DISCARD, ("kv_cache",)))
    assert (app.inbox[0].mode, app.inbox[0].tags) == (Mode.DISCARD, ("kv_cache",))
    other = world.app("b", group="h", modes=(Mode.DISCARD,))
    ask(world, Kind.SNAPSHOT, "b", group=GroupId("h"))
    assert (other.inbox[0].mode, other.inbox[0].tags) == (Mode.DISCARD, ())


@pytest.mark.parametrize(("tags", "told"), [(("weights", "kv_cache"), ("weights", "kv_cache")), ((), ("*",))])
def test_what_was_dropped_is_told_until_the_next_snapshot(
    world: World, tags: tuple[str, ...], told: tuple[str, ...]
) -> None:
    app = world.app("a", tags=tags)
    ask(world, Kind.SNAPSHOT, "a", wish=Wish(Backend.APP_CHANNEL, Mode.DISCARD))
    world.say(app)
    assert result(world, "snapshot-a").discarded == told
    assert view(world, "a").discarded == told
    ask(world, Kind.RESTORE, "a")
    world.say(app)
    assert result(world, "restore-a").discarded == told
    assert view(world, "a").discarded == told
    save(world, app)
    assert view(world, "a").discarded == ()


def test_a_failed_callback_fails_the_operation_with_its_text_and_nothing_has_changed(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    world.say(app, "ValueError: no room")
    failed = result(world, "snapshot-a")
    assert failed.status is Status.FAILED
    assert failed.is_rolled_back
    assert "the snapshot callback of context a@g failed: ValueError: no room" in failed.error
    assert state(world, "a") is ContextState.RUNNING
    assert not app.inbox, "it is the caller who decides whether to try again"
    save(world, app)


def test_a_restore_follows_the_snapshot_of_another_workload_and_of_a_process(world: World) -> None:
    a, b = world.app("a"), world.app("b")
    save(world, b)
    ask(world, Kind.SNAPSHOT, "a")
    ask(world, Kind.RESTORE, "b", after=OperationId("snapshot-a"), leave_locked=True)
    assert not b.inbox
    world.say(a)
    world.say(b)
    assert result(world, "restore-b").status is Status.COMPLETE
    target = world.start(state=DriverState.CHECKPOINTED)
    world.post(Registered(world.number(), ContextKey(JobId("c"), G), (world.observed(target),)))
    ask(world, Kind.SNAPSHOT, "b", operation="sb")
    ask(world, Kind.RESTORE, "c", after=OperationId("sb"), leave_locked=True)
    assert not world.calls
    world.say(b)
    while world.calls:
        world.answer(world.calls[0])
    assert target.state is DriverState.LOCKED


# -- deadlines


def test_a_slow_callback_ends_the_operation_at_its_deadline_and_holds_up_no_other_group(world: World) -> None:
    world.app("a")
    other = world.app("b", group="h")
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.pass_time(4.9)
    assert not world.results
    world.pass_time(0.2)
    late = result(world, "snapshot-a")
    assert late.is_indeterminate
    assert not late.is_rolled_back
    assert "passed its deadline of 5 s" in late.error
    assert state(world, "a") is ContextState.TRANSITIONING
    ask(world, Kind.SNAPSHOT, "b", group=GroupId("h"))
    world.say(other)
    assert result(world, "snapshot-b").status is Status.COMPLETE


@pytest.mark.parametrize("error", [None, "too late"])
def test_a_late_result_is_taken_for_what_it_says(world: World, error: str | None) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.pass_time(60.0)
    assert len(world.results[OperationId("snapshot-a")]) == 1, "told once that nobody knows"
    world.say(app, error)
    last = result(world, "snapshot-a")
    assert not last.is_indeterminate
    assert last.status is (Status.COMPLETE if error is None else Status.FAILED)
    assert last.is_rolled_back is (error is not None)
    assert state(world, "a") is (ContextState.SAVED if error is None else ContextState.RUNNING)


def test_nothing_else_is_asked_of_a_context_that_nobody_knows_of(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a", timeout_s=1.0)
    world.pass_time(2.0)
    ask(world, Kind.RESTORE, "a", timeout_s=1.0)
    world.pass_time(2.0)
    assert "was not started within 1 s" in result(world, "restore-a").error
    assert result(world, "restore-a").is_rolled_back
    assert len(app.inbox) == 1


def test_a_workload_that_is_not_connected_is_waited_for_until_the_deadline(world: World) -> None:
    app = world.app("a")
    world.disconnect(app)
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.pass_time(4.0)
    world.connect(app)
    world.say(app)
    assert result(world, "snapshot-a").status is Status.COMPLETE
    world.disconnect(app)
    ask(world, Kind.RESTORE, "a", timeout_s=5.0)
    world.pass_time(6.0)
    failed = result(world, "restore-a")
    assert (failed.is_rolled_back, failed.is_indeterminate) == (True, False)
    assert "did not reach the workload of context a@g: it is not connected" in failed.error
    assert state(world, "a") is ContextState.SAVED
    assert "not connected" in view(world, "a").reason


# -- connections that break


def test_a_command_that_was_carried_out_and_whose_result_was_lost_is_not_sent_again(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    world.disconnect(app)
    world.say(app)
    assert not world.results
    world.connect(app)
    assert result(world, "snapshot-a").status is Status.COMPLETE
    assert len(app.executed) == 1
    assert not app.inbox


def test_a_command_that_is_being_carried_out_is_waited_for_over_a_reconnect(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    world.disconnect(app)
    world.connect(app)
    assert len(app.inbox) == 1
    assert not world.results
    world.say(app)
    assert result(world, "snapshot-a").status is Status.COMPLETE


def test_a_command_that_never_arrived_is_sent_when_the_workload_says_so(world: World) -> None:
    app = world.app("a")
    app.is_deaf = True
    ask(world, Kind.SNAPSHOT, "a", timeout_s=30.0)
    world.disconnect(app)
    world.connect(app)
    assert len(app.inbox) == 1
    world.say(app)
    assert result(world, "snapshot-a").status is Status.COMPLETE


def test_a_command_that_never_arrived_is_not_sent_after_its_deadline(world: World) -> None:
    app = world.app("a")
    app.is_deaf = True
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.disconnect(app)
    world.pass_time(10.0)
    assert result(world, "snapshot-a").is_indeterminate
    world.connect(app)
    assert not app.inbox
    assert result(world, "snapshot-a").is_rolled_back
    assert state(world, "a") is ContextState.RUNNING


def test_a_workload_that_does_not_say_who_it_is_leaves_the_outcome_open_and_is_not_asked_again(world: World) -> None:
    app = world.app("a", is_seen=False, is_known=False)
    ask(world, Kind.SNAPSHOT, "a", timeout_s=5.0)
    world.disconnect(app)
    world.connect(app)
    assert len(app.inbox) == 1
    world.pass_time(6.0)
    assert result(world, "snapshot-a").is_indeterminate
    assert state(world, "a") is ContextState.TRANSITIONING
    world.say(app)  # it had gone on with it, and says so on its new connection
    assert result(world, "snapshot-a").status is Status.COMPLETE


def test_a_result_that_nobody_waits_for_changes_nothing(world: World) -> None:
    app = world.app("a")
    save(world, app)
    assert app.connection is not None
    ask(world, Kind.RESTORE, "a")
    for command in (app.executed[0], CommandId("i0-7")):
        world.post(CommandAnswered(app.connection, CommandResult(command)))
    assert not world.results.get(OperationId("restore-a"))
    world.say(app)
    assert result(world, "restore-a").status is Status.COMPLETE


# -- ends


def test_a_workload_whose_process_ends_is_gone_and_so_is_its_operation(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    world.end_app(app)
    ended = result(world, "snapshot-a")
    assert ended.is_gone
    assert ended.error.startswith("gone: process")
    assert not ended.is_rolled_back
    assert world.gone == [app.key]
    assert not world.node.views()
    assert app.key not in world.disk.workloads


def test_a_context_that_ended_while_it_was_saved_is_not_taken_for_restored(world: World) -> None:
    app = world.app("a")
    save(world, app)
    world.end_app(app)
    ask(world, Kind.RESTORE, "a")
    assert result(world, "restore-a").is_gone
    world.app("a")
    ask(world, Kind.RESTORE, "a", operation="anew")
    assert result(world, "anew").status is Status.COMPLETE


def test_a_broken_connection_alone_is_no_end_while_the_process_lives(world: World) -> None:
    app = world.app("a")
    save(world, app)
    world.disconnect(app)
    world.pass_time(100_000.0)
    assert state(world, "a") is ContextState.SAVED
    world.connect(app)
    ask(world, Kind.RESTORE, "a")
    world.say(app)
    assert result(world, "restore-a").status is Status.COMPLETE


@pytest.mark.parametrize("is_known", [True, False])
def test_a_workload_whose_process_nobody_sees_is_waited_for_a_minute(world: World, is_known: bool) -> None:
    app = world.app("a", is_seen=False, is_known=is_known)
    save(world, app)
    world.disconnect(app)
    world.pass_time(59.0)
    world.connect(app)
    assert state(world, "a") is ContextState.SAVED
    world.disconnect(app)
    world.pass_time(59.0)
    assert not world.gone
    world.pass_time(2.0)
    assert world.gone == [app.key]


def test_a_workload_that_closes_its_registration_is_gone_at_once(world: World) -> None:
    app = world.app("a")
    world.disconnect(app, is_closed=True)
    assert world.gone == [app.key]


def test_another_workload_takes_the_place_of_the_one_before(world: World) -> None:
    old = world.app("a")
    save(world, old)
    new = world.app("a")
    assert old.ended_by_agent == ChannelEnd.REPLACED
    assert not old.is_on_device
    assert state(world, "a") is ContextState.RUNNING
    world.apps.remove(old)
    world.post(ChannelEnded(ConnectionId(1), False))
    assert old.server is not None
    save(world, new)


def test_a_workload_that_was_replaced_while_it_was_away_does_not_take_its_place_back(world: World) -> None:
    old = world.app("a")
    world.crash(is_lazy_lost=False)
    new = world.app("a")
    world.connect(old)
    assert old.ended_by_agent == ChannelEnd.REPLACED
    assert new.ended_by_agent == ""
    save(world, new)


@pytest.mark.parametrize("error", [None, "no"])
def test_a_workload_of_which_nothing_is_on_record_any_more_is_believed(world: World, error: str | None) -> None:
    app = world.app("a", is_seen=False)
    save(world, app)
    ask(world, Kind.RESTORE, "a")
    world.disconnect(app)
    world.pass_time(61.0)
    assert world.gone == [app.key]
    world.connect(app)
    assert state(world, "a") is ContextState.TRANSITIONING
    world.say(app, error)
    assert state(world, "a") is (ContextState.RUNNING if error is None else ContextState.SAVED)
    assert len(app.executed) == 2


def test_the_operation_of_a_workload_that_was_replaced_is_gone_and_its_command_goes_to_nobody_else(
    world: World,
) -> None:
    old = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    new = world.app("a")
    assert result(world, "snapshot-a").is_gone
    assert not new.inbox
    world.apps.remove(old)
    save(world, new)


def test_the_end_of_a_replaced_connection_is_not_the_end_of_the_new_one(world: World) -> None:
    app = world.app("a")
    assert app.connection is not None
    old = app.connection
    world.connect(app)
    world.post(ChannelEnded(old, is_closed=True))
    assert not world.gone
    save(world, app)


def test_one_process_may_serve_several_contexts_and_takes_all_with_it(world: World) -> None:
    first, second = world.app("a"), world.app("a", group="h")
    second.server = first.server
    world.connect(second)
    world.end_app(first)
    assert set(world.gone) == {first.key, second.key}


# -- processes and callbacks


def test_a_context_with_processes_and_callbacks_is_saved_by_the_callbacks(world: World) -> None:
    app, target = world.app("a"), world.start()
    world.connect(app, target)
    assert app.server is not None
    assert view(world, "a").pids == (target.id.pid, app.server.pid)
    assert view(world, "a").device_bytes == target.size
    save(world, app)
    assert not world.calls
    assert state(world, "a") is ContextState.SAVED


def test_processes_stay_a_context_of_the_driver_when_their_callbacks_are_gone(world: World) -> None:
    app, target = world.app("a"), world.start()
    world.connect(app, target)
    ask(world, Kind.SNAPSHOT, "a")
    world.end_app(app)
    failed = result(world, "snapshot-a")
    assert (failed.status, failed.is_gone, failed.is_rolled_back) == (Status.FAILED, False, False)
    assert "which served its callbacks, ended" in failed.error
    assert view(world, "a").backend is Backend.CUDA
    ask(world, Kind.SNAPSHOT, "a", operation="by the driver")
    while world.calls:
        world.answer(world.calls[0])
    assert target.state is DriverState.CHECKPOINTED
    world.kill(target.id.pid)
    assert world.gone == [app.key]


def test_a_context_is_gone_when_the_processes_that_it_named_have_ended(world: World) -> None:
    app, target = world.app("a"), world.start()
    world.connect(app, target)
    ask(world, Kind.SNAPSHOT, "a")
    world.kill(target.id.pid)
    assert world.gone == [app.key]
    assert result(world, "snapshot-a").is_gone
    assert app.ended_by_agent == ChannelEnd.GONE


def test_a_request_may_have_the_driver_save_what_has_callbacks_and_then_only_the_driver_restores_it(
    world: World,
) -> None:
    app, target = world.app("a"), world.start()
    world.connect(app, target)
    ask(world, Kind.SNAPSHOT, "a", wish=Wish(Backend.CUDA))
    while world.calls:
        world.answer(world.calls[0])
    assert target.state is DriverState.CHECKPOINTED
    assert state(world, "a") is ContextState.SAVED
    refused = ask(world, Kind.RESTORE, "a", operation="wrong", wish=Wish(Backend.APP_CHANNEL))
    assert world.refused[refused].refusal.kind is RefusalKind.UNSUPPORTED
    ask(world, Kind.RESTORE, "a", leave_locked=True)
    while world.calls:
        world.answer(world.calls[0])
    assert view(world, "a").locked
    ask(world, Kind.SNAPSHOT, "a", operation="hangs")
    assert "locked by the driver" in result(world, "hangs").error
    ask(world, Kind.UNLOCK, "a")
    while world.calls:
        world.answer(world.calls[0])
    assert target.state is DriverState.RUNNING
    save(world, app)
    refused = ask(world, Kind.RESTORE, "a", operation="wrong too", wish=Wish(Backend.CUDA))
    assert "only they can restore it" in world.refused[refused].refusal.text


@pytest.mark.parametrize(
    ("kind", "wish", "text"),
    [
        (Kind.SNAPSHOT, Wish(Backend.CUDA), "callbacks and no processes"),
        (Kind.RESTORE, Wish(Backend.CUDA), "callbacks and no processes"),
        (Kind.SNAPSHOT, Wish(Backend.APP_CHANNEL, Mode.DISCARD), "mode discard; it supports offload"),
    ],
)
def test_what_a_workload_cannot_do_is_refused_at_once(world: World, kind: Kind, wish: Wish, text: str) -> None:
    world.app("a", modes=(Mode.OFFLOAD,))
    number = ask(world, kind, "a", wish=wish)
    assert world.refused[number].refusal.kind is RefusalKind.UNSUPPORTED
    assert text in world.refused[number].refusal.text


@pytest.mark.parametrize("has_process", [True, False])
def test_callbacks_that_nobody_registered_are_refused(world: World, has_process: bool) -> None:
    if has_process:
        key = ContextKey(JobId("a"), G)
        world.post(Registered(world.number(), key, (world.observed(world.start()),)))
    number = ask(world, Kind.SNAPSHOT, "a", wish=Wish(Backend.APP_CHANNEL))
    assert "no workload that saves itself" in world.refused[number].refusal.text


def test_one_request_for_contexts_of_two_backends_names_the_group(world: World) -> None:
    world.app("a")
    target = world.start("h")
    world.post(Registered(world.number(), ContextKey(JobId("a"), GroupId("h")), (world.observed(target),)))
    ask(world, Kind.SNAPSHOT, "a", group=None)
    assert "a@g by app_channel and a@h by cuda" in result(world, "snapshot-a").error
    assert result(world, "snapshot-a").is_rolled_back


def test_one_request_for_two_workloads_of_a_job_asks_one_after_the_other(world: World) -> None:
    first, second = world.app("a"), world.app("a", group="h")
    ask(world, Kind.SNAPSHOT, "a", group=None)
    assert not second.inbox
    world.say(first)
    world.say(second, "no")
    failed = result(world, "snapshot-a")
    assert failed.status is Status.FAILED
    assert not failed.is_rolled_back, "the first one is saved"
    assert [v.state for v in world.node.views()] == [ContextState.SAVED, ContextState.RUNNING]


# -- turns, locks, kills


def test_a_lock_of_a_workload_is_answered_and_locks_nothing(world: World) -> None:
    app, target = world.app("a"), world.start()
    world.connect(app, target)
    number = ask(world, Kind.LOCK, "a", token=1, epoch=1)
    assert world.accepted[number].locked_pids == ()
    assert not world.calls
    assert not view(world, "a").locked
    world.sample()
    world.pass_time(10.0)
    assert not world.calls, "it is not taken for an intruder that can be locked"
    assert view(world, "a").reason == "", "nor is it said to have been locked"


def test_a_workload_that_came_back_has_its_turn_and_intruders_beside_it_are_locked(world: World) -> None:
    app = world.app("a")
    save(world, app)
    ask(world, Kind.RESTORE, "a", leave_locked=True, token=2, epoch=1)
    world.say(app)
    target = world.start()
    world.post(Registered(world.number(), ContextKey(JobId("b"), G), (world.observed(target),)))
    assert [(call.verb, call.process) for call in world.calls] == [(Verb.LOCK, target.id)]


def test_processes_that_were_locked_before_they_got_callbacks_are_unlocked(world: World) -> None:
    target = world.start(state=DriverState.LOCKED)
    world.post(Registered(world.number(), ContextKey(JobId("a"), G), (world.observed(target),)))
    app = world.app("a")
    world.answer(world.calls[0])
    assert target.state is DriverState.RUNNING
    save(world, app)


def test_unlock_of_a_saved_workload_is_refused(world: World) -> None:
    app = world.app("a")
    save(world, app)
    number = ask(world, Kind.UNLOCK, "a")
    assert "restore it first" in world.refused[number].refusal.text
    ask(world, Kind.RESTORE, "a")
    world.say(app)
    assert ask(world, Kind.UNLOCK, "a", operation="u") in world.accepted


def test_kill_ends_the_process_that_serves_the_callbacks(world: World) -> None:
    app, number = world.app("a"), world.number()
    effects = world.post(KillRequested(number, app.key.job, G))
    [kill] = [effect for effect in effects if isinstance(effect, KillProcesses)]
    assert kill.processes == (app.server,)


def test_kill_of_a_workload_that_nobody_sees_says_so_and_does_not_call_it_gone(world: World) -> None:
    app, number = world.app("a", is_seen=False), world.number()
    world.post(KillRequested(number, app.key.job, G))
    assert world.refused[number].refusal.kind is RefusalKind.NOT_DONE
    assert "end them by hand" in world.refused[number].refusal.text


# -- restarts of the agent


def test_a_saved_workload_is_still_saved_after_a_restart_of_the_agent(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a", wish=Wish(Backend.APP_CHANNEL, Mode.DISCARD, ("weights",)))
    world.say(app)
    world.crash(is_lazy_lost=True)
    assert state(world, "a") is ContextState.SAVED
    assert view(world, "a").discarded == ("weights",)
    world.connect(app)
    ask(world, Kind.RESTORE, "a")
    world.say(app)
    assert result(world, "restore-a").discarded == ("weights",)


@pytest.mark.parametrize("progress", ["not arrived", "under way", "done", "failed"])
def test_an_operation_that_a_restart_cut_off_ends_as_the_workload_says(world: World, progress: str) -> None:
    app = world.app("a")
    app.is_deaf = progress == "not arrived"
    ask(world, Kind.SNAPSHOT, "a", timeout_s=30.0)
    world.crash(is_lazy_lost=True, down_s=1.0)
    if progress in ("done", "failed"):
        world.say(app, None if progress == "done" else "no")
    assert state(world, "a") is ContextState.TRANSITIONING
    world.connect(app)
    if app.inbox:
        world.say(app)
    assert result(world, "snapshot-a").status is (Status.FAILED if progress == "failed" else Status.COMPLETE)
    assert len(app.executed) == 1


def test_a_workload_that_ended_while_the_agent_was_down_is_gone(world: World) -> None:
    app = world.app("a")
    ask(world, Kind.SNAPSHOT, "a")
    world.apps.remove(app)
    world.crash(is_lazy_lost=False)
    assert result(world, "snapshot-a").is_gone
    assert world.gone == [app.key]
