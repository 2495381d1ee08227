"""One orchestrator from start to end: take the store, lead, serve, and stop without leaving a switch half done."""

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from orchestrator.agents.dialing import PLAIN, Dialer
from orchestrator.agents.link import HigherEpoch
from orchestrator.agents.pool import AgentPool, highest_epoch
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.api.listener import Listener
from orchestrator.api.server import Core, OrchestratorService
from orchestrator.api.wire import Clock
from orchestrator.config import OrchestratorConfig
from orchestrator.core.effects import Publish
from orchestrator.core.events import Event, GroupConfigured, NodeDeleted, NodeObserved, Started
from orchestrator.core.orchestrator import Orchestrator
from orchestrator.core.types import CoreSettings, Epoch, GroupId, NodeId
from orchestrator.group_configs import GroupConfigs
from orchestrator.infra.interface import Infra, Topology
from orchestrator.logs import say
from orchestrator.shell import Shell, SteppedDown
from orchestrator.store.interface import Deposed, Store
from orchestrator.store.writer import writer_for

T = TypeVar("T")

EPOCH_QUESTION_S = 0.5
"""How long agents may take to say which leader they follow, before the orchestrator answers its first client."""

LAST_ANSWERS_S = 0.5
"""After the end, how long the last answers may take to be written."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is up."""

    addresses: list[str]
    epoch: Epoch
    groups: int


async def serve(
    config: OrchestratorConfig,
    infra: Infra,
    listen: Sequence[str],
    open_store: Callable[[], Awaitable[Store]],
    stop: asyncio.Event,
    ready: Callable[[Served], None],
    dialer: Dialer = PLAIN,
) -> str | None:
    """Run until `stop` is set (then None), or until this orchestrator must not lead any more (then why).

    StoreRefused, CannotListen: it could not start, and changed nothing but the store's epoch.
    """
    store = await _unless(stop, open_store())
    if store is None:
        return None
    try:
        while True:
            try:
                return await lead(config, infra, listen, store, stop, ready, dialer)
            except HigherEpoch as error:
                await _take_up_above(store, error.above)
    finally:
        await store.close()


async def lead(
    config: OrchestratorConfig, infra: Infra, listen: Sequence[str], store: Store, stop: asyncio.Event,
    ready: Callable[[Served], None], dialer: Dialer = PLAIN,
) -> str | None:
    """As `serve`, on a store that is open already, and stays open.

    HigherEpoch: an agent that was not there at the start knows a leader that the store does not.
    """
    topologies = infra.topologies()
    topology = await _unless(stop, anext(topologies))
    if topology is None:
        return None
    targets = _targets(topology)
    loaded = await store.load()
    seen = await highest_epoch(targets, EPOCH_QUESTION_S, dialer)
    if seen >= store.epoch:  # opening the store made it: nobody can have seen it, but of an earlier store
        await _take_up_above(store, seen)

    clock = Clock(time.monotonic, time.time)
    core = Orchestrator(core_settings(config))
    shell = Shell(core, clock)
    service = OrchestratorService(
        Core(post=shell.post, group_ids=core.group_ids, view=lambda group: core.view(group, clock.now())),
        clock, store.epoch, log_size=config.event_log_size, watch_limit=config.watch_queue_size)
    listener = Listener(service, listen, config.max_message_bytes)
    writer = writer_for(store, shell.post)
    link_settings = LinkSettings(
        call_timeout_s=config.call_timeout_s, poll_first_s=config.poll_first_s, poll_last_s=config.poll_last_s)
    configs = GroupConfigs(topology, config.on_unsaveable, config.kill_grace_s)

    def post_from_agent(event: Event) -> None:
        if isinstance(event, NodeObserved):
            for config in configs.observe(event.node, event.accelerators):
                shell.post(GroupConfigured(config))
        shell.post_from_agent(event)

    agents = AgentPool(store.epoch, link_settings, post_from_agent, shell.spawn, dialer)
    store.show_by(lambda group: core.view(group, clock.now()), lambda at_s: clock.wall() + at_s - clock.now())

    def tell(published: Publish) -> None:
        infra.tell(published)
        store.tell(published)

    shell.connect(writer, agents, service, tell)

    async def follow_topology() -> NoReturn:
        nonlocal configs
        async for changed in topologies:
            for node in sorted(changed.deleted):
                shell.post(NodeDeleted(NodeId(node)))
            configs = configs.with_topology(changed)
            agents.set_targets(_targets(changed))
            for group in configs.all():
                shell.post(GroupConfigured(group))
        raise RuntimeError("the infrastructure ended its topologies")

    writing = shell.spawn(writer.run(), "store writer")
    shell.post(Started(
        store.epoch, configs.all(), loaded.records, loaded.ended, loaded.waiters, run=secrets.token_hex(4)))
    agents.set_targets(targets)
    shell.spawn(follow_topology(), "topology")
    _spare_the_collector()
    await listener.start()
    ready(Served(listener.addresses, store.epoch, len(core.group_ids())))
    failing = asyncio.create_task(shell.failure(), name="failure")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
        await listener.say_not_serving()
        if not failing.done():
            service.refuse_new()
            if not await shell.settle(config.stop_grace_s):
                say("a switch did not end in time; the next start takes it up", level=logging.WARNING,
                    groups=list(core.unsettled()))
            drained = shell.spawn(writer.drained(), "last writes")
            await asyncio.wait([failing, drained], return_when=asyncio.FIRST_COMPLETED)
        service.end_all()
        await listener.stop(LAST_ANSWERS_S)
        return failing.result() if failing.done() else None
    except HigherEpoch as error:
        if error.above is not None:
            raise
        return str(error)
    except (SteppedDown, Deposed) as error:
        return str(error)
    finally:
        for task in (failing, stopping, writing):
            task.cancel()
        await shell.close()


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """What `work` comes to, which can take as long as an API server is away; None: stopped before that."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait(), name="stop before the start")
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()


def _spare_the_collector() -> None:
    """What is there now stays: later collections need not walk through it, and come less often than by default, which
    is after 700 new objects; a handoff makes more than that, and nearly none of it in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def _take_up_above(store: Store, seen: int | None) -> None:
    """Agents know a higher epoch than the store has ever given out."""
    assert seen is not None
    say(f"agents have seen epoch {seen}, the store only {store.epoch}: it was lost, and is taken up above",
        level=logging.WARNING, epoch=seen)
    await store.raise_epoch(seen)


def _targets(topology: Topology) -> list[AgentTarget]:
    return [
        AgentTarget(
            NodeId(agent.node), agent.address, tuple((GroupId(g.group), g.accelerators) for g in agent.groups))
        for agent in topology.agents]


def core_settings(config: OrchestratorConfig) -> CoreSettings:
    """What the core is told of our settings."""
    return CoreSettings(
        session_ttl_s=config.session_ttl_s,
        start_grace_s=config.start_grace_s,
        reattach_s=config.reattach_s,
        claims_wait_s=config.claims_wait_s,
        detached_grace_s=config.detached_grace_s,
        lock_timeout_s=config.lock_timeout_s,
        operation_timeout_s=config.operation_timeout_s,
        answer_margin_s=config.answer_margin_s,
        unreachable_after_s=config.unreachable_after_s,
        outcome_kept_s=config.outcome_kept_s,
        restore_margin_bytes=config.restore_margin_bytes,
        max_tries=config.max_tries,
        backoff_s=config.backoff_s,
        blocked_retry_s=config.blocked_retry_s,
    )
