"""The whole core in a hostile world: any order of messages, lost and repeated ones, crashes, failing drivers.

After every step the promises of SWITCH.md are checked against the truth that the model world knows; at the end the
world is healed, and every waiter must be served, refused, or find its group Blocked.

The normal run is short, and always the same. The long one, 10,000 new examples, is

    CORE_EXAMPLES=10000 python -m pytest components/orchestrator/tests/core/test_properties.py
    ./bazelw test //components/orchestrator:core_properties_test --test_env=CORE_EXAMPLES=10000 --test_timeout=3600

CORE_STEPS sets the steps of an example, CORE_SHRINK=0 saves the time of making a failure small.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.core import effects as fx
from orchestrator.core import events as ev
from orchestrator.core.invariants import check_exclusion, check_group
from orchestrator.core.types import (
    AgentErrorKind,
    CallId,
    ContextState,
    Ending,
    EvictAction,
    GroupId,
    JobId,
    Lease,
    NodeId,
    OnUnsaveable,
    OperationId,
    ProcessRef,
    RefusalCode,
    SessionId,
    Token,
)
from world import World

EXAMPLES = int(os.environ.get("CORE_EXAMPLES", "150"))
STEPS = int(os.environ.get("CORE_STEPS", "60"))
SHRINKS = os.environ.get("CORE_SHRINK", "1") == "1"

JOBS = ["a", "b", "c"]
SAVES_ITSELF = JobId("b")
"""A job of callbacks, now and then: nobody can lock it, so only its turns are looked at, not what runs between them."""
CLIENTS = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "c1": "c", "c2": "c"}
"""Processes that acquire, each with a session of its own, and whose they are."""
PIDS = {client: 100 + number for number, client in enumerate(CLIENTS)}
jobs = st.sampled_from(JOBS)
clients = st.sampled_from(list(CLIENTS))
pick = st.integers(0, 1_000_000)
flows = st.sampled_from(["all", "all", "all", "messages", "messages", "but grants", "together", "some", "none"])
"""How much of what follows from a step happens before the next one."""


class HostileWorld(RuleBasedStateMachine):
    """Plays every part except the core's."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.streams: dict[str, CallId] = {}
        self.sessions: dict[str, str] = {}
        self.requests: list[tuple[str, str, str, str | None]] = []
        self.sessions_of: dict[CallId, str | None] = {}
        self.ended_before = 0
        self.holders_before: dict[tuple[str, int], set[str]] = {}
        self.believes: dict[tuple[str, int, str], set[CallId]] = {}
        """Which session thinks that it holds which lease of which group, and by which answers."""
        self.tokens: dict[str, dict[int, str]] = {}
        self.evicted: set[tuple[str, str, str]] = set()

    @property
    def w(self) -> World:
        assert self.world is not None
        return self.world

    @initialize(
        nodes=st.integers(1, 3),
        groups=st.integers(1, 2),
        warm=st.booleans(),
        is_shared=st.booleans(),
        flow=flows,
        policy=st.sampled_from(OnUnsaveable),
    )
    def begin(
        self, nodes: int, groups: int, warm: bool, is_shared: bool, flow: str, policy: OnUnsaveable
    ) -> None:
        self.world = World(nodes, [f"g{index}" for index in range(1, groups + 1)], on_unsaveable=policy)
        self.world.on_grant = self.granted
        self.world.on_loss = self.lost
        self.world.on_save = self.saved
        for client in CLIENTS:
            self.open_session(client)
        if warm:
            self.warm_up()
        for which in range(groups if is_shared else 0):
            if not warm:
                self.acquire("a1", which, True, False, None, "all")
            self.share_the_lease(1, "all", which=which)
        self.flow(flow)

    def warm_up(self) -> None:
        """Every job has had its turn in every group: c holds, the others are saved."""
        self.w.settle()
        for config in self.w.configs:
            for job in JOBS:
                self.acquire(f"{job}1", self.w.configs.index(config), True, True, None, "all")
                self.start_processes_of_the_holder(self.w.configs.index(config), "all", False)
                if job != JOBS[-1]:
                    self.give_back_the_lease(self.w.configs.index(config), "all")

    def flow(self, flow: str) -> None:
        match flow:
            case "all":
                self.w.settle()
            case "messages":
                self.w.settle(working=False)
            case "but grants":
                self.w.settle(granting=False)
            case "together":
                self.settle_together()
            case "some":
                for channel in self.w.deliverable()[:3]:
                    self.w.deliver(channel)

    def settle_together(self) -> None:
        for _ in range(1000):
            if not self.w.deliverable():
                return
            self.w.deliver_together(8)
            for channel in self.w.deliverable():
                if channel[0] not in ("stream", "answer"):
                    self.w.deliver(channel)
        raise AssertionError("does not come to rest")

    def open_session(self, client: str) -> None:
        name = self.sessions.get(client, f"{client}-0")
        stream = self.w.call()
        processes = tuple(ProcessRef(node, PIDS[client]) for node in self.w.node_ids)
        self.w.handle(
            ev.SessionRenewed(
                stream=stream,
                session=SessionId(name),
                job=JobId(CLIENTS[client]),
                processes=processes,
                claims=tuple(
                    (GroupId(group), Token(token)) for group, token, session in sorted(self.believes) if session == name
                ),
            )
        )
        answer = self.w.answers.get(stream)
        if answer is not None and answer.refusal is not None:
            prefix, number = name.split("-")
            self.forget_beliefs(name)
            self.sessions[client] = f"{prefix}-{int(number) + 1}"
            self.open_session(client)
            return
        self.sessions[client] = name
        self.streams[client] = stream
        listed = {(str(lease.group), int(lease.token)) for lease in self.w.opened[-1].leases}
        self.forget_beliefs(name, listed)

    def forget_beliefs(self, session: str, listed: Collection[tuple[str, int]] = ()) -> None:
        for group, token, name in list(self.believes):
            if name == session and (group, token) not in listed:
                del self.believes[(group, token, name)]

    # ------------------------------------------------------------ messages and time

    @precondition(lambda self: self.world is not None and self.world.deliverable())
    @rule(which=pick, count=st.integers(1, 6))
    def deliver(self, which: int, count: int) -> None:
        for _ in range(count):
            channels = self.w.deliverable()
            if not channels:
                return
            self.w.deliver(channels[which % len(channels)])

    @precondition(lambda self: self.world is not None and self.world.deliverable())
    @rule(channels=st.integers(2, 8))
    def deliver_together(self, channels: int) -> None:
        """Several agents are heard in one turn of the loop."""
        self.w.deliver_together(channels)

    @precondition(lambda self: self.world is not None)
    @rule()
    def deliver_all(self) -> None:
        self.w.settle()

    @precondition(lambda self: self.world is not None and self.world.deliverable())
    @rule(which=pick)
    def lose_call_or_answer(self, which: int) -> None:
        """The call's deadline passes at the edge; whether the agent got it depends on which of both was lost."""
        channels = [channel for channel in self.w.deliverable() if channel[0] in ("call", "answer")]
        if not channels:
            return
        channel = channels[which % len(channels)]
        self.w.channels[channel].popleft()
        if not self.w.channels[channel]:
            del self.w.channels[channel]
        failed = ev.AgentCallFailed(
            NodeId(channel[1]), OperationId(channel[2]), AgentErrorKind.UNANSWERED, "deadline"
        )
        self.w.post(("answer", channel[1], channel[2]), lambda: self.w.handle(failed))

    @precondition(lambda self: self.world is not None)
    @rule(which=pick)
    def repeat_an_end(self, which: int) -> None:
        ended = [
            ev.OperationEnded(agent.node, work.id, work.result)
            for agent in self.w.agents.values()
            for work in agent.works.values()
            if work.result is not None and agent.is_connected
        ]
        if ended:
            # after what its agent has sent so far: it learns of an end from the agent's own stream
            event = ended[which % len(ended)]
            self.w.post(("stream", event.node), lambda: self.w.handle(event))

    @precondition(lambda self: self.world is not None)
    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 11.0, 31.0, 150.0]), flow=flows)
    def let_time_pass(self, seconds: float, flow: str) -> None:
        self.w.now += seconds
        if self.w.wake_at is not None and self.w.wake_at <= self.w.now:
            self.w.wake_at = None
            self.w.handle(ev.Woken())
        self.flow(flow)

    # ------------------------------------------------------------ clients

    @precondition(lambda self: self.world is not None)
    @rule(
        client=clients,
        which=pick,
        has_session=st.sampled_from([True, True, True, False]),
        is_named=st.booleans(),
        wait=st.sampled_from([None, None, 0.5]),
        flow=flows,
    )
    def acquire(
        self, client: str, which: int, has_session: bool, is_named: bool, wait: float | None, flow: str
    ) -> None:
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        session = self.sessions[client] if has_session else None
        request = f"r{len(self.requests)}" if is_named else None
        if request is not None:
            self.requests.append((request, client, group, session))
        self.ask(client, group, request, session, wait)
        self.flow(flow)

    def ask(
        self, client: str, group: str, request: str | None, session: str | None, wait: float | None = None
    ) -> CallId:
        call = self.w.next_call()
        self.sessions_of[call] = session
        assert self.w.send_ask(CLIENTS[client], group, request, session, wait) == call
        return call

    @precondition(lambda self: self.world is not None and self.requests)
    @rule(which=pick)
    def retry(self, which: int) -> None:
        request, client, group, session = self.requests[which % len(self.requests)]
        over = [ended for ended in self.w.store.ended if request in ended.requests and ended.ending != "undone"]
        held = self.w.view(group).lease
        is_returned = held is not None and request in held.returned
        call = self.ask(client, group, request, session)
        if (over or is_returned) and not (session is not None and session != self.sessions[client]):
            assert self.w.refusal(call).code in (RefusalCode.ABORTED, RefusalCode.FAILED_PRECONDITION)

    @precondition(lambda self: self.world is not None and self.world.open_calls)
    @rule(which=pick)
    def cancel(self, which: int) -> None:
        calls = sorted(self.w.open_calls)
        call = calls[which % len(calls)]
        self.w.cancelled.add(call)
        self.w.open_calls.discard(call)
        self.w.handle(ev.CallCancelled(call))

    @precondition(lambda self: self.world is not None and self.world.grants)
    @rule(which=pick)
    def lose_a_reply(self, which: int) -> None:
        """A grant's reply could not be written: the edge says so."""
        calls = sorted(call for call, answer in self.w.answers.items() if answer.lease is not None)
        lost = calls[which % len(calls)]
        for belief, answers in list(self.believes.items()):
            answers.discard(lost)
            if not answers:
                del self.believes[belief]
        self.w.handle(ev.CallCancelled(lost))

    @precondition(lambda self: self.world is not None)
    @rule(job=jobs, which=pick, token=st.integers(0, 12))
    def give_back_any(self, job: str, which: int, token: int) -> None:
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        before = self.w.view(group).lease
        call = self.w.send_give(job, group, token)
        after = self.w.view(group).lease
        if before is not None and (before.job != job or token not in (0, before.token)):
            assert after is not None, "a Yield of another lease ended this one"
            assert after.token == before.token
            answer = self.w.answers.get(call)
            assert answer is not None or token, "an answer by job alone needs no record"

    @precondition(lambda self: self.world is not None)
    @rule(
        client=clients,
        is_holders=st.sampled_from([True, True, False]),
        which=pick,
        names_token=st.booleans(),
        age=st.sampled_from([0, 0, 0, 0, 1, 2]),
        flow=flows,
    )
    def give_back_as_a_session(
        self, client: str, is_holders: bool, which: int, names_token: bool, age: int, flow: str
    ) -> None:
        """One process of a job yields: what it holds, what another one holds, or with a token of before."""
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        before = self.w.view(group).lease
        if is_holders and before is not None:
            client = self.client_of(str(before.job), which)
        session = self.sessions[client]
        token = max(0, before.token - age) if names_token and before is not None else 0
        self.w.send_give(CLIENTS[client], group, token, session)
        after = self.w.view(group).lease
        is_current = before is not None and before.job == CLIENTS[client] and token in (0, before.token)
        is_alive = self.w.core.has_session(SessionId(session))
        if before is not None and not (is_current and is_alive and before.session == session):
            assert after is not None, "a Yield of one that does not own the lease ended it"
            assert (after.token, after.session) == (before.token, before.session)
        elif before is not None:
            assert after is None or after.token > before.token, "the owner's Yield did not end the lease"
        if before is not None and is_current and is_alive:
            self.believes.pop((group, int(before.token), session), None)
        self.flow(flow)

    @precondition(lambda self: self.world is not None)
    @rule(who=pick, flow=flows, which=pick)
    def share_the_lease(self, who: int, flow: str, which: int) -> None:
        """A process of the holder's job asks, perhaps the one that has the lease already."""
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        lease = self.w.view(group).lease
        if lease is not None:
            client = self.client_of(str(lease.job), who)
            self.ask(client, group, None, self.sessions[client])
        self.flow(flow)

    def client_of(self, job: str, which: int) -> str:
        own = [client for client, whose in CLIENTS.items() if whose == job]
        return own[which % len(own)]

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, flow=flows)
    def give_back_the_lease(self, which: int, flow: str) -> None:
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        lease = self.w.view(group).lease
        if lease is not None:
            self.w.send_give(lease.job, group, lease.token)
        self.flow(flow)

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, flow=flows)
    def hand_on(self, which: int, flow: str) -> None:
        """The holder yields while another job waits."""
        group = str(self.w.core.group_ids()[which % len(self.w.configs)])
        lease = self.w.view(group).lease
        others = [job for job in JOBS if lease is None or job != lease.job]
        self.acquire(f"{others[which % len(others)]}1", which, True, True, None, "messages")
        self.give_back_the_lease(which, flow)

    @precondition(lambda self: self.world is not None)
    @rule(client=clients, closes=st.booleans())
    def lose_stream(self, client: str, closes: bool) -> None:
        stream = self.streams.pop(client, None)
        if stream is not None:
            self.w.handle(ev.SessionClosed(stream) if closes else ev.SessionStreamLost(stream))

    @precondition(lambda self: self.world is not None)
    @rule(client=clients)
    def renew(self, client: str) -> None:
        self.open_session(client)

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, action=st.sampled_from([EvictAction.END_LEASE, EvictAction.CLEAR_FAULT, EvictAction.DROP_WAITER]),
          job=jobs)
    def evict(self, which: int, action: EvictAction, job: str) -> None:
        group = self.w.core.group_ids()[which % len(self.w.configs)]
        call = self.w.call()
        self.w.handle(ev.EvictRequested(call=call, group=group, action=action, job=JobId(job)))
        if action is EvictAction.END_LEASE and self.w.answers[call].evicted is not None:
            self.evicted.update((str(node), str(group), job) for node in self.w.node_ids)

    # ------------------------------------------------------------ processes

    @precondition(lambda self: self.world is not None)
    @rule(job=jobs, which=pick, node=pick, everywhere=st.booleans())
    def start_processes(
        self, job: str, which: int, node: int, everywhere: bool, is_unsampled: bool = False
    ) -> None:
        group = self.w.core.group_ids()[which % len(self.w.configs)]
        nodes = self.w.node_ids if everywhere else [self.w.node_ids[node % len(self.w.node_ids)]]
        for name in nodes:
            if (JobId(job), group) not in self.w.agents[name].contexts:
                pids = [PIDS[client] for client, whose in CLIENTS.items() if whose == job]
                is_own = job == SAVES_ITSELF and not is_unsampled  # a workload says itself that it is there
                backend = "app_channel" if is_own else ""
                self.w.agents[name].appear(
                    JobId(job), group, pids, size=40, is_unsampled=is_unsampled, backend=backend
                )

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, flow=flows, is_unsampled=st.booleans())
    def start_processes_of_the_holder(self, which: int, flow: str, is_unsampled: bool) -> None:
        group = self.w.core.group_ids()[which % len(self.w.configs)]
        lease = self.w.view(str(group)).lease
        if lease is not None:
            self.start_processes(str(lease.job), which, 0, True, is_unsampled)
        self.flow(flow)

    @precondition(lambda self: self.world is not None)
    @rule(node=pick)
    def sample(self, node: int) -> None:
        agent = self.w.agents[self.w.node_ids[node % len(self.w.node_ids)]]
        for context in agent.contexts.values():
            agent.sample(context)

    @precondition(lambda self: self.world is not None)
    @rule(job=jobs, which=pick, node=pick, everywhere=st.booleans())
    def end_processes(self, job: str, which: int, node: int, everywhere: bool) -> None:
        group = self.w.core.group_ids()[which % len(self.w.configs)]
        nodes = self.w.node_ids if everywhere else [self.w.node_ids[node % len(self.w.node_ids)]]
        for name in nodes:
            self.w.agents[name].disappear(JobId(job), group)

    @precondition(lambda self: self.world is not None)
    @rule(client=clients)
    def end_one_process(self, client: str) -> None:
        """A process ends everywhere, and others of its job's contexts go on."""
        for agent in self.w.agents.values():
            for context in agent.contexts.values():
                if context.job == CLIENTS[client] and PIDS[client] in context.pids and len(context.pids) > 1:
                    context.pids -= {PIDS[client]}
                    agent.push_context(context)

    @precondition(lambda self: self.world is not None)
    @rule(job=jobs, which=pick, node=pick, is_unsaveable=st.booleans(), is_unlockable=st.booleans())
    def spoil(self, job: str, which: int, node: int, is_unsaveable: bool, is_unlockable: bool) -> None:
        group = self.w.core.group_ids()[which % len(self.w.configs)]
        context = self.w.agents[self.w.node_ids[node % len(self.w.node_ids)]].contexts.get((JobId(job), group))
        if context is not None:
            context.is_unsaveable, context.is_unlockable = is_unsaveable, is_unlockable and is_unsaveable

    # ------------------------------------------------------------ drivers and agents

    def works(self) -> list[tuple[NodeId, OperationId]]:
        return [
            (agent.node, work.id) for agent in self.w.agents.values() if agent.is_up for work in agent.running_works()
        ]

    @precondition(lambda self: self.world is not None and self.works())
    @rule(
        which=pick,
        fate=st.sampled_from(
            [
                *["ok", "ok", "ok", "rolled back", "failed", "gone", "hang"],
                *["indeterminate saved", "indeterminate running", "left locked"],
            ]
        ),
    )
    def finish_work(self, which: int, fate: str) -> None:
        node, name = self.works()[which % len(self.works())]
        agent = self.w.agents[node]
        work = agent.works[name]
        agent.fates[(work.kind, work.key[0])].appendleft(fate)
        agent.finish(work)

    @precondition(lambda self: self.world is not None)
    @rule(
        which=pick,
        job=jobs,
        kind=st.sampled_from(["snapshot", "snapshot", "restore"]),
        fates=st.lists(
            st.sampled_from(
                ["ok", "rolled back", "rolled back", "failed", "gone", "indeterminate saved", "left locked", "resumed"]
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def doom(self, which: int, job: str, kind: str, fates: list[str]) -> None:
        """Say how the next operations of a job on a node will end."""
        agent = self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]]
        agent.fates[(kind, JobId(job))].extend(fates)

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, is_saved=st.booleans())
    def driver_says(self, which: int, is_saved: bool) -> None:
        self.resolve(which, is_saved)

    def resolve(self, which: int, is_saved: bool) -> bool:
        open_ends = [
            (agent, context)
            for agent in self.w.agents.values()
            for context in agent.contexts.values()
            if agent.is_up
            and context.state is ContextState.TRANSITIONING
            and (context.by_operation is None or agent.works[context.by_operation].result is not None)
        ]
        if open_ends:
            agent, context = open_ends[which % len(open_ends)]
            fits = agent.used(context.group) <= 100
            agent.resolve(context, ContextState.RUNNING if fits and not is_saved else ContextState.SAVED)
        return bool(open_ends)

    @precondition(lambda self: self.world is not None)
    @rule(which=pick)
    def break_stream(self, which: int) -> None:
        agent = self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]]
        if agent.is_connected:
            agent.is_connected = False
            self.w.channels.pop(("stream", agent.node), None)
            self.w.handle(ev.NodeDisconnected(agent.node, "broken"))

    @precondition(lambda self: self.world is not None)
    @rule(which=pick)
    def connect(self, which: int) -> None:
        agent = self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]]
        if agent.is_up and not agent.is_connected:
            agent.connect()

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, keeps=st.booleans())
    def restart_agent(self, which: int, keeps: bool) -> None:
        agent = self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]]
        if agent.is_up:
            was_connected = agent.is_connected
            agent.crash()
            self.w.channels.pop(("stream", agent.node), None)
            if was_connected:
                self.w.handle(ev.NodeDisconnected(agent.node, "killed"))
        else:
            agent.restart(keeps_operations=keeps)
            agent.connect()

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, is_mute=st.booleans())
    def mute(self, which: int, is_mute: bool) -> None:
        self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]].is_mute = is_mute

    # ------------------------------------------------------------ store and orchestrator

    @precondition(lambda self: self.world is not None)
    @rule(fate=st.sampled_from(["failed", "unclear written", "unclear lost"]))
    def spoil_a_write(self, fate: str) -> None:
        self.w.store.fates.append(fate)

    @precondition(lambda self: self.world is not None)
    @rule(writes_land=st.booleans())
    def restart_orchestrator(self, writes_land: bool) -> None:
        # A session that was over may come back with another group's record: it learns what it holds when it is opened.
        alive = [belief for belief in self.believes if self.w.core.has_session(SessionId(belief[2]))]
        self.believes = {belief: self.believes[belief] for belief in alive}
        self.w.crash(writes_land=writes_land)
        self.streams.clear()
        for group, token, session in alive:
            record = self.w.store.records[GroupId(group)]
            if record.lease is not None and record.lease.token == token:
                assert session in record.lease.holders, f"{session} was answered, and the record does not know"
        self.w.start()

    @precondition(lambda self: self.world is not None)
    @rule(which=pick, writes_land=st.booleans(), is_forgotten=st.booleans(), is_deaf=st.booleans(), flow=flows)
    def restart_beside_a_grant(
        self, which: int, writes_land: bool, is_forgotten: bool, is_deaf: bool, flow: str
    ) -> None:
        """The orchestrator is killed between unlocking the next holder and the record of its grant; perhaps nobody
        remembers who waited, or an agent is not heard at once."""
        for job in ("c", "a"):  # both have had a turn, if nothing is in their way
            self.open_session(f"{job}1")
            self.acquire(f"{job}1", which, True, True, None, "all")
            self.start_processes_of_the_holder(which, "all", False)
            if job == "c":
                self.give_back_the_lease(which, "all")
        self.acquire("c1", which, True, True, None, "all")
        self.give_back_the_lease(which, "but grants")
        if is_forgotten:
            self.w.store.waiters.clear()
        if is_deaf:
            self.w.agents[self.w.node_ids[which % len(self.w.node_ids)]].crash()
        self.restart_orchestrator(writes_land)
        self.flow(flow)

    # ------------------------------------------------------------ promises

    def lost(self, notice: fx.NotifyLeaseLost) -> None:
        """A client is told that its lease is over."""
        told = (str(notice.lease.group), int(notice.lease.token), str(notice.session))
        self.believes.pop(told, None)
        group = next(group for group in self.w.core.groups() if group.id == notice.lease.group)
        current = group.holding.lease if group.holding is not None else None
        assert current is None or current.token > notice.lease.token, "told of a loss, and the lease stands"

    def saved(self, effect: fx.StartSnapshot) -> None:
        """A save is asked for: wherever else the job may be on the device, as far as can be known, it is locked."""
        group = next(group for group in self.w.core.groups() if group.id == effect.group)
        for node in group.site.nodes:
            context = self.w.agents[node.id].contexts.get((effect.job, effect.group))
            view = node.context(group.id, effect.job)
            if node.id == effect.node or not node.is_connected or context is None or view is None:
                continue
            is_noticed = view.state is ContextState.RUNNING and not view.locked
            seen = group.switch.seen if group.switch is not None else ()
            is_suspect = view.state is ContextState.IDLE and effect.job in group.site.unseen_on(node, seen)
            assert not context.is_free() or not (is_noticed or is_suspect), (
                f"{effect.job} is to be saved on {effect.node} and runs on {node.id}: {self.story(str(group.id))}"
            )

    @invariant()
    def who_was_told_that_it_holds_does_hold(self) -> None:
        """Whoever was answered with a lease, and can be heard and told, holds it or was told that it does not."""
        if self.world is None:
            return
        reachable = {self.sessions[client] for client in self.streams}
        for group in self.w.core.groups():
            lease = group.holding.lease if group.holding is not None else None
            if lease is not None and lease.session is not None:
                assert self.w.core.has_session(lease.session), f"nobody owns {lease}"
            is_placed = group.holding is not None and group.holding.is_placed  # before, nobody can be answered
            if lease is not None and len(lease.holders) > 1 and is_placed and group.ledger.is_clean:
                assert group.holding is not None
                waiting = {
                    waiter.session
                    for waiter in group.queue.of_job(lease.job)
                    if group.queue.is_expected(waiter, self.w.now)
                }
                strangers = {holder for holder in lease.holders if not group.holding.is_known_to(holder)} - waiting
                assert not strangers, f"{strangers} share {lease} and will never know"
            for name, token, session in self.believes if group.ledger.is_clean else ():
                if name == group.id and session in reachable:
                    assert lease is not None, f"{session} holds token {token} of {name}, which is over"
                    assert lease.token == token
                    assert session in lease.holders

    @invariant()
    def a_lease_does_not_expire_under_a_session_that_lives(self) -> None:
        if self.world is None:
            return
        for ended in self.w.store.ended[self.ended_before :]:
            if ended.ending is Ending.EXPIRED:
                holders = self.holders_before.get((str(ended.group), int(ended.token)), set())
                alive = [session for session in holders if self.w.core.has_session(SessionId(session))]
                assert not alive, f"lease {ended.token} of {ended.group} ended under {alive}"
        self.ended_before = len(self.w.store.ended)
        self.holders_before = {}
        for group, token, session in self.believes:
            self.holders_before.setdefault((group, token), set()).add(session)

    def granted(self, call: CallId, lease: Lease) -> None:
        """A reply leaves: it is recorded, its token rises, and is that of the newest lease."""
        session = self.sessions_of.get(call)
        if session is not None:
            self.believes.setdefault((str(lease.group), int(lease.token), session), set()).add(call)
            assert session in lease.holders
        record = self.w.store.records.get(lease.group)
        assert record is not None, "a grant left without a record"
        assert record.lease is not None, "a grant left without a recorded lease"
        assert record.lease.token == lease.token
        assert session in record.lease.holders, "a share left without a record"
        tokens = self.tokens.setdefault(str(lease.group), {})
        assert tokens.setdefault(lease.token, str(lease.job)) == lease.job, "two jobs have one token"
        assert lease.token == max(tokens), "a token fell"

    @invariant()
    def only_the_last_holder_can_touch_the_device(self) -> None:
        if self.world is None:
            return
        for group in self.w.core.groups():
            record = self.w.store.records.get(group.id)
            resident = record.resident if record is not None else None
            intended = record.intent.job if record is not None and record.intent is not None else None
            for agent in self.w.agents.values():
                seen = group.site.nodes[self.w.node_ids.index(agent.node)]
                for context in agent.contexts.values():
                    if context.group == group.id and context.job == resident == group.site.resident:
                        context.is_tame |= seen.context(group.id, context.job) is not None
                    if context.group != group.id or not context.is_free() or context.job == resident:
                        if not context.is_free():
                            self.evicted.discard((str(agent.node), str(context.group), str(context.job)))
                        continue
                    view = seen.context(group.id, context.job)
                    is_seen = view is not None and view.state is ContextState.RUNNING and not view.locked
                    is_unseen = not is_seen or not seen.is_connected
                    is_next = group.holding is not None and group.holding.lease.job == context.job
                    is_next |= context.job == group.site.resident  # in memory, and not recorded yet
                    if context.job == intended and (is_next or context.job == group.site.heir):
                        continue  # unlocked beside the record of its grant: only_one_job_is_let_on
                    is_noticed = context.job in group.intruders or is_next
                    is_evicted = (str(agent.node), str(group.id), str(context.job)) in self.evicted
                    is_evicted &= group.holding is None or not group.holding.is_placed or not seen.is_connected
                    assert (not context.is_tame and (is_unseen or is_noticed)) or is_evicted, (
                        f"{context.job} runs on {agent.node} without the lease (last holder: {resident})"
                    )

    @invariant()
    def only_one_job_is_let_on(self) -> None:
        """Whoever runs only when it is let on does not run beside another such job, whatever is recorded or known."""
        if self.world is None:
            return
        for group in self.w.core.groups():
            free = {
                context.job
                for agent in self.w.agents.values()
                for context in agent.contexts.values()
                if context.group == group.id and context.is_free() and context.is_tame
                and (str(agent.node), str(group.id), str(context.job)) not in self.evicted
            }
            assert len(free) <= 1, f"{sorted(free)} run at the same time: {self.story(str(group.id))}"

    @invariant()
    def memory_does_not_contradict_itself(self) -> None:
        if self.world is not None:
            assert self.w.stepped_down is None, self.w.stepped_down
            for group in self.w.core.groups():
                check_group(group)
                check_exclusion(group)

    # ------------------------------------------------------------ the end

    def teardown(self) -> None:
        if self.world is None:
            return
        self.heal()
        for _ in range(40):
            if not self.w.open_calls:
                break
            self.w.advance(20.0)
            for config in self.w.configs:
                lease = self.w.view(config.group).lease
                if lease is not None:
                    self.w.give(lease.job, config.group, lease.token)
            while self.resolve(0, True):
                self.w.settle()
        for call in sorted(self.w.open_calls):
            name = next(
                str(group.id) for group in self.w.core.groups() for waiter in group.queue if call in waiter.calls
            )
            assert "Blocked" in self.w.conditions(name), f"call {call} waits for ever: {self.story(name)}"
            assert self.w.configs[0].on_unsaveable is OnUnsaveable.WAIT, f"nobody was killed: {self.story(name)}"
        self.w.advance(200.0)
        self.only_the_last_holder_can_touch_the_device()
        for group in self.w.core.groups():
            stuck = {job for job, trouble in group.site.troubles.items() if trouble.cannot_lock}
            if not stuck and "Blocked" not in self.w.conditions(str(group.id)):
                for job in {context.job for agent in self.w.agents.values() for context in agent.contexts.values()}:
                    self.is_whole(str(group.id), str(job))

    def story(self, name: str) -> str:
        """Return all that helps to see why a group does not go on."""
        group = next(group for group in self.w.core.groups() if group.id == name)
        switch, site = group.switch, group.site
        lines = [
            f"group {name} at {self.w.now}, woken at {self.w.wake_at}",
            f"view: {self.w.view(name)}",
            f"holding: {group.holding}",
            f"switch: {switch and (switch.target, switch.phase, switch.blocked, vars(switch))}",
            f"operations: {[op for node in site.nodes for op in site.operations.on(node.id)]}",
            f"troubles: {site.troubles}, faults: {site.faults}, intruders: {group.intruders}, evicted: {site.evicted}",
            f"resident: {site.resident}, pauses: {site.pauses}, durable: {group.ledger.is_clean}",
            f"truth: { {agent.node: list(agent.contexts.values()) for agent in self.w.agents.values()} }",
            f"agents: { {agent.node: (agent.is_up, agent.is_connected) for agent in self.w.agents.values()} }",
        ]
        return "\n".join(lines)

    def heal(self) -> None:
        self.w.store.fates.clear()
        for agent in self.w.agents.values():
            agent.is_mute = False
            agent.fates.clear()
            if not agent.is_up:
                agent.restart()
            if not agent.is_connected:
                agent.connect()
            for context in agent.contexts.values():
                agent.sample(context)
                agent.push_context(context)
        for client in list(self.streams):
            self.open_session(client)
        self.w.settle()
        while self.resolve(0, True):
            self.w.settle()

    def is_whole(self, group: str, job: str) -> None:
        states = {self.w.state(job, group, node) for node in self.w.node_ids}
        assert not {"saved", "running"} <= states, f"{job} runs on some nodes only: {self.story(group)}"


HostileWorld.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
    derandomize="CORE_EXAMPLES" not in os.environ,
    phases=[phase for phase in Phase if phase is not Phase.shrink or SHRINKS],
)
TestHostileWorld = HostileWorld.TestCase
