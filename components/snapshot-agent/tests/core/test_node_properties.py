"""Any order of calls, driver failures, ends of processes and crashes of the agent, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from apps import App
from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.events import KillRequested, MembersListed, Registered, Requested
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, OperationId
from snapshot_agent_server.core.modes import Backend
from snapshot_agent_server.core.operations import Kind, Operation, Result, Status
from snapshot_agent_server.core.outcomes import DriverState, Verb
from snapshot_agent_server.core.refusals import RefusalKind
from snapshot_agent_server.core.trees import Tree
from world import FAULTS, Target, World, fault

JOBS = [JobId("a"), JobId("b")]
GROUPS = [GroupId("g"), GroupId("h")]
RUNNING = DriverState.RUNNING
STATES = [DriverState.RUNNING, DriverState.NONE]


class NodeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(suspect_s=1e9)
        self.member: dict[int, ContextKey] = {}
        self.kinds: dict[OperationId, tuple[Kind, ContextKey, bool]] = {}
        self.stopped_since: set[ContextKey] = set()
        """Contexts that somebody has ever asked to be locked or saved."""
        self.listed: dict[OperationId, set[int]] = {}
        """The members that lived when an operation's trees were looked through."""
        self.token = dict.fromkeys(GROUPS, 0)
        self.epoch = 0
        self.world.on_result = self.a_result_tells_the_truth

    # -- what happens

    @rule(job=st.sampled_from(JOBS), group=st.sampled_from(GROUPS), state=st.sampled_from(STATES))
    def register(self, job: JobId, group: GroupId, state: DriverState) -> None:
        if len(self.world.targets) >= 6:
            return
        target = self.world.start(group, state)
        number = self.world.number()
        self.world.post(Registered(number, ContextKey(job, group), (self.world.observed(target),)))
        assert number in self.world.accepted
        self.member[target.id.pid] = ContextKey(job, group)

    @rule(job=st.sampled_from(JOBS), group=st.sampled_from(GROUPS), state=st.sampled_from(STATES))
    def register_a_tree(self, job: JobId, group: GroupId, state: DriverState) -> None:
        if len(self.world.targets) >= 6:
            return
        key, target, number = ContextKey(job, group), self.world.start(group, state), self.world.number()
        tree = Tree(target.id, uid=0, marker=f"tree-{number}")
        self.world.members[target.id.pid] = self.member[target.id.pid] = key
        self.world.post(Registered(number, key, (self.world.observed(target),), tree))
        assert number in self.world.accepted

    @precondition(lambda self: self.members_alive())
    @rule(state=st.sampled_from(STATES), data=st.data())
    def a_member_forks(self, state: DriverState, data: st.DataObject) -> None:
        """Unseen: nobody registers the child."""
        if len(self.world.targets) >= 8:
            return
        key = self.world.members[data.draw(st.sampled_from(self.members_alive()))]
        child = self.world.start(key.group, state)
        self.world.members[child.id.pid] = self.member[child.id.pid] = key

    @rule(job=st.sampled_from(JOBS), group=st.sampled_from([*GROUPS, None]))
    def a_pod_comes(self, job: JobId, group: GroupId | None) -> None:
        if len(self.world.pods) < 3:
            self.world.pod(job, group)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_pod_is_deleted(self, data: st.DataObject) -> None:
        """Its processes end some other time, or never."""
        self.world.delete_pod(data.draw(st.sampled_from(sorted(self.world.pods))))

    @precondition(lambda self: self.world.pods)
    @rule(state=st.sampled_from(STATES), group=st.sampled_from(GROUPS), data=st.data())
    def a_process_starts_in_a_pod(self, state: DriverState, group: GroupId, data: st.DataObject) -> None:
        if len(self.world.targets) >= 8:
            return
        pod = self.world.pods[data.draw(st.sampled_from(sorted(self.world.pods)))]
        target = self.world.run_in(pod.uid, state, pod.group or group)
        self.member[target.id.pid] = ContextKey(pod.job, pod.group or group)

    def is_known(self, pid: int) -> bool:
        """It is in a context, or what it is in is known to the agent and it uses a device: it will be, soon."""
        uid = self.world.in_pod.get(pid)
        node, target = self.world.node, self.world.targets[pid]
        if uid is None or node.registry.owner(target.id) is not None:
            return True
        return uid in self.world.pods and target.state is not DriverState.NONE

    @precondition(lambda self: self.world.listings)
    @rule(data=st.data(), is_silent=st.booleans())
    def members_are_listed(self, data: st.DataObject, is_silent: bool) -> None:
        wanted = data.draw(st.sampled_from(self.world.listings))
        if wanted.operation is not None:
            operation = self.world.node._queue.active.get(wanted.operation)
            keys = operation.keys if operation is not None else ()
            here = [pid for pid in self.members_alive() if self.world.members[pid] in keys]
            here += [pid for pid in self.world.in_pod if self.runs_in_a_pod(pid) and self.member[pid] in keys]
            self.listed[wanted.operation] = set(here)
        self.world.list_members(wanted, is_silent=is_silent)

    def runs_in_a_pod(self, pid: int) -> bool:
        target = self.world.targets.get(pid)
        return target is not None and self.world.in_pod.get(pid) in self.world.pods and target.state is RUNNING

    def members_alive(self) -> list[int]:
        return [pid for pid in self.world.members if pid in self.world.targets]

    @precondition(lambda self: any(t.state is DriverState.NONE for t in self.world.targets.values()))
    @rule(data=st.data())
    def a_process_starts_cuda(self, data: st.DataObject) -> None:
        idle = [t for t in self.world.targets.values() if t.state is DriverState.NONE]
        data.draw(st.sampled_from(idle)).state = DriverState.RUNNING

    @rule(
        kind=st.sampled_from(list(Kind)),
        job=st.sampled_from(JOBS),
        group=st.sampled_from(GROUPS),
        step=st.integers(-1, 1),
        leave_locked=st.booleans(),
        timeout_s=st.sampled_from([0.0, 0.3, 5.0]),
        data=st.data(),
    )
    def request(
        self,
        kind: Kind,
        job: JobId,
        group: GroupId,
        step: int,
        leave_locked: bool,
        timeout_s: float,
        data: st.DataObject,
    ) -> None:
        token = max(1, self.token[group] + step)
        after = data.draw(st.sampled_from([None, *self.kinds])) if kind is Kind.RESTORE else None
        number = self.world.number()
        operation = OperationId(f"{kind}-{number}")
        if kind.moves_memory:
            self.kinds[operation] = (kind, ContextKey(job, group), leave_locked)
        effects = self.world.post(
            Requested(
                call=number,
                kind=kind,
                job=job,
                group=group,
                operation=operation,
                token=token,
                epoch=1,
                timeout_s=timeout_s,
                leave_locked=leave_locked,
                after=after,
            )
        )
        if token < self.token[group]:
            self.world.write()
            assert self.world.refused[number].refusal.kind is RefusalKind.STALE
            assert not [e for e in effects if isinstance(e, CallDriver)], "a stale call moved something"
            self.kinds.pop(operation, None)
            return
        self.token[group] = token
        if kind in (Kind.LOCK, Kind.SNAPSHOT):
            self.stopped_since.add(ContextKey(job, group))
        if kind.moves_memory:
            assert number in self.world.accepted or self.world.is_writing
        if kind is Kind.SNAPSHOT and any(call.operation == operation for call in self.world.calls):
            living = [pid for pid in self.members_alive() if self.world.members[pid] == ContextKey(job, group)]
            assert not living or operation in self.listed, "a tree's snapshot started before its members were listed"

    @rule(
        jobs=st.permutations(JOBS),
        group=st.sampled_from(GROUPS),
        step=st.integers(0, 1),
        leave_locked=st.booleans(),
        timeouts_s=st.tuples(st.sampled_from([0.0, 0.3, 5.0]), st.sampled_from([0.0, 0.3, 5.0])),
    )
    def hand_over(
        self, jobs: list[JobId], group: GroupId, step: int, leave_locked: bool, timeouts_s: tuple[float, float]
    ) -> None:
        """A snapshot, and in the same message the restore that is to follow it."""
        token = self.token[group] = max(1, self.token[group] + step)
        numbers = (self.world.number(), self.world.number())
        first, second = OperationId(f"snapshot-{numbers[0]}"), OperationId(f"restore-{numbers[1]}")
        leaving, coming = jobs[:2]
        self.stopped_since.add(ContextKey(leaving, group))
        self.kinds[first] = (Kind.SNAPSHOT, ContextKey(leaving, group), False)
        self.kinds[second] = (Kind.RESTORE, ContextKey(coming, group), leave_locked)
        then = Requested(
            numbers[1], Kind.RESTORE, coming, group, second, token, 1, timeouts_s[1], leave_locked, after=first
        )
        self.world.post(Requested(numbers[0], Kind.SNAPSHOT, leaving, group, first, token, 1, timeouts_s[0], then=then))
        accepted = {number for number in numbers if number in self.world.accepted}
        assert accepted == set(numbers) or self.world.is_writing

    @precondition(lambda self: self.kinds)
    @rule(data=st.data())
    def repeat_a_request(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(list(self.kinds)))
        kind, key, leave_locked = self.kinds[operation]
        self.world.write()
        before = list(self.world.calls)
        number = self.world.number()
        self.world.post(
            Requested(number, kind, key.job, key.group, operation, self.token[key.group], 1, leave_locked=leave_locked)
        )
        self.world.write()
        if self.world.node.operation(operation) is not None:
            assert self.world.accepted[number].operation == operation
            assert self.world.calls == before, "a retry started something new"

    # -- workloads that save themselves

    @rule(job=st.sampled_from(JOBS), group=st.sampled_from(GROUPS), is_seen=st.booleans(), is_known=st.booleans())
    def register_a_workload(self, job: JobId, group: GroupId, is_seen: bool, is_known: bool) -> None:
        context = self.world.node.registry.contexts.get(ContextKey(job, group))
        workload = context.workload if context is not None else None
        if len(self.living_apps()) >= 3 or (not is_known and workload is not None and not workload.instance):
            return  # one that does not say who it is, is taken for the one before
        self.world.app(job, group, is_seen=is_seen, is_known=is_known)

    @precondition(lambda self: self.apps(lambda app: app.inbox))
    @rule(error=st.sampled_from([None, None, "it raised"]), data=st.data())
    def a_workload_carries_out_a_command(self, error: str | None, data: st.DataObject) -> None:
        self.world.say(data.draw(st.sampled_from(self.apps(lambda app: app.inbox))), error)

    @precondition(lambda self: self.apps(lambda app: app.connection is not None))
    @rule(data=st.data())
    def a_workload_loses_what_is_sent_next(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.apps(lambda app: app.connection is not None))).is_deaf = True

    @precondition(lambda self: self.apps(lambda app: app.connection is not None))
    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        self.world.disconnect(data.draw(st.sampled_from(self.apps(lambda app: app.connection is not None))))

    @precondition(lambda self: self.living_apps())
    @rule(data=st.data())
    def a_workload_connects_anew(self, data: st.DataObject) -> None:
        app = data.draw(st.sampled_from(self.living_apps()))
        context = self.world.node.registry.contexts.get(app.key)
        is_there = context is not None and context.workload is not None
        if app.instance or (is_there and not context.workload.instance):  # else it would pass for a new one
            self.world.connect(app)

    @precondition(lambda self: self.apps(lambda app: app.connection is not None))
    @rule(data=st.data())
    def a_workload_closes_its_registration(self, data: st.DataObject) -> None:
        app = data.draw(st.sampled_from(self.apps(lambda app: app.connection is not None)))
        self.world.disconnect(app, is_closed=True)
        self.world.apps.remove(app)

    @precondition(lambda self: self.living_apps())
    @rule(data=st.data())
    def a_workload_ends(self, data: st.DataObject) -> None:
        self.world.end_app(data.draw(st.sampled_from(self.living_apps())))

    def living_apps(self) -> list[App]:
        return self.apps(lambda app: True)

    def apps(self, is_wanted: Callable[[App], object]) -> list[App]:
        return [app for app in self.world.apps if not app.ended_by_agent and is_wanted(app)]

    def has_callbacks(self, key: ContextKey) -> bool:
        context = self.world.node.registry.contexts.get(key)
        return context is not None and context.workload is not None

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def a_call_answers(self, data: st.DataObject) -> None:
        self.world.answer(data.draw(st.sampled_from(self.world.calls)))

    @precondition(lambda self: any(call.then for call in self.world.calls))
    @rule(data=st.data())
    def a_worker_goes_on_unheard(self, data: st.DataObject) -> None:
        self.world.go_on(data.draw(st.sampled_from([call for call in self.world.calls if call.then])))

    @rule(is_slow=st.booleans())
    def the_disk_is_slow_or_has_written(self, is_slow: bool) -> None:
        self.world.write()
        self.world.is_disk_slow = is_slow

    @rule(
        jobs=st.permutations(JOBS),
        group=st.sampled_from(GROUPS),
        kind=st.sampled_from([Kind.LOCK, Kind.SNAPSHOT, None]),
        answers=st.integers(0, 3),
        end=st.sampled_from(["written", "crash", "more comes"]),
        fates=st.lists(st.sampled_from(["lost", "done", "late"]), max_size=2),
    )
    def a_stop_is_ordered_while_the_disk_is_slow(
        self, jobs: list[JobId], group: GroupId, kind: Kind | None, answers: int, end: str, fates: list[str]
    ) -> None:
        """It goes ahead of its record: a Lock, a Snapshot, or (None) a Snapshot with the restore that follows it."""
        self.register(jobs[0], group, RUNNING)
        self.the_disk_is_slow_or_has_written(is_slow=True)
        if kind is None:
            self.hand_over(jobs, group, 1, leave_locked=False, timeouts_s=(5.0, 5.0))
        else:
            self.request(kind, jobs[0], group, 1, leave_locked=False, timeout_s=5.0, data=None)
        for _ in range(answers):
            if self.world.calls:
                self.world.answer(self.world.calls[0])
        if end == "crash":
            self.the_agent_crashes(is_lazy_lost=True, fates=fates)
        elif end == "written":
            self.world.write()
            self.world.hear()

    @precondition(lambda self: self.world.unheard)
    @rule()
    def the_node_hears_of_it(self) -> None:
        self.world.hear()

    @precondition(lambda self: self.world.calls)
    @rule(kind=st.sampled_from(FAULTS), data=st.data())
    def a_call_fails(self, kind: str, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.world.calls))
        if call.process.pid in self.world.targets:
            self.world.answer(call, fault(self.world, call, kind))

    @rule(seconds=st.sampled_from([0.02, 0.1, 1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def a_look_begins(self) -> None:
        self.world.begin_look()

    @rule()
    def a_look_ends(self) -> None:
        self.world.end_look()

    @rule()
    def a_sample_comes(self) -> None:
        self.world.sample()

    @precondition(lambda self: self.world.targets)
    @rule(data=st.data())
    def a_process_ends(self, data: st.DataObject) -> None:
        self.world.kill(data.draw(st.sampled_from(sorted(self.world.targets))))

    @rule(job=st.sampled_from(JOBS), group=st.sampled_from(GROUPS), step=st.integers(-1, 1))
    def kill(self, job: JobId, group: GroupId, step: int) -> None:
        token, key, number = max(1, self.token[group] + step), ContextKey(job, group), self.world.number()
        self.world.write()
        new = tuple(self.world.unseen({key}))
        in_pods = tuple(self.world.unseen_in_pods({job}))
        self.world.post(MembersListed(new, in_pods=in_pods))  # what the shell does before a kill
        living = {
            target.id
            for pid, target in self.world.targets.items()
            if self.member[pid] == key and (pid not in self.world.in_pod or self.world.node.registry.owner(target.id))
        }
        context = self.world.node.registry.contexts.get(key)
        workload = context.workload if context is not None else None
        self.world.post(KillRequested(number, job, group, token, 1))
        self.world.write()
        if token < self.token[group]:
            assert self.world.refused[number].refusal.kind is RefusalKind.STALE
        elif not living and workload is not None:
            if workload.server is None:
                assert self.world.refused[number].refusal.kind is RefusalKind.NOT_DONE
                return
            self.token[group] = token
            assert self.world.kills[number].processes == (workload.server,)
            for app in [app for app in self.world.apps if app.server == workload.server]:
                self.world.end_app(app)
            self._looked_through()
            assert key not in self.world.published
        elif not living:
            assert self.world.refused[number].refusal.kind is RefusalKind.UNKNOWN_CONTEXT
        else:
            self.token[group] = token
            assert set(self.world.kills[number].processes) == living
            for process in living:
                self.world.kill(process.pid)
            self._looked_through()
            assert key not in self.world.published

    def _looked_through(self) -> None:
        """It is known of every context whether somebody is left."""
        for wanted in [one for one in self.world.listings if one.operation is None]:
            self.world.list_members(wanted)

    @precondition(lambda self: any(t.queue for t in self.world.targets.values()))
    @rule(data=st.data())
    def an_abandoned_call_takes_effect(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from([t for t in self.world.targets.values() if t.queue]))
        target.take_late()

    @rule(is_lazy_lost=st.booleans(), fates=st.lists(st.sampled_from(["lost", "done", "late"]), max_size=4))
    def the_agent_crashes(self, is_lazy_lost: bool, fates: list[str]) -> None:
        fences = (dict(self.world.node.fences.tokens), self.world.node.fences.epoch)
        was_withheld = self.world.is_withheld
        told = {accept.operation for accept in self.world.accepted.values()}
        self.world.crash(is_lazy_lost, fates)
        if was_withheld:  # an order that nobody was told is taken may be lost, and its token with it
            lost = [one for one in self.kinds if one not in told and self.world.node.operation(one) is None]
            for operation in lost:
                del self.kinds[operation]
            self.token = {group: self.world.node.fences.tokens.get(group, 0) for group in GROUPS}
        else:
            assert (dict(self.world.node.fences.tokens), self.world.node.fences.epoch) == fences

    # -- what must hold

    @invariant()
    def one_process_at_a_time_moves_its_memory(self) -> None:
        moving = [c.operation for c in self.world.calls if c.verb in (Verb.CHECKPOINT, Verb.RESTORE)]
        assert len(moving) == len(set(moving))

    def a_result_tells_the_truth(self, operation: OperationId, result: Result) -> None:
        """At the moment when a result is published it agrees with the driver's true states."""
        kind, _, leave_locked = self.kinds[operation]
        record = self.world.node.operation(operation)
        assert record is not None
        worked = {process.pid: work for process, work in record.work.items()}
        states = {
            pid: target.state
            for pid, target in self.world.targets.items()
            if pid in worked and target.state is not DriverState.NONE
        }
        if result.is_indeterminate:
            assert not result.is_rolled_back
            return
        if result.status is Status.COMPLETE:
            for key in record.keys:
                assert self.world.disk.tokens.get(key.group, 0) >= record.token, "told before its token is on disk"
        if record.backend is Backend.APP_CHANNEL:
            self.a_workloads_result_tells_the_truth(operation, result)
            return
        under_way = {verb for pid in states for verb in self.world.targets[pid].queue}
        if result.is_rolled_back:
            assert not under_way & {Verb.CHECKPOINT, Verb.RESTORE}, "what is called rolled back may move yet"
        if result.status is Status.COMPLETE:
            goal = DriverState.CHECKPOINTED
            if kind is Kind.RESTORE:
                goal = DriverState.LOCKED if record.is_left_locked else DriverState.RUNNING
                assert record.is_left_locked or not leave_locked
                assert record.is_left_locked == leave_locked or self.is_unwanted(record), "locked without a reason"
            missed = self.listed.get(operation, set()) & set(self.world.targets) - set(worked)
            assert not missed, f"{operation} never looked at {missed}"
            late = {pid for pid, work in worked.items() if work.before is DriverState.NONE}  # started CUDA since
            late |= {pid for pid in states if self.world.targets[pid].locked_late}  # since it was asked
            assert {state for pid, state in states.items() if pid not in late} <= {goal}
        elif result.is_rolled_back:
            assert not result.is_gone
            for pid, state in states.items():
                if self.world.targets[pid].locked_late:
                    continue  # a lock that was given up: undone as soon as a sample shows it
                before = worked[pid].before
                assert before in (state, DriverState.NONE, DriverState.FAILED, DriverState.UNKNOWN)

    def is_unwanted(self, operation: Operation) -> bool:
        """Somebody has asked for something else since: with a higher token, or for a stop of the same context."""
        [key] = operation.keys
        return operation.token < self.world.node.fences.tokens.get(key.group, 0) or key in self.stopped_since

    def a_workloads_result_tells_the_truth(self, operation: OperationId, result: Result) -> None:
        kind, key, _ = self.kinds[operation]
        context = self.world.node.registry.contexts.get(key)
        workload = context.workload if context is not None else None
        # One that was replaced while it was away does not know yet.
        apps = self.apps(lambda app: app.key == key and (workload is None or app.instance == workload.instance))
        if result.status is Status.COMPLETE:
            assert {app.is_on_device for app in apps} <= {kind is Kind.RESTORE}
        elif result.is_rolled_back:
            for app in apps:
                assert operation not in app.moved_for
                assert operation not in {command.operation for command in app.inbox}, "it may move yet"

    @invariant()
    def a_workload_has_one_command_at_a_time(self) -> None:
        for app in self.living_apps():
            assert len(app.inbox) <= 1

    @invariant()
    def the_views_published_are_current(self) -> None:
        for view in self.world.node.views():
            if view.state is not ContextState.TRANSITIONING:
                assert self.world.published[view.key].view == view

    def teardown(self) -> None:
        """When faults are over, everything comes to an end and to order."""
        world = self.world
        world.tell_pods()  # a list, as after each start
        world.settle()
        for operation in self.kinds:
            record = world.node.operation(operation)
            assert record is not None
            assert record.is_ended, f"{operation} never ended"
        for view in world.node.views():
            assert view.state is not ContextState.TRANSITIONING
        for app in self.living_apps():
            by_driver = [t.state for t in world.targets.values() if self.member[t.id.pid] == app.key]
            if DriverState.CHECKPOINTED not in by_driver:
                views = {view.key: view for view in world.node.views()}
                assert app.key in views, (app, views, world.node.registry.contexts)
                view = views[app.key]
                assert view.state is (ContextState.RUNNING if app.is_on_device else ContextState.SAVED)
        for pid, target in world.targets.items():
            if not self.is_known(pid):
                continue
            key = self.member[pid]
            assert world.node.registry.owner(target.id) == key, f"{target} is in no context"
            turn = world.node.admission.turns.get(key.group)
            if turn is not None and not turn.may_run(key.job) and not self.has_callbacks(key):
                assert target.state is not DriverState.RUNNING, f"{target} runs though it is not its turn"
            if turn is not None and turn.job == key.job and not self._is_partly_saved(target):
                assert target.state is not DriverState.LOCKED, f"{target} stays locked in its own turn"

    def _is_partly_saved(self, target: Target) -> bool:
        key = self.member[target.id.pid]
        states = {t.state for t in self.world.targets.values() if self.member[t.id.pid] == key}
        return DriverState.CHECKPOINTED in states


EXAMPLES = int(os.environ.get("AGENT_EXAMPLES", "0"))
"""0: the quick run, the same every time. Above: so many at random."""

TestNode = NodeMachine.TestCase
TestNode.settings = settings(
    max_examples=EXAMPLES or 200,
    derandomize=not EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
